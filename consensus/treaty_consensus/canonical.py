"""Canonical bytes: RFC 8785 JSON, SHA-256 digests, padded standard base64.

Everything Treaty signs or hashes is JCS (RFC 8785) narrowed to what every language reads alike: no floats, integers within
±(2^53-1) (larger ones travel as decimal strings), no duplicate names, strings without lone surrogates. Parsing is strict: bytes
that would re-encode differently are refused, so one value has one spelling.

    >>> dumps({"b": 1, "a": "é"})
    b'{"a":"\\xc3\\xa9","b":1}'
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from typing import Any, NoReturn

import rfc8785

from .errors import Malformed, TooLarge

MAX_INTEGER = 2**53 - 1
MAX_DEPTH = 32
MAX_VALUES = 131_072
"""How many values `parse_json` makes objects of unless its caller wants fewer: some 0.1 s of work."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":"))
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HIGH = re.compile("[\ud800-\U0010ffff]")
_DECIMAL = re.compile(r"0|[1-9][0-9]*")


def dumps(value: object) -> bytes:
    """The JCS bytes of a value made of dict, list, str, int, bool and None. Raises `Malformed` on anything else."""
    _check(value, MAX_DEPTH)
    return _encode(value)


def loads(data: bytes, *, limit: int, what: str = "JSON") -> Any:
    """Parse canonical JSON of at most `limit` bytes. Raises `TooLarge`, or `Malformed` when `data` is not its own JCS form."""
    value = parse_json(data, limit=limit, what=what, values=limit)
    if _encode(value) != data:
        raise Malformed("canonical.form", f"This {what} is not in canonical form (RFC 8785).")
    return value


def parse_json(data: bytes, *, limit: int, what: str = "JSON", values: int = MAX_VALUES) -> Any:
    """Parse strict (not necessarily canonical) JSON of at most `limit` bytes and `values` values: UTF-8, no duplicate names, no
    floats, depth ≤ 32.

    Raises `TooLarge` or `Malformed`.
    """
    if len(data) > limit:
        raise TooLarge("canonical.too-large", f"This {what} has {len(data)} bytes; at most {limit} are read.")
    if len(data) > values and count_values(data) > values:  # each value has a byte at least
        raise TooLarge("canonical.too-large", f"This {what} has more than {values} values.")
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_float=_no_float,
            parse_constant=_no_float,
            parse_int=_integer,
        )
    except (ValueError, RecursionError) as error:
        raise Malformed("canonical.json", f"This {what} does not parse: {error}.") from error
    _check(value, MAX_DEPTH)
    return value


def count_values(data: bytes) -> int:
    """How many values there are in JSON, at most, without parsing it; of other bytes any number."""
    outside = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])  # of all texts
    return 1 + outside.count(b",") + outside.count(b"[") + outside.count(b"{")


def sha256(data: bytes) -> bytes:
    """The 32 raw bytes of SHA-256."""
    return hashlib.sha256(data).digest()


def hex_digest(data: bytes) -> str:
    """SHA-256 as 64 lower-case hexadecimal digits, the form every digest has in JSON and URLs."""
    return hashlib.sha256(data).hexdigest()


def parse_digest(text: str) -> str:
    """Check that `text` is a digest in its one spelling and return it. Raises `Malformed`."""
    if not _DIGEST.fullmatch(text):
        raise Malformed("canonical.digest", "A digest is 64 lower-case hexadecimal digits.")
    return text


def parse_decimal(text: str, *, limit: int) -> int:
    """A non-negative decimal integer ≤ `limit` in its one spelling: no sign, no leading zero, no separators. Raises
    `Malformed`."""
    if len(text) > len(str(limit)) or not _DECIMAL.fullmatch(text) or int(text) > limit:
        raise Malformed("canonical.decimal", f"A number here is plain decimal digits, at most {limit}.")
    return int(text)


def b64encode(data: bytes) -> str:
    """Padded standard base64 (RFC 4648 §4)."""
    return base64.b64encode(data).decode("ascii")


def b64decode(text: str, *, limit: int) -> bytes:
    """Strict inverse of `b64encode` for at most `limit` bytes; any second spelling is refused. Raises `TooLarge`, `Malformed`."""
    if len(text) > (limit + 2) // 3 * 4:
        raise TooLarge("canonical.too-large", f"This base64 decodes to more than {limit} bytes.")
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise Malformed("canonical.base64", "Not padded standard base64.") from error
    if b64encode(data) != text:
        raise Malformed("canonical.base64", "Not the one base64 spelling of these bytes.")
    return data


def _encode(value: Any) -> bytes:
    """The JCS bytes of a checked value.

    The standard library's encoder, which is written in C, writes the same text: JCS differs in the order of names, by UTF-16 code
    units, and only beyond U+D7FF is that another one than by code points.
    """
    text = _ENCODER.encode(value)
    return rfc8785.dumps(value) if not text.isascii() and _HIGH.search(text) else text.encode("utf-8")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return value


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"{text[:24]} is not an integer")


def _integer(text: str) -> int:
    if len(text) > 17:  # "-" and sixteen digits; int() on foreign text of any length is quadratic
        raise ValueError("an integer is beyond 2^53-1")
    return int(text)


def _check(value: object, depth: int) -> None:
    if depth < 0:
        raise Malformed("canonical.depth", f"JSON is nested deeper than {MAX_DEPTH} levels.")
    match value:
        case str():
            if not value.isascii():
                _check_text(value)
        case list() | tuple():
            for item in value:
                _check(item, depth - 1)
        case dict():
            for name, item in value.items():
                if not isinstance(name, str):
                    raise Malformed("canonical.value", "Names in an object are strings.")
                _check(name, depth)
                _check(item, depth - 1)
        case None | bool():
            return
        case int():
            if not -MAX_INTEGER <= value <= MAX_INTEGER:
                raise Malformed("canonical.integer", "Integers beyond 2^53-1 travel as decimal strings.")
        case _:
            raise Malformed("canonical.value", f"{type(value).__name__} has no place in canonical JSON.")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Malformed("canonical.string", "A string holds a lone surrogate.") from error
