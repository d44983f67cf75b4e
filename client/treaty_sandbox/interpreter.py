"""Make and keep the snapshot of the interpreter: the files that a sandboxed worker sees.

    /python/bin/python3.11               the interpreter
    /python/lib/libc.so.6 …              the shared libraries that a worker has mapped when it restricts itself
    /python/lib/python3.11/os.pyc …      the standard library, compiled
    /python/lib/python3.11/lib-dynload   its native modules, as far as a worker has mapped them
    /treaty                              `worker`, `treaty_handler` and `msgspec`, compiled
    /lib64/ld-linux-x86-64.so.2          the loader, where the interpreter looks for it

Beside it is `library`, the same modules in one file (`worker.library`). It has no other files of the host: no installed package,
no configuration of the host's Python (`_sysconfigdata`, `sitecustomize`), no `__pycache__`. It has no paths of the host either:
code objects are named by the paths above, and a prefix or home folder that is compiled into the interpreter is overwritten in the
copy.

Snapshots are in CACHE/treaty/interpreters/DIGEST; CACHE is $XDG_CACHE_HOME or ~/.cache. The digest covers the sources of a
snapshot, so a new interpreter, upgraded system libraries or another version of Treaty make a new one. `contents.json` has the
inode, mode, size and times of each file. One of these times is that of the inode's last change, which no program can set. The
first use in each process compares all of them and makes the snapshot anew if one differs.

A crash leaves a folder `.making-…`, which is never used; a snapshot gets its name only when it is complete. A folder that other
users can write is not used. Without a writable folder, a process makes its own snapshot and removes it at its end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import json
import marshal
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from treaty_consensus.errors import Unavailable
from treaty_consensus.printable import printable
from treaty_io.codes import SandboxCode
from treaty_io.platforms import require_linux

from .worker import framing, library

MAX_SNAPSHOTS = 8
"""The number of snapshots that are kept. Making another one removes the oldest."""

_FORMAT = 2
# Starting an interpreter takes less than a second. An interpreter that hangs becomes an error, not a hanging agent.
_PROBE_SECONDS = 60
_CONTENTS, _LIBRARY = "contents.json", "library"
# Files that a worker does not need, that are large, or that describe the host.
_LEFT_OUT = frozenset(
    {
        *("__phello__", "__pycache__", "config", "curses", "dist-packages", "distutils", "ensurepip", "idlelib", "lib-dynload"),
        *("lib2to3", "msilib", "pydoc_data", "site-packages", "sqlite3", "test", "tests", "tkinter", "turtledemo", "venv"),
        *("sitecustomize.py", "usercustomize.py"),
    }
)
_LEFT_OUT_PREFIXES = ("_sysconfigdata", "config-")
# Prints the files that the dynamic linker has mapped when a worker is ready for its first handler, one on each line.
_PROBE = """
import sys; sys.modules["_hashlib"] = None; sys.path += sys.argv[1:]
from worker import confinement, namespaces, process, template
import mmap
from worker.main import map_native_code
map_native_code()
import ctypes
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
def each(info, size, data):
    sys.stdout.buffer.write(info.contents.name + b"\\n")
    return 0
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
ctypes.CDLL(None).dl_iterate_phdr(kind(each), None)
"""

_known: list[Path] = []


def executable() -> str:
    """Return the interpreter's path inside a snapshot."""
    return f"/python/bin/{_interpreter().name}"


def known_snapshot() -> Path | None:
    """Return the snapshot that this process has, without making one."""
    # Asked at every start, because another process may have removed the snapshot as the oldest, or the user the cache.
    return _known[0] if _known and _known[0].is_dir() else None


def require_platform() -> None:
    """Raise `Unavailable` (`system.missing`) where no sandbox can be."""
    require_linux(
        "The sandbox of handlers",
        fix="Run this agent on Linux, in a container or virtual machine if need be. Searching, fetching, verifying and voting "
        "need no sandbox.",
    )


def snapshot() -> Path:
    """Return the root folder of the snapshot of this process's interpreter. The first call may take seconds.

    Raises `Unavailable` (`sandbox.unavailable`) if no snapshot can be made, and `system.missing` outside Linux.
    """
    require_platform()
    if existing := known_snapshot():
        return existing
    try:
        # A temporary copy is the last resort: it costs seconds at every start of the agent.
        _known[:] = [_cached() or _make(_temporary(), "own")]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = printable(str(error), 300)
        raise Unavailable(
            SandboxCode.UNAVAILABLE,
            f"The interpreter cannot be copied for the sandbox: {reason}.",
            fix="Name a folder with 100 MiB of room that this user can write in XDG_CACHE_HOME.",
        ) from error
    return _known[0]


