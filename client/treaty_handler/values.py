"""Define the values inside events and effects: JSON values, and the failure of an operation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

Value: TypeAlias = Any
"""A JSON value: None, bool, int within ±(2^53-1), finite float, str without lone surrogates, list, or dict with str names.

It is nested at most 32 deep, with at most 20,000 values together. The type is `Any` because a handler reads such values by
its own protocol's schemas; the host checks the form of each.
"""

# The host enforces the same caps, so that a handler finds a fault before it sends it.
MAX_DEPTH = 32
MAX_VALUES = 20_000
# The largest integer that a double holds exactly, so JavaScript reads it too (RFC 7493 §2.2).
MAX_INTEGER = 2**53 - 1
# A number beyond 2^53-1, or beyond a double, has 16 digits in a row or an exponent.
_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS, _EXPONENT = b"0" * 16, b"0e"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Describe how an operation fails. It travels like a value and is never raised.

    Business logic reports "not found" with code 404. The session receives `Result(error=Failure(code=404, …))` and encodes it
    as its protocol requires; the other session returns it to the caller as `Return(error=Failure(code=404, …))`.

    Four codes may come from any operation: 500 the business logic failed, 502 the other side broke the protocol, 503 it is
    gone, 504 its answer is late. The manifest lists all other codes of an operation under `errors`. A host takes a 504 that a
    session returns at a `Timer`, and a 503 at a `PeerLost`, for silence: its caller learns that the outcome is unknown.

    `code`: 100 to 599 have the meaning of HTTP (RFC 9110 §15); other codes belong to the protocol, and its document lists
    them.
    `message`: one sentence for a person, at most 500 characters; programs do not parse it.
    """

    code: int
    message: str = ""


def encode_json(value: Value) -> bytes:
    """Return compact UTF-8 JSON (RFC 8259). Raises `ValueError` for anything that is not a `Value`."""
    try:
        return _ENCODER.encode(value).encode("utf-8")
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def decode_json(data: bytes) -> Value:
    """Parse UTF-8 JSON of any author; the result is a `Value`.

    Stricter than `json.loads`: no duplicate names, no NaN or infinity (by name or by overflow), no lone surrogates.

    Raises `ValueError`.
    """
    # Counted before parsing: building an object for each value costs far more.
    if len(data) > MAX_VALUES and _count_values(data) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values")
    # Peers choose their numbers, and a function call for each of 20,000 holds an agent's event loop up.
    digits = data.translate(_DIGITS)
    has_large = _MANY_DIGITS in digits or _EXPONENT in digits
    try:
        value = (_CAREFUL if has_large else _DECODER).decode(data.decode("utf-8"))
        if b"\\u" in data:
            # Fails on a lone surrogate: JSON can escape one, but UTF-8 cannot encode it.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise ValueError("not JSON") from error
    except UnicodeError as error:
        raise ValueError("not UTF-8") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    check_size(value)
    return value


def _count_values(data: bytes) -> int:
    """Return the number of values in JSON: one, one for each comma, and one for each list or object that is not empty."""
    # Remove escaped backslashes and quotes; every second part between quotes is then outside of strings.
    outside = b'"'.join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    shape = outside.translate(None, b" \t\r\n")
    return 1 + sum(map(shape.count, (b",", b"[", b"{"))) - shape.count(b"[]") - shape.count(b"{}")


def check_size(value: Value) -> None:
    """Check depth and number of the values in a JSON value. Raises `ValueError`."""
    # Level by level: a recursive walk over foreign data could exhaust the stack.
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        count += len(level)
        if count > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")
        deeper: list[Value] = []
        for item in level:
            if type(item) is dict:
                deeper.extend(item.values())
            elif type(item) is list:
                deeper.extend(item)
        if not deeper:
            return
        level = deeper
    raise ValueError("nested too deeply")


def _unique(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return value


def _integer(text: str) -> int:
    if len(text) > 17 or abs(value := int(text)) > MAX_INTEGER:
        raise ValueError("an integer is beyond 2^53-1")
    return value


def _finite(text: str) -> float:
    value = float(text)
    # Infinity by overflow, such as 1e999: it is the only float whose difference with itself is not 0.
    if value - value != 0:
        raise ValueError("a number is too large")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


# Made once: an encoder or decoder for each text costs as much as a short text.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
_CAREFUL = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer, parse_float=_finite, parse_constant=_refuse)
