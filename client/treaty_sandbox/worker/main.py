"""Run the worker: restrict this process, send "ready", then answer requests until the pipe ends.

    python -I -S -c '…; sys.path += sys.argv[6:]; from worker.main import main; main()' LEVEL ROLE MACHINE MEMORY CPU PATH…

Descriptor 0 is the pipe (`framing`); all others are closed. LEVEL is `namespaces`, `process` or `none`; ROLE is `worker`, or
`template` for a process that forks workers (`template`). MACHINE is the host's: `os.uname` would also leave its name in memory.
MEMORY is the address space in bytes, CPU the processor time in seconds. Before "ready" the worker has read no data of a handler,
and has finished all work that needs further system calls, such as mapping the standard library's native code.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
import traceback
import typing
from collections.abc import Callable

import msgspec

from . import framing, importer, wasm
from .confinement import PIPE, Confinement, ForkedConfinement

if typing.TYPE_CHECKING:
    from treaty_handler import Handler, Session

# Native modules of the standard library for handlers. They must be mapped before the filter is installed, which forbids
# executable mappings. Modules in Python can be read later. A missing name belongs to another version of Python.
_NATIVE = (
    *("_bisect", "_blake2", "_bz2", "_csv", "_datetime", "_decimal", "_elementtree", "_heapq", "_json", "_lzma", "_md5"),
    *("_random", "_sha1", "_sha2", "_sha256", "_sha3", "_sha512", "_statistics", "_struct", "_uuid"),
    *("array", "binascii", "cmath", "math", "pyexpat", "unicodedata", "zlib"),
)

# Modules in Python that most handlers import: for their data files, and for bytes in JSON. A template reads them once for all its
# workers, which takes a third off their processor time. No module here may keep a state that workers must not share, as `random`
# does.
_COMMON = ("base64", "pkgutil")

_MAX_TEXT = 2_000
_Parts = tuple[object, ...]
_T = typing.TypeVar("_T")


class _Rejected(Exception):
    """The handler raised `ValueError` in a method whose interface allows it."""


class _Unmovable(Exception):
    """The handler has no snapshot of a session now."""


class _WrongType(Exception):
    """The handler returned a value of a type that its interface does not allow."""


class Server:
    """Answer the requests of `framing` for one handler."""

    def __init__(self, engine: wasm.Engine | None = None) -> None:
        """Load nothing. `engine`: of WebAssembly, where it is installed."""
        self._engine = engine
        self._handler: Handler | None = None
        self._sessions: dict[int, Session] = {}
        self._requests: dict[str, Callable[..., _Parts]] = {
            "batch": self._batch,
            "compile": self._compile,
            "compile-wasm": self._compile_wasm,
            "load": self._load,
            "load-wasm": self._load_wasm,
            "open": self._open,
            "event": self._event,
            "snapshot": self._snapshot,
            "copy": self._copy,
            "close": self._close,
            "encode": self._encode,
            "decode": self._decode,
            "validate": self._validate,
        }

    def reply(self, payload: bytes) -> bytes:
        """Return the reply frame to a request's payload. Never raises: an error of the handler is a `failed` reply."""
        try:
            kind, fields = framing.decode_payload(payload)
            return framing.encode_frame(*self._requests[kind](*fields))
        except BaseException as error:  # includes SystemExit: a handler must not end the worker
            return framing.encode_frame(*_failed(error))

    def _batch(self, *requests: msgspec.Raw) -> _Parts:
        """Answer requests in order, up to the first that fails: the others depend on it."""
        replies: list[_Parts] = []
        for request in requests:
            kind, fields = framing.decode_payload(request)
            try:
                replies.append(self._requests[kind](*fields))
            except BaseException as error:
                replies.append(_failed(error))
            if replies[-1][0] == "failed":
                break
        return "batch", *replies

    def _compile(self, sources: msgspec.Raw) -> _Parts:
        return "code", importer.compile_package(framing.decode_any(sources))

    def _compile_wasm(self, module: msgspec.Raw) -> _Parts:
        return "code", self._runtime().compile(framing.decode_any(module))

    def _load_wasm(self, code: msgspec.Raw) -> _Parts:
        try:
            handler = wasm.WasmHandler(self._runtime(), framing.decode_any(code))
        except ValueError as error:
            return "failed", "code", _describe(error)
        for name in ("open", "event", "snapshot", "copy", "close", "encode", "decode", "validate"):
            self._requests[name] = getattr(handler, name)
        return ("done",)

    def _load(self, code: msgspec.Raw, data: msgspec.Raw, module: msgspec.Raw, attribute: msgspec.Raw) -> _Parts:
        try:
            importer.install_package(framing.decode_any(code), framing.decode_any(data))
        except ValueError as error:
            return "failed", "code", _describe(error)
        loaded = importlib.import_module(framing.decode_any(module))
        self._handler = getattr(loaded, framing.decode_any(attribute))
        return ("done",)

    def _open(self, session: msgspec.Raw, role: msgspec.Raw, parameters: msgspec.Raw, snapshot: msgspec.Raw) -> _Parts:
        arguments = (framing.decode_any(field) for field in (role, parameters, snapshot))
        self._sessions[framing.decode_any(session)] = self._loaded().open(*arguments)
        return ("done",)

    def _event(self, session: msgspec.Raw, tag: msgspec.Raw, fields: msgspec.Raw) -> _Parts:
        effects = self._sessions[framing.decode_any(session)].handle(framing.decode_event(tag, fields))
        try:
            return "effects", framing.effect_parts(effects)
        except (KeyError, TypeError) as error:
            raise _WrongType("handle did not return a sequence of effects") from error

    def _snapshot(self, session: msgspec.Raw, limit: msgspec.Raw) -> _Parts:
        snapshot = self._copy(session, limit)
        self._close(session)
        return snapshot

    def _copy(self, session: msgspec.Raw, limit: msgspec.Raw) -> _Parts:
        try:
            snapshot = self._sessions[framing.decode_any(session)].snapshot()
        # A worker without memory has to end. Any other error means only that this session cannot move.
        except MemoryError:
            raise
        except Exception as error:
            raise _Unmovable(_describe(error)) from error
        if len(_typed(snapshot, bytes)) > framing.decode_any(limit):
            raise _Unmovable(f"it has {len(snapshot)} bytes")
        return "bytes", snapshot

    def _close(self, session: msgspec.Raw) -> _Parts:
        self._sessions.pop(framing.decode_any(session), None)
        return ("done",)

    def _encode(self, message: msgspec.Raw) -> _Parts:
        try:
            data = self._loaded().encode(framing.decode_any(message))
        except ValueError as error:
            raise _Rejected from error
        return "bytes", _typed(data, bytes)

    def _decode(self, data: msgspec.Raw) -> _Parts:
        try:
            return "value", self._loaded().decode(framing.decode_any(data))
        except ValueError as error:
            raise _Rejected from error

    def _validate(self, message: msgspec.Raw, sender: msgspec.Raw) -> _Parts:
        issues = self._loaded().validate(framing.decode_any(message), framing.decode_any(sender))
        return "issues", [_typed(issue, str) for issue in issues]

    def _runtime(self) -> wasm.Engine:
        assert self._engine is not None, "the host asks only where wasmtime is installed"
        return self._engine

    def _loaded(self) -> Handler:
        assert self._handler is not None, "the host loads before it opens"
        return self._handler


