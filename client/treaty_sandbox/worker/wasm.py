"""Run a handler that is a WebAssembly module: compile it, and give an instance the requests of one session.

A module has the exports

    memory
    allocate (size: i32) -> i32             where the next request may be written
    handle (begin: i32, size: i32) -> i64   answer the request there; the reply's begin * 2^32 + its size

Requests and replies are payloads of `framing` without the number of the session, because each session has an instance of its own:

    ["open", role, parameters, snapshot]    ["done"]
    ["event", tag, fields]                  ["effects", [[tag, fields], …]]
    ["copy"]                                ["bytes", bytes], a snapshot; the session goes on
    ["encode", message]                     ["bytes", bytes]
    ["decode", bytes]                       ["value", message]
    ["validate", message, sender]           ["issues", [text, …]]
    (any of them)                           ["failed", reason, text]

The last three are given to an instance without a session, one for each. Reasons are `rejected` (of `encode` and `decode`),
`unmovable` (of `copy`), and `raised`. A reply may stand where the request did; it is read before the next call.

The runtime is wasmtime's interpreter (`pulley64`), because the filter forbids executable memory. So a fault of the compiler
makes no machine code that runs; a fault of the interpreter is inside the sandbox, as each of a Python handler. A module has no
clock, no randomness and no imports, NaNs are canonical, and fuel and memory are counted, so each run of a session has the same
effects on every machine.

The library must be mapped and its thread made known to it before the filter is installed: `Engine.prepare`.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import typing

import msgspec

from . import framing, kernel

if typing.TYPE_CHECKING:
    import wasmtime

SETTINGS = 1
"""The number of these settings. A change of them makes compiled modules of former settings unusable."""
MAX_MEMORY = 16 * 1024 * 1024
MAX_TABLE = 4_096
FUEL = 50_000_000
"""Instructions, about, that one request may run: half a second of a processor, a quarter of the time of an event."""
# Interpreted calls are this deep at most; the stack is of the module and not of this process.
MAX_STACK = 512 * 1024
# The host reads no longer replies.
MAX_REPLY = 4 * 1024 * 1024
_MAX_TEXT = 2_000
_REASONS = ("rejected", "unmovable")
_OFF = (
    *("threads", "tail_call", "simd", "relaxed_simd", "multi_memory", "memory64", "exceptions", "function_references", "gc"),
    *("wide_arithmetic", "custom_page_sizes", "stack_switching", "component_model"),
)
# (module (func (export "handle")))
_WARM = bytes.fromhex("0061736d01000000 010401600000 03020100 070a0106 68616e646c65 0000 0a040102000b")
_Parts = tuple[object, ...]


class OutOfFuel(Exception):
    """A request needed more than `FUEL`."""


class Engine:
    """Hold wasmtime with the settings of handlers."""

    def __init__(self, library: typing.Any) -> None:
        """Use `prepare`. `library`: the module `wasmtime`."""
        self.library = library
        config = library.Config()
        config.target = "pulley64"
        config.consume_fuel = True
        # Without it each thread would have its own order of work, and the filter allows no threads.
        config.parallel_compilation = False
        # A trap is a branch of the interpreter and no signal; a memory has no guard pages, and no reservation beyond its size.
        config.signals_based_traps = False
        config.memory_reservation = config.memory_guard_size = config.memory_reservation_for_growth = 0
        config.memory_may_move = True
        config.memory_init_cow = False  # it would need a file in memory
        config.native_unwind_info = False
        config.cranelift_nan_canonicalization = True
        config.max_wasm_stack = MAX_STACK
        # Code of the linear allocator (`single_pass`) is three times slower. This one needs a minute for functions with many
        # loops and variables: such are refused before (`treaty_consensus.handler.wasm`), and the worker's limits end the rest.
        config.cranelift_opt_level = "speed"
        for feature in _OFF:
            setattr(config, f"wasm_{feature}", False)
        self._engine = library.Engine(config)

    @classmethod
    def prepare(cls) -> Engine | None:
        """Return the engine, or None where wasmtime is not installed. Call it before the filter is installed."""
        with contextlib.suppress(ImportError):
            import wasmtime

            engine = cls(wasmtime)
            # The first call in a thread asks for its signal stack, which the filter forbids.
            store = wasmtime.Store(engine._engine)
            store.set_fuel(FUEL)
            wasmtime.Instance(store, wasmtime.Module(engine._engine, _WARM), []).exports(store)["handle"](store)  # type: ignore[operator]
            return engine
        return None

    def seal(self) -> None:
        """Take the right to write from the library's callbacks, whose page is also run. Raises `OSError`.

        Call it before the filter is installed. The process then makes no callback of its own, and ends by `os._exit`, which takes
        none down.
        """
        modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "wasmtime"]
        function: type = ctypes._CFuncPtr  # type: ignore[attr-defined]
        kernel.forbid_writes(value for module in modules for value in vars(module).values() if isinstance(value, function))

    def compile(self, module: bytes) -> bytes:
        """Return the compiled module, for `load`. Raises `SyntaxError` for one that is not valid."""
        try:
            return bytes(self.library.Module(self._engine, module).serialize())
        except self.library.WasmtimeError as error:
            raise SyntaxError(_line(error)) from error

    def load(self, code: bytes) -> wasmtime.Module:
        """Return a compiled module. Raises `ValueError` for one of another version or other settings.

        wasmtime trusts these bytes, so only a sandboxed worker calls this.
        """
        try:
            return typing.cast("wasmtime.Module", self.library.Module.deserialize(self._engine, code))
        except self.library.WasmtimeError as error:
            raise ValueError("not a compiled module of this runtime") from error

    def store(self) -> wasmtime.Store:
        """Return a store for one instance."""
        store: wasmtime.Store = self.library.Store(self._engine)
        store.set_fuel(FUEL)
        store.set_limits(memory_size=MAX_MEMORY, table_elements=MAX_TABLE, instances=1, tables=1, memories=1)
        return store


class _Function:
    """An export that takes and returns integers.

    The library's own call asks for the function's types each time, which takes 25 us of an event; this one takes 4.
    """

    def __init__(self, engine: Engine, store: wasmtime.Store, function: wasmtime.Func, parameters: int) -> None:
        """Prepare calls. `parameters`: how many of 32 bits it takes."""
        self._library, self._ffi, self._context = engine.library, engine.library._ffi, store._context()
        self._function = ctypes.byref(function._func)
        self._parameters, self._results = (self._ffi.wasmtime_val_t * parameters)(), (self._ffi.wasmtime_val_t * 1)()
        for value in self._parameters:
            value.kind = self._ffi.WASMTIME_I32

    def __call__(self, *values: int) -> int:
        """Return the result, without its sign. Raises `wasmtime.Trap`."""
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.of.i32 = value
        trap = ctypes.POINTER(self._ffi.wasm_trap_t)()
        sizes = len(self._parameters), len(self._results)
        error = self._ffi.wasmtime_func_call(
            self._context, self._function, self._parameters, sizes[0], self._results, sizes[1], ctypes.byref(trap)
        )
        if trap:
            raise self._library.Trap._from_ptr(trap)
        if error:
            raise self._library.WasmtimeError._from_ptr(error)
        result = self._results[0]
        is_short = result.kind == self._ffi.WASMTIME_I32.value
        return int(result.of.i32) & 0xFFFFFFFF if is_short else int(result.of.i64) & 0xFFFFFFFFFFFFFFFF


class Instance:
    """Run one session of a module."""

    def __init__(self, engine: Engine, module: wasmtime.Module) -> None:
        """Instantiate. Raises `ValueError` if the module's data or table do not fit."""
        self._engine, self._store = engine, engine.store()
        try:
            exports = engine.library.Instance(self._store, module, []).exports(self._store)
        except (engine.library.WasmtimeError, engine.library.Trap) as error:
            raise ValueError(_line(error)) from error
        self._memory = exports["memory"]
        self._allocate = _Function(engine, self._store, exports["allocate"], 1)
        self._handle = _Function(engine, self._store, exports["handle"], 2)
        self._is_broken = False

    def ask(self, expected: str, *request: object) -> _Parts:
        """Return the parts of the reply to a request. `expected`: its kind.

        A reply of another kind, and one that is none, is a failure of the reason `type`. Raises `ValueError` after a trap, and
        `OutOfFuel`; the instance answers nothing after either.
        """
        # Its memory may be half changed.
        if self._is_broken:
            raise ValueError("the session has ended by a trap")
        self._is_broken = True
        reply = self._run(framing.encode_payload(*request))
        self._is_broken = False
        try:
            kind, fields = framing.decode_reply(reply)
            if kind == "failed":
                reason, text = (framing.decode_any(field) for field in fields)
                known = reason if reason in _REASONS else "raised"
                return "failed", known, text[:_MAX_TEXT] if isinstance(text, str) else ""
        except ValueError:
            return "failed", "type", "the module's reply is none"
        if kind != expected or len(fields) != (expected != "done"):
            return "failed", "type", f"the module's reply is not {expected}"
        return expected, *fields

    def _run(self, request: bytes) -> bytes:
        store, library = self._store, self._engine.library
        store.set_fuel(FUEL)
        try:
            begin = self._allocate(len(request))
            if begin + len(request) > self._memory.data_len(store):
                raise ValueError("allocate returned a place beyond the memory")
            self._memory.write(store, request, begin)
            packed = self._handle(begin, len(request))
        except library.Trap as trap:
            if trap.trap_code is library.TrapCode.OUT_OF_FUEL:
                raise OutOfFuel from trap
            raise ValueError(_line(trap)) from trap
        begin, size = packed >> 32, packed & 0xFFFFFFFF
        if size > MAX_REPLY or begin + size > self._memory.data_len(store):
            raise ValueError("handle returned a place beyond the memory, or more than 4 MiB")
        return bytes(self._memory.read(store, begin, begin + size))


