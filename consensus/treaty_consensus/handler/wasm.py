"""Check that a WebAssembly module can be a handler, and that compiling it is cheap.

A module is the file `handler.wasm` of a package whose manifest says `"runtime": "wasm"`. It is a core module (WebAssembly Core
Specification, "Binary Format") in a subset that every compiler for `wasm32` can write:

- The instructions of version 1, sign extension, conversions that saturate, and copies and fills of memory. Blocks may have
  several values. No vectors, threads, references, tail calls, exceptions, garbage collection or 64-bit memories.
- No imports, so it reaches nothing, and no start function, so nothing runs before the first request.
- One memory, and at most one table, which no instruction changes.
- The exports `memory`, `allocate (i32) -> i32` and `handle (i32, i32) -> i64`.
- No custom sections but `producers` and `target_features`: every byte has a meaning.

A compiler can be attacked: a module of some kilobytes in which many loops use many variables takes it minutes. So functions,
their variables and their branches have caps. A check reads each byte once. It does not check types: a runtime validates a
module before it compiles it, and refuses it then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..codes import HandlerCode
from ..errors import Malformed, Refused, TooLarge

MODULE_NAME = "handler.wasm"
"""The file of the module in the package."""
MAX_MODULE = 512 * 1024
MAX_PAGES = 256
"""The pages of 64 KiB that a module may ask for at its start. A host lets its memory grow to as many."""
MAX_FUNCTIONS = 4_096
MAX_TYPES = 1_024
MAX_GLOBALS = 1_024
MAX_EXPORTS = 64
MAX_SEGMENTS = 1_024
MAX_TABLE = 4_096
# Of one function, with its parameters.
MAX_LOCALS = 512
MAX_PARAMETERS = 32
MAX_BODY = 64 * 1024
MAX_DEPTH = 4_096
MAX_BRANCHES = 4_096
# Of a function: its variables times its places, at each of which a compiler may move each of them. A loop is 8 places, because
# later code may change what it begins with; another block or a target of a branch is 1.
MAX_WEIGHT = 262_144
# Of all functions together.
MAX_WEIGHTS = 524_288
MAX_CALLS = 32_768
MAX_NAME = 64
MAX_CUSTOM = 4_096

_HEADER = b"\0asm\1\0\0\0"
_CUSTOM_NAMES = (b"producers", b"target_features")
# The sections by their numbers, in the order that they must have. Import (2), start (8) and tag (13) are not among them.
_TYPES, _FUNCTIONS, _TABLES, _MEMORIES, _GLOBALS, _EXPORTS, _ELEMENTS, _DATA_COUNT, _CODE, _DATA = 1, 3, 4, 5, 6, 7, 9, 12, 10, 11
_ORDER = (_TYPES, _FUNCTIONS, _TABLES, _MEMORIES, _GLOBALS, _EXPORTS, _ELEMENTS, _DATA_COUNT, _CODE, _DATA)
_NAMED = {2: "imports", 8: "a start function", 13: "exceptions"}
_I32, _I64 = 0x7F, 0x7E
_NUMBERS = (0x7C, 0x7D, _I64, _I32)
_FUNCTION_EXPORT, _MEMORY_EXPORT = 0, 2
_REQUIRED = {b"allocate": ((_I32,), (_I32,)), b"handle": ((_I32, _I32), (_I64,))}

# An LEB128 of 32 or of 64 bits. Linkers pad them, so a longer spelling is legal up to the size of the type.
_U32 = rb"[\x80-\xff]{0,4}+[\x00-\x7f]"
_U64 = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_LEB = re.compile(_U32, re.DOTALL)
# Instructions in a row that are neither blocks, branches nor calls. In C, because a loop in Python would take seconds.
_PLAIN = re.compile(
    rb"(?:[\x00\x01\x0f\x1a\x1b\x45-\xc4]"  # unreachable, nop, return, drop, select, numbers
    rb"|[\x20-\x24]"
    + _U32  # variables
    + rb"|[\x28-\x3e]"
    + _U32
    + _U32  # loads and stores
    + rb"|\x41"
    + _U32
    + rb"|\x42"
    + _U64
    + rb"|\x43.{4}|\x44.{8}"  # constants
    rb"|[\x3f\x40]\x00|\x1c\x01[\x7c-\x7f]"  # the size of the memory, select with a type
    rb"|\xfc(?:[\x00-\x07]|\x08" + _U32 + rb"\x00|\x09" + _U32 + rb"|\x0a\x00\x00|\x0b\x00)"  # saturation, memory
    rb")*+",
    re.DOTALL,
)
_BLOCK_TYPE = re.compile(rb"[\x40\x7c-\x7f]|" + _U32, re.DOTALL)
_CONSTANT = re.compile(rb"(?:\x41" + _U32 + rb"|\x42" + _U64 + rb"|\x43.{4}|\x44.{8}|\x23" + _U32 + rb")\x0b", re.DOTALL)
_LOOP, _BLOCKS, _ELSE, _END = 0x03, (0x02, 0x03, 0x04), 0x05, 0x0B
_BRANCHES, _TABLE_BRANCH, _CALL, _INDIRECT = (0x0C, 0x0D), 0x0E, 0x10, 0x11


@dataclass(frozen=True, slots=True)
class _Signature:
    parameters: tuple[int, ...]
    results: tuple[int, ...]


def check_module(data: bytes) -> None:
    """Check a module against every rule above. Linear in its size.

    Raises `TooLarge`, `Malformed` or `Refused` (`handler.package`).
    """
    if len(data) > MAX_MODULE:
        raise TooLarge(HandlerCode.PACKAGE, f"{MODULE_NAME} has at most {MAX_MODULE} bytes, this one has {len(data)}.")
    if not data.startswith(_HEADER):
        raise Malformed(HandlerCode.PACKAGE, f"{MODULE_NAME} is not a WebAssembly core module of version 1.")
    sections = _sections(data)
    signatures = _signatures(_Reader(data, *sections.get(_TYPES, (0, 0))))
    kinds = _kinds(_Reader(data, *sections.get(_FUNCTIONS, (0, 0))), signatures)
    _check_tables(_Reader(data, *sections.get(_TABLES, (0, 0))))
    _check_memories(_Reader(data, *sections.get(_MEMORIES, (0, 0))))
    _check_globals(_Reader(data, *sections.get(_GLOBALS, (0, 0))))
    _check_exports(_Reader(data, *sections.get(_EXPORTS, (0, 0))), kinds)
    _check_elements(_Reader(data, *sections.get(_ELEMENTS, (0, 0))))
    if _DATA_COUNT in sections:
        count = _Reader(data, *sections[_DATA_COUNT])
        count.number(MAX_SEGMENTS, "segments of data")
        count.finish()
    _check_code(_Reader(data, *sections.get(_CODE, (0, 0))), kinds)
    _check_data(_Reader(data, *sections.get(_DATA, (0, 0))))


class _Reader:
    """Read a part of the module. Every method raises `TooLarge` or `Malformed` rather than read beyond it."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def byte(self) -> int:
        if self.at >= self.end:
            raise _truncated()
        self.at += 1
        return self.data[self.at - 1]

    def number(self, limit: int, of: str) -> int:
        """Return an unsigned LEB128 of 32 bits. `of`: the things that it counts."""
        match = _LEB.match(self.data, self.at, self.end)
        if match is None:
            raise _malformed("a number is longer than 32 bits or ends too early")
        self.at = match.end()
        value = 0
        for place, byte in enumerate(match[0]):
            value |= (byte & 0x7F) << 7 * place
        if value > limit:
            raise TooLarge(HandlerCode.PACKAGE, f"{MODULE_NAME} has {value} {of}; at most {limit} are allowed.")
        return value

    def skip(self, size: int) -> bytes:
        """Return the next bytes."""
        if size > self.end - self.at:
            raise _truncated()
        self.at += size
        return self.data[self.at - size : self.at]

    def match(self, pattern: re.Pattern[bytes], what: str) -> None:
        """Skip the bytes that match."""
        match = pattern.match(self.data, self.at, self.end)
        if match is None:
            raise _malformed(f"{what} is none that a handler may have")
        self.at = match.end()

    def finish(self) -> None:
        """Check that all was read."""
        if self.at != self.end:
            raise _malformed("a section or function has bytes after its end")