def _failed(error: BaseException) -> _Parts:
    """Return the reply for an exception."""
    match error:
        case MemoryError():
            return "failed", "memory", ""
        case wasm.OutOfFuel():
            return "failed", "fuel", ""
        case SyntaxError():
            return "failed", "syntax", _describe(error)
        case _Rejected():
            return "failed", "rejected", _describe(error.__cause__ or error)
        case _Unmovable():
            return "failed", "unmovable", str(error)
        case _WrongType():
            return "failed", "type", _describe(error)
        case _:
            return "failed", "raised", _describe(error)


def _typed(value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise _WrongType(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def _describe(error: BaseException) -> str:
    """Describe the exception in one line, with its place in the handler's own files."""
    text = "".join(traceback.format_exception_only(error)).strip().replace("\n", " ")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(f"{importer.ROOT}/")]
    place = f" ({frames[-1].filename.removeprefix(importer.ROOT + '/')}, line {frames[-1].lineno})" if frames else ""
    return (text[:_MAX_TEXT] + place).encode("utf-8", "backslashreplace").decode("utf-8")


def map_native_code() -> None:
    """Map the native modules of the standard library that this version of Python has, and read those that most handlers need."""
    for name in (*_NATIVE, *_COMMON):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _harden(confinement: Confinement, memory: int, cpu: int) -> None:
    """Set resource limits, restrict this process and close descriptors. Raises `OSError` or `ValueError` if a step fails."""
    # A descriptor that the agent passed on by mistake could lead to its key or to a connection. Before the filter: it does not
    # allow close_range, and 65,000 calls of close would take longer than the rest of a start.
    os.closerange(3, 1 << 16)
    # CPU ends an endless loop also when the host has died. CORE: a core dump would put session data on the
    # disk. FSIZE and NOFILE hold even with isolation "none", where nothing else restricts files.
    limits = [
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 32),
    ]
    if sys.platform == "linux":
        # Address space, because Linux does not enforce RLIMIT_RSS. An allocation beyond it fails with MemoryError.
        limits.append((resource.RLIMIT_AS, memory))
    for limit, value in limits:
        # The hard limit too, so that the handler cannot raise it again.
        resource.setrlimit(limit, (value, value))
    confinement.restrict()  # after the limits: a filter does not allow setrlimit
    sys.stdin = sys.stdout = sys.stderr = None  # so print() does nothing instead of raising
    os.closerange(1, 3)  # last: an error before is told on descriptor 2


