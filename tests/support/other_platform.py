"""Run a command as macOS or Windows would: without the modules and system calls that they lack.

    python other_platform.py PLATFORM treaty ARGUMENTS…             the command line of an agent
    python other_platform.py PLATFORM treaty-registry ARGUMENTS…    that of a registry
    python other_platform.py PLATFORM import                        imports every module but those of workers
    python other_platform.py PLATFORM code TEXT                     runs a program

PLATFORM is darwin or win32. Only Treaty's own modules see the other system: their `import` gives them modules with less in them.
The standard library and all others see Linux, so paths, sockets and terminals are Linux's. Text that is read or written without
naming its encoding is an error, because Windows would take another one.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import importlib
import os
import pkgutil
import signal
import sys
import warnings
from types import ModuleType
from typing import Any

PACKAGES = (
    "treaty_agent",
    "treaty_aip",
    "treaty_anp",
    "treaty_client",
    "treaty_command",
    "treaty_consensus",
    "treaty_handler",
    "treaty_handoff",
    "treaty_io",
    "treaty_routing",
    "treaty_sandbox",
)
OF_WORKERS = "treaty_sandbox.worker.main", "treaty_sandbox.worker.template"
"""They run inside a sandbox, and are imported there."""

LINUX_CALLS = """
pidfd_open memfd_create setns unshare sched_getaffinity sched_setaffinity O_PATH O_TMPFILE pidfd_send_signal getrandom splice
copy_file_range eventfd
"""
POSIX_CALLS = """
fork forkpty setsid killpg getuid geteuid getgid getegid getpgid getgroups setuid setgid posix_spawn nice uname openpty
O_DIRECTORY O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_DSYNC O_SYNC O_NOCTTY fchmod fchown chown lchown mkfifo statvfs sysconf
pread pwrite preadv pwritev fdatasync poll epoll AF_UNIX SCM_RIGHTS
SIGHUP SIGKILL SIGCHLD SIGUSR1 SIGUSR2 SIGALRM SIGPIPE SIGXCPU alarm setitimer pthread_sigmask
"""
MODULES = {
    "darwin": {"spwd"},
    "win32": {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "crypt", "posix", "spwd", "uvloop"},
}
CALLS = {"darwin": LINUX_CALLS, "win32": LINUX_CALLS + POSIX_CALLS}


class View(ModuleType):
    """A module without some of its names."""

    def __init__(self, module: ModuleType, hidden: str = "", **more: Any) -> None:
        super().__init__(module.__name__)
        vars(self)["parts"] = (module, frozenset(hidden.split()), more)

    def __getattr__(self, name: str) -> Any:
        module, hidden, more = vars(self)["parts"]
        if name in hidden:
            raise AttributeError(f"This system has no {module.__name__}.{name}.")
        return more[name] if name in more else getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["parts"][0], name, value)


def locking(descriptor: int, mode: int, size: int) -> None:
    """As `msvcrt.locking`: the error of a held lock is PermissionError."""
    assert (mode, size) == (2, 1)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, "Permission denied") from error


def become(platform: str) -> None:
    """Show Treaty's modules that are imported from now on another system."""
    assert not any(name.partition(".")[0] in PACKAGES for name in sys.modules)
    import select
    import socket

    windows = {"O_BINARY": 0} if platform == "win32" else {}
    views = {module.__name__: View(module, CALLS[platform]) for module in (signal, select, socket)}
    views |= {"os": View(os, CALLS[platform], **windows), "sys": View(sys, platform=platform)}
    if platform == "win32":
        views["msvcrt"] = View(ModuleType("msvcrt"), LK_NBLCK=2, locking=locking)
    real = builtins.__import__

    def limited(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level or not str((globals or {}).get("__name__", "")).startswith("treaty_"):
            return real(name, globals, locals, fromlist, level)
        if name in MODULES[platform]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return views[name] if name in views else real(name, globals, locals, fromlist, level)

    builtins.__import__ = limited
    warnings.filterwarnings("error", category=EncodingWarning, module=r"treaty_")


def import_all() -> None:
    """Import every module, and print how many they are."""
    names = [
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        if module.name not in OF_WORKERS and not module.name.endswith("__main__")
    ]
    for name in names:
        importlib.import_module(name)
    print(len(names))


if __name__ == "__main__":
    _, system, program, *rest = sys.argv
    become(system)
    if program == "import":
        import_all()
    elif program == "code":
        exec(rest[0], {"__name__": "treaty_code"})
    else:
        importlib.import_module("treaty_command.main" if program == "treaty" else "treaty_registry.cli").main(rest)