def _sections(data: bytes) -> dict[int, tuple[int, int]]:
    """Return number → begin and end of each section but custom ones."""
    reader, sections, last = _Reader(data, len(_HEADER), len(data)), dict[int, tuple[int, int]](), -1
    while reader.at < reader.end:
        number, size = reader.byte(), reader.number(MAX_MODULE, "bytes in a section")
        begin = reader.at
        reader.skip(size)
        if number == 0:
            _check_custom(_Reader(data, begin, reader.at))
            continue
        if number not in _ORDER:
            raise Refused(
                HandlerCode.PACKAGE, f"{MODULE_NAME} has {_NAMED.get(number, 'a section of a later version')}.", fix=_FIX
            )
        if _ORDER.index(number) <= last:
            raise _malformed("a section occurs twice or out of order")
        last = _ORDER.index(number)
        sections[number] = begin, reader.at
    return sections


def _check_custom(reader: _Reader) -> None:
    size = reader.end - reader.at
    name = reader.skip(reader.number(MAX_MODULE, "bytes in a name"))
    if name not in _CUSTOM_NAMES or size > MAX_CUSTOM:
        raise Refused(HandlerCode.PACKAGE, f"{MODULE_NAME} has the custom section {ascii(name)[:80]} of {size} bytes.", fix=_FIX)


