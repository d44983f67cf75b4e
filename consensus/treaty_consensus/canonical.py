"""Encode and decode canonical bytes: RFC 8785 JSON, SHA-256 digests, padded standard base64.

All signed and hashed JSON is JCS (RFC 8785) with limits that every language can read: no floats, integers within ±(2^53-1)
(larger ones are decimal strings), no duplicate names, strings without lone surrogates. Parsing is strict: bytes that
re-encode differently are refused, so each value has one encoding.

    >>> dumps({"b": 1, "a": "é"})
    b'{"a":"\\xc3\\xa9","b":1}'
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec
import rfc8785

from .codes import CanonicalCode
from .errors import Malformed, TooLarge

# The largest integer that a double holds exactly, so JavaScript reads it too (RFC 7493 §2.2).
MAX_INTEGER = 2**53 - 1
# Well below the recursion limits of common JSON parsers.
MAX_DEPTH = 32
# The default of `parse_json`: objects for so many values take about 0.1 s to build.
MAX_VALUES = 131_072

_ENCODER = msgspec.json.Encoder(order="sorted")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# RFC 8785 §3.2.3 sorts by UTF-16 code units. Only from U+D800 on does that differ from code points.
# These are the first bytes of U+E000 and above in UTF-8; a checked text has no surrogates.
_HIGH = re.compile(rb"[\xee-\xf4]")
_DECIMAL = re.compile(r"0|[1-9][0-9]*")


def dumps(value: object) -> bytes:
    """Return the JCS bytes of a value.

    `value`: made of dict, list, str, int, bool and None.

    Raises `Malformed` (`canonical.*`) for any other value.
    """
    _check(value, MAX_DEPTH)
    return _encode(value)


def join_array(items: Iterable[bytes]) -> bytes:
    """Return the JCS bytes of an array whose items are JCS bytes."""
    return b"[" + b",".join(items) + b"]"


def join_object(members: Mapping[str, bytes]) -> bytes:
    """Return the JCS bytes of an object whose values are JCS bytes. The names are ASCII."""
    return b"{" + b",".join(dumps(name) + b":" + value for name, value in sorted(members.items())) + b"}"


def loads(data: bytes, *, limit: int, name: str = "JSON") -> Any:
    """Parse canonical JSON of at most `limit` bytes.

    `name`: the name of the value in error messages.

    Raises `TooLarge`, or `Malformed` when `data` is not its own JCS form.
    """
    value = parse_json(data, limit=limit, name=name, values=limit)
    # Readers of other encodings could disagree, and one value would have several digests.
    if _encode(value) != data:
        raise Malformed(CanonicalCode.JSON, f"This {name} is not in canonical form (RFC 8785).")
    return value


def parse_json(data: bytes, *, limit: int, name: str = "JSON", values: int = MAX_VALUES, floats: bool = False) -> Any:
    """Parse strict JSON, canonical or not: UTF-8, no duplicate names, no lone surrogates, at most 32 levels.

    `limit`, `values`: the largest number of bytes and of values.
    `name`: the name of the value in error messages.
    `floats`: read every number of RFC 8259, for messages that are neither signed nor hashed. `1.0` and `1e0` are then the integer
    1; a number that is no integer within ±(2^53-1) is a float, infinite beyond the range of doubles. Else only plain integers
    are read.

    Raises `TooLarge` (`canonical.too-large`) or `Malformed` (`canonical.*`).
    """
    if len(data) > limit:
        raise TooLarge(CanonicalCode.TOO_LARGE, f"This {name} has {len(data)} bytes; at most {limit} are read.")
    # Each value has at least one byte, so short data need no count.
    if len(data) > values and count_values(data) > values:
        raise TooLarge(CanonicalCode.TOO_LARGE, f"This {name} has more than {values} values.")
    try:
        text = data.decode("utf-8")
        value = (_ANY_NUMBER if floats else _INTEGERS).decode(text)
    # Very deep nesting exhausts the parser before the check of the depth below.
    except (ValueError, RecursionError) as error:
        raise Malformed(CanonicalCode.JSON, f"This {name} is not valid JSON: {error}.") from error
    _check(value, MAX_DEPTH, floats=floats)
    return value


def count_values(data: bytes) -> int:
    """Return an upper bound for the number of values in JSON, without parsing it. For other bytes the result has no meaning."""
    # Remove escaped backslashes and quotes; every second part between quotes is then outside of strings.
    outside = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    return 1 + outside.count(b",") + outside.count(b"[") + outside.count(b"{")


def sha256(data: bytes) -> bytes:
    """Return the 32 raw bytes of SHA-256."""
    return hashlib.sha256(data).digest()


def hex_digest(data: bytes) -> str:
    """Return SHA-256 as 64 lower-case hexadecimal digits, the form of every digest in JSON and URLs."""
    return hashlib.sha256(data).hexdigest()


def parse_digest(text: str) -> str:
    """Return `text` if it is 64 lower-case hexadecimal digits. Raises `Malformed` (`canonical.text`)."""
    if not _DIGEST.fullmatch(text):
        raise Malformed(CanonicalCode.TEXT, "A digest must be 64 lower-case hexadecimal digits.")
    return text


def parse_decimal(text: str, *, limit: int) -> int:
    """Return a non-negative decimal integer of at most `limit`.

    No sign, leading zero or separator is accepted.

    Raises `Malformed` (`canonical.text`).
    """
    # The length first, because `int` takes quadratic time on long text.
    if len(text) > len(str(limit)) or not _DECIMAL.fullmatch(text) or int(text) > limit:
        raise Malformed(CanonicalCode.TEXT, f"A number must be plain decimal digits, at most {limit}.")
    return int(text)


def b64encode(data: bytes) -> str:
    """Return padded standard base64 (RFC 4648 §4)."""
    return base64.b64encode(data).decode("ascii")


def b64decode(text: str, *, limit: int) -> bytes:
    """Decode padded standard base64 of at most `limit` bytes; the strict inverse of `b64encode`.

    Raises `TooLarge` (`canonical.too-large`) or `Malformed` (`canonical.text`).
    """
    # Checked before decoding, so that long foreign text costs nothing.
    if len(text) > (limit + 2) // 3 * 4:
        raise TooLarge(CanonicalCode.TOO_LARGE, f"This base64 decodes to more than {limit} bytes.")
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise Malformed(CanonicalCode.TEXT, "The text is not padded standard base64.") from error
    # Unused bits of the last character may be set: then two texts decode to the same bytes.
    if b64encode(data) != text:
        raise Malformed(CanonicalCode.TEXT, "The base64 text has bits after its last byte. Encode the bytes again.")
    return data


def _encode(value: Any) -> bytes:
    """Return the JCS bytes of a checked value.

    The encoder of msgspec is written in C and produces the same bytes in almost all cases. JCS sorts names by UTF-16 code units,
    msgspec by code points. The orders differ only beyond U+D7FF, and then `rfc8785` encodes the value.
    """
    encoded = _ENCODER.encode(value)
    return rfc8785.dumps(value) if not encoded.isascii() and _HIGH.search(encoded) else encoded


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    # RFC 8259 §4 leaves repeated names open: one reader takes the first value, another the last.
    if len(value) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return value


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"{text[:24]} is not an integer")


def _integer(text: str) -> int:
    if len(text) > 17:  # "-" and sixteen digits; `int` takes quadratic time on long text
        raise ValueError("an integer is beyond 2^53-1")
    return int(text)


def _number(text: str) -> int | float:
    # By way of `float`, whose time is linear in the text; that of `int` is quadratic.
    value = float(text)
    return int(value) if -MAX_INTEGER <= value <= MAX_INTEGER and value.is_integer() else value


def _check(value: object, depth: int, *, floats: bool = False) -> None:
    if depth < 0:
        raise Malformed(CanonicalCode.JSON, f"JSON is nested deeper than {MAX_DEPTH} levels.")
    match value:
        case str():
            if not value.isascii():
                _check_text(value)
        case int():
            if not -MAX_INTEGER <= value <= MAX_INTEGER:
                raise Malformed(CanonicalCode.JSON, "An integer is beyond 2^53-1. Write it as a decimal string.")
        case list() | tuple() | dict():
            if isinstance(value, dict):
                for name in value:
                    if not isinstance(name, str):
                        raise Malformed(CanonicalCode.JSON, "Names in an object must be strings.")
                    if not name.isascii():
                        _check_text(name)
            for item in value.values() if isinstance(value, dict) else value:
                # Most values are ASCII texts and small integers, which a call for each would make twice as slow.
                is_plain = item.isascii() if type(item) is str else type(item) is int and -MAX_INTEGER <= item <= MAX_INTEGER
                if not (is_plain and depth):
                    _check(item, depth - 1, floats=floats)
        case None:
            return
        case float() if floats:
            return
        case _:
            raise Malformed(CanonicalCode.JSON, f"Canonical JSON has no values of type {type(value).__name__}.")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Malformed(CanonicalCode.JSON, "A string holds a lone surrogate.") from error


# Made once: a decoder for each text costs as much as a short text.
_INTEGERS = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_no_float, parse_constant=_no_float, parse_int=_integer)
_ANY_NUMBER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_number, parse_constant=_no_float, parse_int=_number)
