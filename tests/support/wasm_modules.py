"""Build WebAssembly modules byte by byte, valid ones and those that no compiler would write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HEADER = b"\0asm\1\0\0\0"
I32, I64 = b"\x7f", b"\x7e"
END = b"\x0b"


def leb(value: int, *, size: int = 1) -> bytes:
    """Return an unsigned LEB128 of at least `size` bytes."""
    encoded = bytearray()
    while value > 0x7F or len(encoded) < size - 1:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def signed(value: int) -> bytes:
    """Return a signed LEB128."""
    encoded = bytearray()
    while not -0x40 <= value < 0x40:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value & 0x7F])


def number(value: int) -> bytes:
    """Return the instruction for a constant of 32 bits."""
    return b"\x41" + signed(value)


def place(begin: int, size: int) -> bytes:
    """Return the instruction for the result of `handle`."""
    packed = begin << 32 | size
    return b"\x42" + signed(packed - (packed >> 63 << 64))


def vector(items: Sequence[bytes]) -> bytes:
    """Return the items with their number before them."""
    return leb(len(items)) + b"".join(items)


def sized(content: bytes) -> bytes:
    """Return the content with its size before it."""
    return leb(len(content)) + content


def section(number: int, content: bytes) -> bytes:
    """Return a section."""
    return bytes([number]) + sized(content)


def body(code: bytes, *, locals: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """Return a function's entry in the code section; `code` is without its last `end`."""
    return sized(vector([leb(count) + kind for count, kind in locals]) + code + END)


def signature(parameters: bytes, results: bytes) -> bytes:
    """Return a function's type."""
    return b"\x60" + sized(parameters) + sized(results)


def export(name: str, kind: int, index: int) -> bytes:
    """Return an export. `kind`: 0 a function, 1 a table, 2 a memory, 3 a global."""
    return sized(name.encode()) + bytes([kind]) + leb(index)


# The functions of the interface: `allocate` returns 1,024, `handle` an empty reply there.
TYPES = [signature(I32, I32), signature(I32 + I32, I64), signature(b"", b"")]
ALLOCATE, HANDLE, NOTHING = 0, 1, 2
CODE = [body(b"\x41\x80\x08"), body(b"\x42\x00")]
EXPORTS = [export("memory", 2, 0), export("allocate", 0, 0), export("handle", 0, 1)]


def handler(
    more: Sequence[bytes] = (),
    *,
    allocate: bytes = CODE[0],
    handle: bytes = CODE[1],
    types: Sequence[bytes] = TYPES,
    kinds: Sequence[int] | None = None,
    pages: bytes = b"\x00\x01",
    exports: Sequence[bytes] = EXPORTS,
    table: bytes = b"",
    globals: bytes = b"",
    before_code: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """Return a module with the exports of a handler and further function bodies, of the types `kinds`, or `NOTHING`.

    `pages`: the limits of its memory. `table`, `globals`, `before_code`, `after`: whole sections.
    """
    functions = [leb(ALLOCATE), leb(HANDLE), *(leb(kind) for kind in (kinds if kinds is not None else [NOTHING] * len(more)))]
    return b"".join(
        (
            *(HEADER, section(1, vector(types)), section(3, vector(functions)), table, section(5, vector([pages])), globals),
            *(section(7, vector(exports)), before_code, section(10, vector([allocate, handle, *more])), after),
        )
    )


def replying(reply: bytes, opened: bytes = b"", *, before: bytes = b"", **parts: Any) -> bytes:
    """Return a module that answers `open` with "done" and all else with `reply`, after the instructions `before`.

    `opened`: instructions in the place of the first answer.
    """
    done = b"\x91\xa4done"
    # The second letter of the request's kind: `open` alone has a p there.
    is_open = b"\x20\x00\x2d\x00\x03" + number(ord("p")) + b"\x46"
    handle = is_open + b"\x04\x7e" + (opened or place(16, len(done))) + b"\x05" + before + place(64, len(reply)) + b"\x0b"
    data = [b"\x00" + number(16) + END + sized(done), b"\x00" + number(64) + END + sized(reply)]
    # The request has a place behind the reply.
    allocate = body(number(64 + len(reply) + 7 & ~7))
    return handler(allocate=allocate, handle=body(handle), after=section(11, vector(data)), **parts)
