"""What travels inside events and effects: JSON values, and the failure of an operation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

Value: TypeAlias = Any
"""A JSON value: None, bool, int within ±(2^53-1), finite float, str without lone surrogates, list, or dict with str names;
nested at most 32 deep, at most 20,000 values together.

The type is `Any` because a handler takes such values apart by its own protocol's schemas; the host checks the form of each.
"""

MAX_DEPTH = 32
MAX_VALUES = 20_000
MAX_INTEGER = 2**53 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How an operation fails. It crosses the same places a value does, and never as an exception.

    `code`: an integer. 100 to 599 have the meaning HTTP gives them (RFC 9110 §15), any other is the protocol's own and listed
    in its document. `message`: one sentence for a person, at most 500 characters, which nobody parses. Four codes may come from
    any operation: 500 the business logic broke, 502 the other side answered outside of the protocol, 503 it is gone, 504 its
    answer is late. All others are those that the operation lists under `errors` in the manifest.

    So business logic says "not found" by failing with code 404. The session receives `Result(error=Failure(code=404, …))` and
    puts it on the wire as its protocol demands; the session at the other end returns it to the caller as
    `Return(error=Failure(code=404, …))`.
    """

    code: int
    message: str = ""


def encode_json(value: Value) -> bytes:
    """Compact UTF-8 JSON (RFC 8259). Raises `ValueError` for what is no `Value`."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def decode_json(data: bytes) -> Value:
    """Parse UTF-8 JSON that anybody may have written: whatever it returns is a `Value`. Raises `ValueError` for all else.

    Stricter than `json.loads`: no name twice in an object, no NaN or infinity (by name or by overflow), no lone surrogates.
    """
    if len(data) > MAX_VALUES and _count_values(data) > 2 * MAX_VALUES:  # before an object is made of each of them
        raise ValueError(f"more than {MAX_VALUES} values")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_refuse,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # fails on a lone surrogate, which JSON can escape
    except json.JSONDecodeError as error:
        raise ValueError("not JSON") from error
    except UnicodeError as error:
        raise ValueError("not UTF-8") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    _check_size(value)
    return value


def _count_values(data: bytes) -> int:
    """How many values there are in JSON, at most; a list or an object that has any counts twice."""
    outside = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])  # of all texts
    return 1 + outside.count(b",") + outside.count(b"[") + outside.count(b"{")


def _check_size(value: Value) -> None:
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        count += len(level)
        if count > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")
        containers = (item.values() if type(item) is dict else item for item in level if type(item) in (dict, list))
        level = [child for container in containers for child in container]
        if not level:
            return
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
    if value - value != 0:
        raise ValueError("a number is too large")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