def _signatures(reader: _Reader) -> list[_Signature]:
    signatures = []
    for _ in range(reader.number(MAX_TYPES, "types") if reader.at < reader.end else 0):
        if reader.byte() != 0x60:
            raise _malformed("a type is not that of a function")
        lists = [tuple(_numbers(reader)) for _ in range(2)]
        signatures.append(_Signature(*lists))
    reader.finish()
    return signatures


def _numbers(reader: _Reader) -> bytes:
    kinds = reader.skip(reader.number(MAX_PARAMETERS, "parameters or results"))
    if any(kind not in _NUMBERS for kind in kinds):
        raise _malformed("a value is neither an integer nor a float")
    return kinds


def _kinds(reader: _Reader, signatures: list[_Signature]) -> list[_Signature]:
    """Return the type of each function."""
    kinds = []
    for _ in range(reader.number(MAX_FUNCTIONS, "functions") if reader.at < reader.end else 0):
        index = reader.number(0xFFFFFFFF, "types")
        if index >= len(signatures):
            raise _malformed("a function has a type that the module lacks")
        kinds.append(signatures[index])
    reader.finish()
    return kinds


def _limits(reader: _Reader, limit: int, of: str) -> None:
    flags = reader.byte()
    # Bit 0 says that a maximum follows. The others are for shared and 64-bit memories.
    if flags & ~1:
        raise _malformed("a table or memory is shared, of 64 bits or of another page size")
    reader.number(limit, of)
    if flags:
        reader.number(0xFFFFFFFF, of)


def _check_tables(reader: _Reader) -> None:
    for _ in range(reader.number(1, "tables") if reader.at < reader.end else 0):
        if reader.byte() != 0x70:
            raise _malformed("a table holds something else than functions")
        _limits(reader, MAX_TABLE, "entries in its table")
    reader.finish()


def _check_memories(reader: _Reader) -> None:
    if reader.at == reader.end or reader.number(1, "memories") != 1:
        raise _malformed("it has no memory")
    _limits(reader, MAX_PAGES, "pages of memory at its start")
    reader.finish()


def _check_globals(reader: _Reader) -> None:
    for _ in range(reader.number(MAX_GLOBALS, "globals") if reader.at < reader.end else 0):
        if reader.byte() not in _NUMBERS or reader.byte() > 1:
            raise _malformed("a global is neither an integer nor a float")
        reader.match(_CONSTANT, "the value of a global")
    reader.finish()


def _check_exports(reader: _Reader, kinds: list[_Signature]) -> None:
    exports = dict[bytes, tuple[int, int]]()
    for _ in range(reader.number(MAX_EXPORTS, "exports") if reader.at < reader.end else 0):
        name = reader.skip(reader.number(MAX_NAME, "bytes in the name of an export"))
        entry = reader.byte(), reader.number(0xFFFFFFFF, "exports")
        if name in exports:
            raise _malformed("two exports have one name")
        exports[name] = entry
    reader.finish()
    for name, (parameters, results) in _REQUIRED.items():
        kind, index = exports.get(name, (None, 0))
        if kind != _FUNCTION_EXPORT or index >= len(kinds) or kinds[index] != _Signature(parameters, results):
            raise Refused(
                HandlerCode.PACKAGE, f"{MODULE_NAME} does not export the function {name.decode()} of its type.", fix=_FIX
            )
    if exports.get(b"memory") != (_MEMORY_EXPORT, 0):
        raise Refused(HandlerCode.PACKAGE, f"{MODULE_NAME} does not export its memory as memory.", fix=_FIX)