def _read_frame() -> bytes | None:
    """Return the payload of the next request; None if the host closed the pipe."""
    buffer = bytearray()
    while len(buffer) < framing.HEADER or len(buffer) < framing.HEADER + int.from_bytes(buffer[: framing.HEADER], "big"):
        piece = os.read(PIPE, 1 << 18)
        if not piece:
            return None
        buffer += piece
    return bytes(buffer[framing.HEADER :])


def _write_frame(frame: bytes) -> None:
    remaining = memoryview(frame)
    while remaining:
        remaining = remaining[os.write(PIPE, remaining) :]


def main() -> None:
    """Run until the host closes the pipe. Exit by `os._exit`, which does not run a handler's `atexit` functions."""
    name, role, machine = sys.argv[1:4]
    memory, cpu = map(int, sys.argv[4:6])
    confinement = _confinement(name, machine)
    engine = wasm.Engine.prepare()  # from files, and before the filter
    # The host's packages were needed to start. With isolation "none" a handler could import others beside them, which no sandbox
    # has.
    sys.path[:] = [path for path in sys.path if path not in sys.argv[6:]]
    map_native_code()  # the filter forbids it later
    if engine is not None:
        engine.seal()
    confinement.prepare()
    if role == "template" and isinstance(confinement, ForkedConfinement):
        from . import template

        template.run(confinement, lambda: serve(confinement, memory, cpu, engine))
    else:
        serve(confinement, memory, cpu, engine)
    os._exit(0)


def _confinement(name: str, machine: str) -> Confinement:
    # Each imports native code that the others do not need.
    match name:
        case "namespaces":
            from .namespaces import Namespaced

            return Namespaced(machine)
        case "process":
            from .process import Pathless

            return Pathless(machine)
        case _:
            return Confinement()


def serve(confinement: Confinement, memory: int, cpu: int, engine: wasm.Engine | None) -> None:
    """Restrict this process, then answer requests until the host closes the pipe."""
    _harden(confinement, memory, cpu)
    server = Server(engine)
    # After all restrictions: the host sends code of a handler only after this frame.
    _write_frame(framing.encode_frame("ready"))
    while (payload := _read_frame()) is not None:
        _write_frame(server.reply(payload))
