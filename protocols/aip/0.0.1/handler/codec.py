"""Encode and decode the messages of the field table in the wire format of Protocol Buffers, version 3.

A message is a JSON object with the names of the table. Bytes are base64, a map is an object, and an enumeration's value is its
name, or its number where the table has no name for it. A decoded message has all fields but absent messages
and members of a oneof.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

from treaty_handler import Value

from .fields import ENUMS, MESSAGES, Field

MAX_ITEMS = 4_096
"""Entries of all repeated fields and maps of one message together. The host's own cap on values is 20,000."""
MAX_FIELDS = 16_384
"""Fields of one message and all messages in it, also unknown ones. A message of 4 MiB may have two million, a second of work."""
MAX_DEPTH = 100
"""Groups within groups, as in the other implementations."""
_VARINT, _FIXED64, _LENGTH, _GROUP, _END_GROUP, _FIXED32 = range(6)


class Count:
    """The fields and items of one message that were read so far."""

    def __init__(self) -> None:
        self._fields = self._items = 0

    def add_field(self) -> None:
        """Count a field. Raises `ValueError` beyond the bound."""
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise ValueError(f"more than {MAX_FIELDS} fields")

    def add_items(self, count: int) -> None:
        """Count entries of a repeated field or a map. Raises `ValueError` beyond the bound."""
        self._items += count
        if self._items > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS} items")


def encode(message: str, value: Value) -> bytes:
    """Return the bytes of a message: fields in the order of their numbers, maps in the order of their keys, defaults left out.

    Raises `ValueError` for a value that is none of this message.
    """
    fields = MESSAGES[message]
    if not isinstance(value, dict) or value.keys() - {field.name for field in fields.values()}:
        raise ValueError(f"this is no {message}, or has a field that it does not define")
    members = [field.oneof for field in fields.values() if field.oneof and field.name in value]
    if len(members) > len(set(members)):
        raise ValueError(f"a {message} has one of its alternatives, not two")
    return b"".join(_field(field, value[field.name]) for _, field in sorted(fields.items()) if field.name in value)


def decode(message: str, data: bytes) -> dict[str, Value]:
    """Return the message in these bytes. Unknown fields are skipped, as the format wants it. Raises `ValueError`."""
    return _decode(message, data, Count())


def _field(field: Field, value: Value) -> bytes:
    if field.kind == "map":
        if not isinstance(value, dict):
            raise ValueError(f"{field.name} is no object of texts")
        entries = ({"key": key, "value": value[key]} for key in sorted(value, key=str.encode))
        # An entry has both fields, also empty ones, as the other implementations write it.
        return b"".join(lengthy(field.number, _entry(entry)) for entry in entries)
    if not field.repeated:
        return _single(field, value, keep_default=bool(field.oneof))
    if not isinstance(value, list):
        raise ValueError(f"{field.name} is no list")
    if field.kind in ENUMS:
        return lengthy(field.number, b"".join(_varint(_enum(field, item)) for item in value)) if value else b""
    return b"".join(_single(field, item, keep_default=True) for item in value)


def _entry(entry: dict[str, Value]) -> bytes:
    return b"".join(_single(field, entry[field.name], keep_default=True) for field in MESSAGES["MapEntry"].values())


def _single(field: Field, value: Value, *, keep_default: bool) -> bytes:
    """Encode one value. A message is kept also when it is empty: its presence has a meaning."""
    if field.kind in MESSAGES:
        return lengthy(field.number, encode(field.kind, value))
    if field.kind == "bool" or field.kind in ENUMS:
        if field.kind == "bool" and type(value) is not bool:
            raise ValueError(f"{field.name} is neither true nor false")
        number = int(value) if field.kind == "bool" else _enum(field, value)
        return varint_field(field.number, number) if number or keep_default else b""
    if type(value) is not str:
        raise ValueError(f"{field.name} is no text")
    try:
        data = base64.b64decode(value, validate=True) if field.kind == "bytes" else value.encode("utf-8")
    except (binascii.Error, UnicodeError) as error:
        raise ValueError(f"{field.name} is no {field.kind}") from error
    return lengthy(field.number, data) if data or keep_default else b""


def _enum(field: Field, value: Value) -> int:
    names = ENUMS[field.kind]
    if isinstance(value, str) and value in names:
        return names.index(value)
    if type(value) is int and -(2**31) <= value < 2**31:
        return value
    raise ValueError(f"{field.name} is none of {', '.join(names)}")


def lengthy(number: int, data: bytes) -> bytes:
    """Return a field of bytes."""
    return _varint(number << 3 | _LENGTH) + _varint(len(data)) + data


def varint_field(number: int, value: int) -> bytes:
    """Return a field of a number."""
    return _varint(number << 3 | _VARINT) + _varint(value)