class WasmHandler:
    """Answer the requests of `framing` by the sessions of one module."""

    def __init__(self, engine: Engine, code: bytes) -> None:
        """Load a compiled module. Raises `ValueError` as `Engine.load`."""
        self._engine, self._module = engine, engine.load(code)
        self._sessions: dict[int, Instance] = {}

    def open(self, session: msgspec.Raw, *arguments: msgspec.Raw) -> _Parts:
        instance = self._fresh()
        reply = instance.ask("done", "open", *arguments)
        if reply[0] == "done":
            self._sessions[framing.decode_any(session)] = instance
        return reply

    def event(self, session: msgspec.Raw, tag: msgspec.Raw, fields: msgspec.Raw) -> _Parts:
        return self._session(session).ask("effects", "event", tag, fields)

    def copy(self, session: msgspec.Raw, limit: msgspec.Raw) -> _Parts:
        reply = self._session(session).ask("bytes", "copy")
        # Of the encoded bytes: their header takes some of the limit. The host reads no longer ones.
        if reply[0] == "bytes" and len(memoryview(typing.cast("msgspec.Raw", reply[1]))) > framing.decode_any(limit):
            return "failed", "unmovable", "it is too long"
        return reply

    def snapshot(self, session: msgspec.Raw, limit: msgspec.Raw) -> _Parts:
        reply = self.copy(session, limit)
        if reply[0] == "bytes":
            self.close(session)
        return reply

    def close(self, session: msgspec.Raw) -> _Parts:
        self._sessions.pop(framing.decode_any(session), None)
        return ("done",)

    def encode(self, message: msgspec.Raw) -> _Parts:
        return self._fresh().ask("bytes", "encode", message)

    def decode(self, data: msgspec.Raw) -> _Parts:
        return self._fresh().ask("value", "decode", data)

    def validate(self, message: msgspec.Raw, sender: msgspec.Raw) -> _Parts:
        return self._fresh().ask("issues", "validate", message, sender)

    def _fresh(self) -> Instance:
        return Instance(self._engine, self._module)

    def _session(self, session: msgspec.Raw) -> Instance:
        return self._sessions[framing.decode_any(session)]


def _line(error: Exception) -> str:
    """Return the cause that an error's text names last, in one line."""
    text = " ".join(str(error).split())
    return text.rpartition("wasm trap: ")[2].removesuffix("; see Module::new documentation")[-_MAX_TEXT:]
