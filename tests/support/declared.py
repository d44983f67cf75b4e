"""Declarative protocols for tests: one with every kind of operation, and two sides of it on a simulated network."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from handler_packages import metadata

from treaty_consensus.handler import DECLARATIVE, HandlerPackage, build_wheel, read_wheel
from treaty_handler import (
    Audit,
    Call,
    Cancel,
    Cancelled,
    Effect,
    Emit,
    End,
    Failure,
    Invoke,
    Item,
    Opened,
    PeerLost,
    Received,
    Request,
    Requested,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
    Value,
)
from treaty_sandbox.in_process import DeclarativePackage, LocalSession, LocalWorker
from treaty_sandbox.operation_schemas import Operations

LEFT, RIGHT = "did:wba:left.example", "did:wba:right.example"

EVERY: dict[str, Any] = {
    "request": {"id": "$id", "type": "request", "operation": "$operation", "arguments": "$arguments"},
    "response": {"id": "$id", "type": "response", "result": "$result"},
    "error": {"id": "$id", "type": "error", "code": "$code", "message": "$message"},
    "item": {"id": "$id", "type": "item", "item": "$item"},
    "end": {"id": "$id", "type": "end"},
    "more": {"id": "$id", "type": "more", "count": "$count"},
    "cancel": {"id": "$id", "type": "cancel"},
    "event": {"type": "event", "operation": "$operation", "arguments": "$arguments"},
}

_ARGUMENTS = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "size": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
_LISTED = {"400": "It does not conform.", "404": "There is none.", "429": "Too much."}

OPERATIONS: dict[str, Any] = {
    "ask": {"arguments": _ARGUMENTS, "result": {"type": "string"}, "errors": _LISTED, "idempotent": True, "timeout": 5},
    "find": {
        "kind": "stream",
        "arguments": _ARGUMENTS,
        "result": {"type": "integer"},
        "errors": _LISTED,
        "idempotent": True,
        "timeout": 5,
        "window": 4,
    },
    "tell": {"kind": "event", "arguments": _ARGUMENTS},
}
NAMES = list(OPERATIONS)
MANIFEST: dict[str, Any] = {
    "operations": OPERATIONS,
    "roles": {
        "left": {"peer": "right", "calls": NAMES, "invokes": NAMES},
        "right": {"peer": "left", "calls": NAMES, "invokes": NAMES},
    },
    "messages": {"*": EVERY},
}
"""Both roles call and serve everything, so every message may be a request or an answer."""


def build(manifest: Mapping[str, Any] = MANIFEST) -> tuple[str, bytes]:
    """The wheel of a declarative protocol."""
    return build_wheel({}, replace(metadata(manifest), entry_point=DECLARATIVE))


def declared(manifest: Mapping[str, Any] = MANIFEST) -> HandlerPackage:
    """A checked package without code."""
    return read_wheel(*build(manifest))


async def session(
    package: HandlerPackage, role: str, *, local: str = LEFT, peer: str = RIGHT, seed: str = "0" * 32
) -> LocalSession:
    """An open session of it."""
    worker = LocalWorker(DeclarativePackage(package, Operations(package.manifest)), local, [peer])
    opened = await worker.open(role, seed=seed)
    assert await opened.handle(Opened()) == []
    return opened


class Network:
    """Two sides, and the host of each: it runs functions, timers and the connection, in an order that `draw` decides.

    What must hold of every host is asserted on the way: a call ends once, and no item comes without being asked for.
    """

    def __init__(self, left: LocalSession, right: LocalSession, draw: random.Random) -> None:
        self.sides = {LEFT: left, RIGHT: right}
        self.draw = draw
        self.wire: dict[str, list[bytes]] = {LEFT: [], RIGHT: []}
        self.timers: dict[str, set[str]] = {LEFT: set(), RIGHT: set()}
        self.functions: dict[str, dict[str, tuple[str, int]]] = {LEFT: {}, RIGHT: {}}
        self.calls: dict[tuple[str, str], tuple[str, int]] = {}
        self.ended: dict[tuple[str, str], Failure | None] = {}
        self.cancelled: set[tuple[str, str]] = set()
        self.items: dict[tuple[str, str], list[Value]] = {}
        self.notes: list[str] = []
        self.over: set[str] = set()
        self._numbers = iter(range(1_000_000))

    async def call(self, side: str, operation: str, **arguments: Value) -> str:
        """A call of the application at one side."""
        call = f"c{next(self._numbers)}"
        self.calls[side, call] = operation, 0
        await self.give(side, Call(call=call, operation=operation, arguments=arguments))
        if operation == "find" and (side, call) not in self.ended:
            await self.want(side, call, 4)
        return call

    async def want(self, side: str, call: str, count: int) -> None:
        """The application takes more items."""
        operation, window = self.calls[side, call]
        if window - len(self.items.get((side, call), [])) + count > 1_024:
            return
        self.calls[side, call] = operation, window + count
        await self.give(side, Requested(call=call, count=count))

    async def cancel(self, side: str, call: str) -> None:
        """The application gives up."""
        if (side, call) not in self.ended and (side, call) not in self.cancelled:
            self.cancelled.add((side, call))
            await self.give(side, Cancelled(call=call))

    async def give(self, side: str, event: Any) -> None:
        """Give an event to a side, and do what it asks for."""
        if side in self.over:
            return
        for effect in await self.sides[side].handle(event):
            self._do(side, effect)

    async def deliver(self, side: str, *, at: int = 0) -> None:
        """One message of the other side arrives."""
        data = self.wire[side].pop(at)
        await self.give(side, Received(peer=RIGHT if side == LEFT else LEFT, data=data))

    async def finish(self, side: str, call: str) -> None:
        """A function of the application makes an item, ends or fails."""
        operation, credit = self.functions[side][call]
        if operation == "find" and credit and self.draw.random() < 0.7:
            self.functions[side][call] = operation, credit - 1
            await self.give(side, Item(call=call, value=self.draw.randint(0, 9)))
            return
        if operation == "find" and self.draw.random() < 0.5:
            return
        del self.functions[side][call]
        if self.draw.random() < 0.3:
            await self.give(side, Result(call=call, error=Failure(code=500 if operation == "tell" else 404, message="None.")))
        else:
            await self.give(side, Result(call=call, value="done" if operation == "ask" else None))

    async def ring(self, side: str, name: str) -> None:
        """A timer expires."""
        self.timers[side].discard(name)
        await self.give(side, Timer(name=name))

    async def lose(self) -> None:
        """The connection ends at both sides."""
        self.wire = {LEFT: [], RIGHT: []}
        for side, peer in ((LEFT, RIGHT), (RIGHT, LEFT)):
            await self.give(side, PeerLost(peer=peer))

    def _do(self, side: str, effect: Effect) -> None:
        match effect:
            case Send(peer=peer, data=data):
                self.wire[peer].append(data)
            case Invoke(call=call, operation=operation):
                assert call not in self.functions[side]
                self.functions[side][call] = operation, 0
            case Request(call=call, count=count):
                operation, credit = self.functions[side][call]
                assert credit + count <= 1_024
                self.functions[side][call] = operation, credit + count
            case Cancel(call=call):
                del self.functions[side][call]
            case Emit(call=call, value=value):
                assert (side, call) not in self.ended and (side, call) not in self.cancelled
                got = self.items.setdefault((side, call), [])
                got.append(value)
                assert len(got) <= self.calls[side, call][1]
            case Return(call=call, error=error):
                assert (side, call) not in self.ended and (side, call) not in self.cancelled
                self.ended[side, call] = error
            case SetTimer(name=name, seconds=seconds):
                (self.timers[side].add if seconds is not None else self.timers[side].discard)(name)
            case Audit(text=text):
                self.notes.append(text)
            case End():
                self.over.add(side)