def _check_elements(reader: _Reader) -> None:
    left = MAX_TABLE
    for _ in range(reader.number(MAX_SEGMENTS, "segments of its table") if reader.at < reader.end else 0):
        if reader.byte() != 0:
            raise _malformed("a segment of its table is not written at its start")
        reader.match(_CONSTANT, "the place of a segment")
        count = reader.number(left, "entries in its table")
        left -= count
        for _ in range(count):
            reader.number(0xFFFFFFFF, "functions")
    reader.finish()


def _check_data(reader: _Reader) -> None:
    for _ in range(reader.number(MAX_SEGMENTS, "segments of data") if reader.at < reader.end else 0):
        match reader.byte():
            case 0:
                reader.match(_CONSTANT, "the place of a segment")
            case 1:
                pass  # written by an instruction
            case _:
                raise _malformed("a segment of data is for another memory")
        reader.skip(reader.number(MAX_MODULE, "bytes of data"))
    reader.finish()


def _check_code(reader: _Reader, kinds: list[_Signature]) -> None:
    if (reader.number(MAX_FUNCTIONS, "functions") if reader.at < reader.end else 0) != len(kinds):
        raise _malformed("the numbers of functions and of their bodies differ")
    weights = calls = 0
    for kind in kinds:
        size = reader.number(MAX_BODY, "bytes in a function")
        body = _Reader(reader.data, reader.at, reader.at + size)
        reader.skip(size)
        variables = _variables(body, len(kind.parameters))
        places, called = _check_body(body)
        weight = places * (variables + 1)
        weights, calls = weights + weight, calls + called
        if weight > MAX_WEIGHT or weights > MAX_WEIGHTS or calls > MAX_CALLS:
            raise TooLarge(
                HandlerCode.PACKAGE,
                f"{MODULE_NAME} is too costly to compile: a function weighs at most {MAX_WEIGHT}, all weigh {MAX_WEIGHTS}, with"
                f" {MAX_CALLS} calls.",
                fix="Divide the functions that have most loops and variables.",
            )
    reader.finish()


def _variables(body: _Reader, parameters: int) -> int:
    """Return the number of variables of a function, parameters included."""
    variables = parameters
    for _ in range(body.number(MAX_LOCALS, "groups of variables in a function")):
        variables += body.number(MAX_LOCALS, "variables in a function")
        if body.byte() not in _NUMBERS:
            raise _malformed("a variable is neither an integer nor a float")
    if variables > MAX_LOCALS:
        raise TooLarge(HandlerCode.PACKAGE, f"{MODULE_NAME} has {variables} variables in a function; {MAX_LOCALS} are allowed.")
    return variables


def _check_body(body: _Reader) -> tuple[int, int]:
    """Return the numbers of places and of calls."""
    depth, places, branches, calls = 1, 0, 0, 0
    while depth:
        body.match(_PLAIN, "an instruction")
        operation = body.byte()
        if operation == _END:
            depth -= 1
        elif operation in _BLOCKS:
            depth, places = depth + 1, places + (8 if operation == _LOOP else 1)
            body.match(_BLOCK_TYPE, "the type of a block")
        elif operation == _ELSE:
            places += 1
        elif operation in _BRANCHES:
            branches += 1
            body.number(0xFFFFFFFF, "blocks")
        elif operation == _TABLE_BRANCH:
            count = body.number(MAX_BRANCHES, "branches in a function") + 1
            branches += count
            for _ in range(count):
                body.match(_LEB, "the target of a branch")
        elif operation == _CALL:
            calls += 1
            body.number(0xFFFFFFFF, "functions")
        elif operation == _INDIRECT:
            calls += 1
            body.number(0xFFFFFFFF, "types")
            body.number(0, "tables before one that a call uses")
        else:
            raise _malformed(f"the instruction {operation:#04x} is none that a handler may have")
        if max(branches, calls) > MAX_BRANCHES or depth > MAX_DEPTH:
            raise TooLarge(
                HandlerCode.PACKAGE,
                f"A function of {MODULE_NAME} has more than {MAX_BRANCHES} branches or calls, or is nested deeper.",
            )
    body.finish()
    return places + branches, calls


def _malformed(fault: str) -> Malformed:
    return Malformed(HandlerCode.PACKAGE, f"{MODULE_NAME} is not a module that can be a handler: {fault}.", fix=_FIX)


def _truncated() -> Malformed:
    return _malformed("it ends in the middle of a part")


_FIX = "Build it for wasm32 without imports, features of later versions and debug information: docs/guides/handlers.md."