def _varint(number: int) -> bytes:
    number &= 2**64 - 1  # a negative number is written with its sign in 64 bits
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _decode(message: str, data: bytes, count: Count) -> dict[str, Value]:
    """Decode; `count`: of this message and the ones around it."""
    fields, value = MESSAGES[message], _defaults(message)
    parts: dict[str, list[bytes]] = {}
    for number, wire, raw in read_fields(data, count):
        field = fields.get(number)
        if field is None or not _fits(field, wire):
            continue
        if field.oneof:
            # The last member of a oneof replaces the others.
            for other in fields.values():
                if other.oneof == field.oneof and other.name != field.name:
                    value.pop(other.name, None)
                    parts.pop(other.name, None)
        if field.kind in MESSAGES and not field.repeated:
            # A message that comes in several parts is their concatenation.
            parts.setdefault(field.name, []).append(_bytes(raw))
            value[field.name] = None
        else:
            _store(value, field, raw, count)
    by_name = {field.name: field for field in fields.values()}
    return value | {name: _decode(by_name[name].kind, b"".join(pieces), count) for name, pieces in parts.items()}


def _store(value: dict[str, Value], field: Field, raw: int | bytes, count: Count) -> None:
    if not field.repeated and field.kind != "map":
        value[field.name] = _scalar(field, raw)
        return
    packed = field.kind in ENUMS and isinstance(raw, bytes)
    items = _packed(field, _bytes(raw)) if packed else [raw]
    count.add_items(len(items))
    if field.kind == "map":
        entry = _decode("MapEntry", _bytes(raw), count)
        value[field.name][entry["key"]] = entry["value"]
    elif field.kind in MESSAGES:
        value[field.name].append(_decode(field.kind, _bytes(raw), count))
    else:
        value[field.name] += [_scalar(field, item) for item in items]


def _packed(field: Field, data: bytes) -> list[int | bytes]:
    if len(data) > MAX_ITEMS * 10:
        raise ValueError(f"{field.name} has more than {MAX_ITEMS} items")
    numbers: list[int | bytes] = []
    at = 0
    while at < len(data):
        number, at = _read_varint(data, at)
        numbers.append(number)
    return numbers


def _defaults(message: str) -> dict[str, Value]:
    return {
        field.name: _default(field) for field in MESSAGES[message].values() if not field.oneof and _default(field) is not None
    }


def _default(field: Field) -> Value:
    if field.kind == "map":
        return {}
    if field.repeated:
        return []
    if field.kind in ENUMS:
        return ENUMS[field.kind][0]
    return {"string": "", "bytes": "", "bool": False}.get(field.kind)


def _scalar(field: Field, raw: int | bytes) -> Value:
    if field.kind == "bool":
        return raw != 0
    if isinstance(raw, int):
        # An enumeration is an int32: the upper half of a longer number is cut off.
        number = (raw & 0xFFFFFFFF) - (raw << 1 & 0x100000000)
        names = ENUMS[field.kind]
        return names[number] if 0 <= number < len(names) else number
    if field.kind == "bytes":
        return base64.b64encode(raw).decode("ascii")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{field.name} is not UTF-8") from error


def _fits(field: Field, wire: int) -> bool:
    """Whether a field has this wire type. One with another is unknown; numbers of a repeated field come packed or one by one."""
    if field.kind in ENUMS or field.kind == "bool":
        return wire == _VARINT or (wire == _LENGTH and field.repeated)
    return wire == _LENGTH


def _bytes(raw: int | bytes) -> bytes:
    assert isinstance(raw, bytes)
    return raw


def read_fields(data: bytes, count: Count) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type and content of each field. Groups, which version 3 does not have, are skipped."""
    at, groups = 0, list[int]()
    while at < len(data):
        count.add_field()
        tag, at = _read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number < 2**29 or wire > _FIXED32:
            raise ValueError("a field has a number or a wire type that no field has")
        if wire in (_GROUP, _END_GROUP):
            _enter_or_leave(groups, number, wire)
            continue
        content, at = _content(data, at, wire)
        if not groups:
            yield number, wire, content
    if groups:
        raise ValueError("the message ends within a group")


def _enter_or_leave(groups: list[int], number: int, wire: int) -> None:
    if wire == _GROUP:
        groups.append(number)
        if len(groups) > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} groups within each other")
    elif not groups or groups.pop() != number:
        raise ValueError("a group ends that did not begin")


def _content(data: bytes, at: int, wire: int) -> tuple[int | bytes, int]:
    """Return the content of a field, and the place after it."""
    if wire == _VARINT:
        return _read_varint(data, at)
    length = {_FIXED64: 8, _FIXED32: 4}.get(wire)
    if length is None:
        length, at = _read_varint(data, at)
    if at + length > len(data):
        raise ValueError("a field is longer than its message")
    return data[at : at + length], at + length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(10):
        if at + place >= len(data):
            raise ValueError("the message ends within a number")
        byte = data[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number & 2**64 - 1, at + place + 1
    raise ValueError("a number has more than ten bytes")
