"""Read the calls out of vectors: the arguments of each, and its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from treaty_handler import Call, Failure, Item, Result, Value

from .vectors import Vector


@dataclass(slots=True)
class VectorCall:
    """A call that the application made, or answered, in a vector. `vector`: its file. `items`: of a stream. `error`: in the place
    of `value`."""

    vector: str
    operation: str
    arguments: dict[str, Any]
    items: list[Value] = field(default_factory=list)
    value: Value = None
    error: Failure | None = None


def calls_of(vector: Vector) -> Iterator[VectorCall]:
    """Yield each finished call of a vector."""
    open_calls: dict[str, VectorCall] = {}
    for step in vector.steps:
        event = step.event
        match event:
            case Call():
                open_calls[event.call] = VectorCall(vector.name, event.operation, event.arguments)
            case Item() if event.call in open_calls:
                open_calls[event.call].items.append(event.value)
            case Result() if event.call in open_calls:
                yield _ended(open_calls.pop(event.call), event.value, event.error)
        for tag, effect in step.effects:
            call = str(effect.get("call"))
            if tag == "invoke":
                open_calls[call] = VectorCall(vector.name, str(effect["operation"]), dict(effect["arguments"]))
            elif tag == "emit" and call in open_calls:
                open_calls[call].items.append(effect["value"])
            elif tag == "return" and call in open_calls:
                error = effect["error"]
                failure = Failure(code=error["code"], message=error["message"]) if error else None
                yield _ended(open_calls.pop(call), effect["value"], failure)


def _ended(call: VectorCall, value: Value, error: Failure | None) -> VectorCall:
    call.value, call.error = value, error
    return call