def snapshot_in(folder: Path) -> Path | None:
    """Return the root of the snapshot in this folder; make it if it is missing or damaged.

    Returns None if other users can write the folder. Raises `OSError`.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    # A user who can write here could put code into every later worker.
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    target = folder / _digest()
    if target.is_dir():
        if _is_whole(target):
            return target / "root"
        # Rename before deleting: a crash while deleting must not leave half a snapshot under its name.
        broken = Path(tempfile.mkdtemp(prefix=".broken-", dir=folder))
        target.rename(broken / target.name)
        shutil.rmtree(broken, ignore_errors=True)
    root = _make(folder, target.name)
    # Running workers keep their files: a mount holds them until the namespace ends.
    _remove_oldest(folder, target)
    return root


def _cached() -> Path | None:
    with contextlib.suppress(OSError, RuntimeError):  # no home, a full disk, no permission
        return snapshot_in(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "treaty" / "interpreters")
    return None


def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="treaty-interpreter-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _make(folder: Path, name: str) -> Path:
    """Make a snapshot in a folder, and rename it to `name` when it is complete. If another process was first, use that one."""
    # In the same folder as the result: a rename is atomic only within one file system.
    work = Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
    try:
        library.write(work / _LIBRARY, _fill(work / "root"))
        # Last, after all files: it records their times of change.
        (work / _CONTENTS).write_text(json.dumps(_listed(work)))
        work.chmod(0o755)  # uid 65534 must read a snapshot of root; the folder above is closed to other users
        with contextlib.suppress(OSError):  # another process has made it meanwhile
            work.rename(folder / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder / name / "root"


def _fill(root: Path) -> dict[str, tuple[str, bytes]]:
    """Write the files of a snapshot. Return its modules, as `library.write` takes them."""
    stdlib, interpreter = _standard_library(), _interpreter()
    inside = f"/python/{sys.platlibdir}/{stdlib.name}"
    folders = [(stdlib, inside, "")]
    folders += [(package_folder(name), f"/treaty/{name}", f"{name}.") for name in ("worker", "treaty_handler", "msgspec")]
    modules: dict[str, tuple[str, bytes]] = {}
    # Compiled here by the host's interpreter, because workers have no writable folder for a bytecode cache.
    for folder, place, prefix in folders:
        for module in _modules(folder):
            if code := _compile(folder / module, f"{place}/{module}"):
                compiled = f"{place}/{module}c"
                _write_code(code, root / compiled.removeprefix("/"))
                name = prefix + ".".join(module.with_suffix("").parts)
                modules[name.removesuffix(".__init__")] = compiled, code
    _copy(interpreter, root, executable())
    (root / "python" / sys.platlibdir / stdlib.name / "lib-dynload").mkdir(parents=True, exist_ok=True)  # a landmark
    for path in _mapped():
        if path.is_relative_to(stdlib):
            _copy(path, root, f"{inside}/{path.relative_to(stdlib)}")
        elif path.is_relative_to(package_folder("msgspec")):
            _copy(path, root, f"/treaty/msgspec/{path.name}")
        else:
            _copy(path, root, str(path) if path.name.startswith("ld-") else f"/python/lib/{path.name}")
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return modules


def _mapped() -> list[Path]:
    """Return the shared objects that a worker maps, by the names that the dynamic linker used."""
    paths = [str(folder.parent) for folder in map(package_folder, ("worker", "treaty_handler", "msgspec"))]
    completed = subprocess.run(  # noqa: S603
        [_interpreter(), "-I", "-S", "-c", _PROBE, *paths],
        capture_output=True,
        timeout=_PROBE_SECONDS,
        check=True,
        # Nothing of the host's environment, such as LD_PRELOAD, may add a library to the list.
        env={},
        cwd="/",
    ).stdout
    # Skip the program itself, which has no name, and the kernel's vDSO, which has no path.
    return [Path(os.path.normpath(name)) for name in os.fsdecode(completed).splitlines() if name.startswith("/")]


def _modules(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder that belong into a snapshot, as relative paths."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if _belongs(name))
        for name in sorted(files):
            if name.endswith(".py") and _belongs(name):
                yield Path(place, name).relative_to(folder)


def _belongs(name: str) -> bool:
    return name not in _LEFT_OUT and not name.startswith(_LEFT_OUT_PREFIXES)


class _Loader(SourceFileLoader):
    """Read the host's compiled files, but never write one."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing."""


