"""Change a message as a faulty or hostile peer would.

A JSON message loses each member, gets values of other types, empty, unknown and very long ones in its place, and is sent as no
JSON at all. Another message loses bytes, gets other bytes, and grows. For example, of {"id": "1", "n": 2}:

    without id              {"n": 2}
    n = null                {"id": "1", "n": null}
    cut in half             {"id": "1
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from treaty_handler import Value, decode_json, encode_json

LONG = 5_000
"""Characters of a long text: more than a note, an id or an error message may have."""
_MAX_MEMBERS = 40
_MAX_DEPTH = 6
_MAX_FLIPS = 8
_COPIES = 50
_OF_TEXT: tuple[Value, ...] = (None, 7, {}, [], "", "no-such-value", "x" * 600, "x" * LONG)
_OF_NUMBER: tuple[Value, ...] = (None, "7", {}, True, -1, 0, 2**53 - 1, 1.5)
_OTHERS: tuple[Value, ...] = (None, 7, "no-such-value", {}, [])
_Path = tuple[str | int, ...]


def mutations(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield other messages, each with a few words about its change. The number is bounded."""
    yield "no bytes", b""
    yield "cut in half", data[: len(data) // 2]
    yield "text that is not UTF-8", b'{"\xff": 1}'
    try:
        message = decode_json(data)
    except ValueError:
        yield from _of_bytes(data)
        return
    yield "null", b"null"
    yield "a list of it", b"[" + data + b"]"
    yield "nested 5,000 deep", b"[" * 5_000
    for path, value in islice(_members(message, ()), _MAX_MEMBERS):
        if isinstance(path[-1], str):
            yield f"without {_dotted(path)}", encode_json(_changed(message, path, None, is_removed=True))
        for other in _others(value):
            # By class too: True and 1 are equal for Python.
            if type(other) is not type(value) or other != value:
                yield f"{_dotted(path)} = {_shown(other)}", encode_json(_changed(message, path, other))


def _of_bytes(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "without its last byte", data[:-1]
    yield "twice in one message", data + data
    yield f"with {LONG} more bytes", data + b"\xff" * LONG
    for place in range(0, len(data), max(1, -(-len(data) // _MAX_FLIPS))):
        yield f"another byte {place + 1}", data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


def _members(value: Value, path: _Path) -> Iterator[tuple[_Path, Value]]:
    """Yield the members of a value, outer ones first; of a list the first item."""
    inner: list[tuple[_Path, Value]] = []
    if isinstance(value, dict):
        inner = [((*path, name), member) for name, member in value.items()]
    elif isinstance(value, list):
        inner = [((*path, 0), value[0])] if value else []
    yield from inner
    if len(path) < _MAX_DEPTH:
        for place, member in inner:
            yield from _members(member, place)


def _others(value: Value) -> tuple[Value, ...]:
    match value:
        case str():
            return _OF_TEXT
        case bool():
            return _OTHERS
        case int() | float():
            return _OF_NUMBER
        case [first, *_]:
            return (*_OTHERS, [first] * _COPIES)
        case _:
            return _OTHERS


def _changed(value: Value, path: _Path, other: Value, *, is_removed: bool = False) -> Value:
    """Return a copy with another value at a place, or without it."""
    place, rest = path[0], path[1:]
    copied: Any = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        copied[place] = _changed(value[place], rest, other, is_removed=is_removed)
    elif is_removed:
        del copied[place]
    else:
        copied[place] = other
    return copied


def _dotted(path: _Path) -> str:
    return ".".join(str(place) for place in path)[:80]


def _shown(value: Value) -> str:
    text = encode_json(value).decode()
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"