def _compile(source: Path, inside: str) -> bytes:
    """Compile a module, name its code by its path inside, and marshal it. Return nothing for a module that is broken."""
    try:
        code = _Loader("module", str(source)).get_code("module")
    except SyntaxError:  # on purpose, such as test data of the standard library
        return b""
    assert code is not None
    return marshal.dumps(_renamed(code, inside))


def _write_code(code: bytes, target: Path) -> None:
    """Write a module as a file that needs no source."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # PEP 552: zero flags, and no time and size of a source, because none is beside the file.
    target.write_bytes(importlib.util.MAGIC_NUMBER + bytes(12) + code)


def _renamed(code: CodeType, name: str) -> CodeType:
    inner = tuple(_renamed(item, name) if isinstance(item, CodeType) else item for item in code.co_consts)
    return code.replace(co_filename=name, co_consts=inner)


def _copy(source: Path, root: Path, inside: str) -> None:
    """Copy a binary, and overwrite compiled-in paths of this machine."""
    target = root / inside.removeprefix("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    data = source.read_bytes()
    for private in _private():
        data = data.replace(private, b"/" + b"_" * (len(private) - 1))  # the same length keeps all offsets
    target.write_bytes(data)
    target.chmod(0o755)


@functools.cache
def _private() -> tuple[bytes, ...]:
    """Return the paths of this machine that no file may contain, the longest first.

    And the linker's word for the folder of a program: where it meets that, it keeps the folder's path in memory.
    """
    folders = {Path(sys.base_prefix), Path(sys.base_prefix).resolve(), package_folder("worker").parents[3]}
    with contextlib.suppress(RuntimeError):
        folders |= {Path.home(), Path.home().resolve()}
    excluded = {"/", "/usr", "/usr/local", "/opt"}
    paths = {os.fsencode(path) for path in folders if str(path) not in excluded}
    return tuple(sorted({*paths, b"$ORIGIN", b"${ORIGIN}"}, key=len, reverse=True))


def _digest() -> str:
    """Return the name of a snapshot: a digest of everything that determines its content."""
    binaries = [_interpreter(), _standard_library() / "os.py", Path("/etc/ld.so.cache"), *package_folder("msgspec").glob("*.so")]
    sources = [path for name in ("worker", "treaty_handler") for path in sorted(package_folder(name).glob("*.py"))]
    made_from: Mapping[str, object] = {
        "format": _FORMAT,
        "version": sys.version,
        "binaries": [_status(path) for path in binaries],
        "sources": [_sha256(path) for path in (*sources, Path(__file__))],
        "private": [path.hex() for path in _private()],
    }
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()


def _status(path: Path) -> tuple[str, int, int]:
    """Return path, size and modification time; zeros if the file is missing.

    `/etc/ld.so.cache` is rewritten with every change of a system library; some systems do not have it.
    """
    with contextlib.suppress(OSError):
        status = path.stat()
        return str(path), status.st_size, status.st_mtime_ns
    return str(path), 0, 0


def _is_whole(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / _CONTENTS).read_bytes()) == _listed(folder))
    except (OSError, ValueError):
        return False


def _listed(folder: Path) -> dict[str, list[int]]:
    """List `library`, and all files and folders below `root`, each with the inode fields that change when it changes."""
    listed, pending = dict[str, list[int]](), [str(folder / "root")]
    listed[_LIBRARY] = _identity((folder / _LIBRARY).lstat())
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                # A link that replaces a file must show as a change, even if it leads to the same bytes.
                listed[entry.path.removeprefix(str(folder))] = _identity(entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return listed


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _remove_oldest(folder: Path, newest: Path) -> None:
    # By age, folders of crashed processes included: nothing else removes those.
    others = sorted((path for path in folder.iterdir() if path != newest), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[MAX_SNAPSHOTS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def _interpreter() -> Path:
    """Return the real interpreter, behind the links of a virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib")).resolve()


def package_folder(name: str) -> Path:
    """Return the folder of an installed package that a worker needs."""
    if name == "worker":
        return Path(framing.__file__).resolve().parent
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve().parent
