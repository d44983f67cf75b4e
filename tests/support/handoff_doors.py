"""The doors of handoff with one face: queues, HTTP, a session of two, and a broker. A rule is tested once, at each of them."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import httpx
from handoffs import World, drained, until

from treaty_handler import (
    Call,
    Cancel,
    Effect,
    Event,
    Failure,
    Invoke,
    Opened,
    PeerJoined,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
    encode_json,
)
from treaty_handoff import Handling, HandoffAgent, Kind, Message, Outcome, Status, build
from treaty_handoff.handler import handler
from treaty_handoff.http import create_app
from treaty_handoff.messages import accept

NEVER: Any = object()
"""The result of work that does not end."""
RECEIPTS = ("ACCEPTED", "DUPLICATE")
DOORS = ("queue", "http", "session", "broker")
Work = Callable[[Message], Any]


class Door(ABC):
    """A sender and a receiver, and the way between them. `work`: the receiver's function: it returns an outcome, or raises.

    `worked`: the messages that it was given. `escalated`, `fell_back`: those that were handed on. `told`: the messages that the
    sender got, without receipts.
    """

    def __init__(self) -> None:
        self.work: Work = lambda message: {"status": "COMPLETED"}
        self.worked, self.escalated, self.fell_back, self.told = list[Message](), list[Any](), list[Any](), list[Message]()
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def name(self, name: str) -> str:
        """The name of an agent at this door."""
        return name

    def message(self, kind: Kind, data: dict[str, Any], **parts: Any) -> Message:
        """A message of the sender to the receiver."""
        parts = {"task": "task-1", "state": "OPEN", "now": self.now, "flow": "flow-1", **parts}
        return build(kind, data, sender=self.name("desk"), recipient=self.name("support"), **parts)

    async def hand_off(self, message: Message | bytes) -> list[dict[str, Any]]:
        """Let a message arrive and wait until its work has ended. Returns the data of all that the sender was told."""
        await self.deliver(message if isinstance(message, bytes) else encode_json(message))
        return [entry["payload"]["data"] for entry in self.told]

    @abstractmethod
    async def deliver(self, body: bytes) -> None:
        """Let bytes arrive as a message, and wait until nothing is left to do."""

    def given(self, message: Message) -> Any:
        self.worked.append(message)
        return self.work(message)


class LibraryDoor(Door):
    """An agent of the library."""

    agent: HandoffAgent

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.now = world, world.clock()

    async def deliver(self, body: bytes) -> None:
        if not hasattr(self, "agent"):
            self.agent = await self.world.agent("support", escalates_to=[self.name("experts")])
            self.agent.handles(*Kind)(self._handle)
            self.agent.falls_back("call_back")(self._fall_back)
        await self.arrive(body)

    @abstractmethod
    async def arrive(self, body: bytes) -> None:
        """See `deliver`."""

    def name(self, name: str) -> str:
        return self.world.name(name)

    async def _handle(self, handling: Handling) -> Outcome:
        value = self.given(handling.message)
        if value is NEVER:
            await asyncio.Event().wait()
        renamed = {"done" if name == "actions_done" else name: item for name, item in value.items()}
        return Outcome(**{**renamed, "status": Status(value["status"])})

    async def _fall_back(self, handling: Handling) -> None:
        self.fell_back.append("call_back")

    async def _escalations(self) -> None:
        async with self.world.journals[self.agent.name].transaction() as transaction:
            query = "select count(*) from handoff_message where direction = 'sent' and about is null"
            self.escalated = ["experts"] * await transaction.connection.fetchval(query)


class QueueDoor(LibraryDoor):
    """A queue of a broker. The reports are read from the queue of the sender."""

    async def arrive(self, body: bytes) -> None:
        broker, seal = await self.world.broker(), self.world.seal
        assert seal is not None
        queue, desk = self.name("support"), self.name("desk")
        await broker.publish(queue, seal.close(body, f"queue/{queue}"), 0)
        async with self.agent.running():
            await until(self._is_idle)
            await self._escalations()
            await until(lambda: drained(self.world, "support"))
        deliveries = broker.deliveries(desk)
        for _ in range(await broker.backlog(desk)):
            delivery = await anext(deliveries)
            self.told.append(json.loads(seal.open(delivery.body, f"queue/{desk}"))["handoff"])
            await delivery.confirm()
        await deliveries.aclose()

    async def _is_idle(self) -> bool:
        async with self.world.journals[self.agent.name].transaction() as transaction:
            query = "select count(*) from pgqueuer where entrypoint = $1"
            return not await transaction.connection.fetchval(query, self.agent.name)


class HttpDoor(LibraryDoor):
    """HTTP. A sender that is asked to come again does so."""

    async def arrive(self, body: bytes) -> None:
        transport = httpx.ASGITransport(create_app(self.agent))
        async with httpx.AsyncClient(transport=transport, base_url="http://support") as client:
            while (answer := await client.post("/handoffs", content=body)).status_code == 503:
                pass
        self.told += [entry["handoff"] for entry in answer.json()["handoffs"]]
        await self._escalations()


class SessionDoor(Door):
    """A session of two, with a clock that runs when all wait."""

    roles: ClassVar = {"did:example:desk": "sender", "did:example:support": "receiver"}
    broker = ""

    def __init__(self) -> None:
        super().__init__()
        self._events: deque[tuple[str, Event]] = deque()
        self._timers: dict[tuple[str, str], datetime] = {}
        self._sessions = {}
        for did, role in self.roles.items():
            peer = self.broker or next(other for other in self.roles if other != did)
            self._sessions[did] = handler.open(
                role, {"local": did, "peer": "" if role == "broker" else peer, "seed": did[-1:] * 32}
            )
            self._events.append((did, Opened()))
        self._run()

    async def deliver(self, body: bytes) -> None:
        receiver = self.broker or "did:example:support"
        self._events.append((receiver, Received(peer="did:example:desk", data=body)))
        self._run()

    def _run(self) -> None:
        """Process the events, then the timers, until none is left. A timer of a day is not waited for."""
        while True:
            while self._events:
                did, event = self._events.popleft()
                at = round(self.now.timestamp() * 1000)
                object.__setattr__(event, "at", at)
                for effect in self._sessions[did].handle(event):
                    self._perform(did, effect)
            due = min(self._timers.items(), key=lambda item: item[1], default=None)
            if due is None or due[1] > self.now + timedelta(hours=12):
                return
            (did, name), self.now = due[0], max(due[1], self.now)
            del self._timers[did, name]
            self._events.append((did, Timer(name=name)))

    def _perform(self, did: str, effect: Effect) -> None:
        match effect:
            case Send(peer=peer, data=data):
                if peer == "did:example:desk":
                    self._note(accept(json.loads(data)))
                self._events.append((peer, Received(peer=did, data=data)))
            case SetTimer(name=name, seconds=None):
                self._timers.pop((did, name), None)
            case SetTimer(name=name, seconds=float() | int() as seconds):
                self._timers[did, name] = self.now + timedelta(seconds=seconds)
            case Invoke():
                self._invoke(did, effect)
            case Return(error=error):
                assert error is None
            case Cancel():
                pass

    def _note(self, message: Message) -> None:
        if message["payload"]["data"].get("status") not in RECEIPTS:
            self.told.append(message)

    def _invoke(self, did: str, effect: Invoke) -> None:
        if did == "did:example:desk":
            self._events.append((did, Result(call=effect.call, value={"status": "COMPLETED"})))
            return
        steps: dict[str, Work] = {"handOff": self.given, "escalate": self._escalate, "fallBack": self._fall_back}
        try:
            value = steps[effect.operation](effect.arguments if effect.operation != "handOff" else effect.arguments["message"])
        except Exception as error:
            self._events.append((did, Result(call=effect.call, error=Failure(code=500, message=type(error).__name__))))
            return
        if value is not NEVER:
            self._events.append((did, Result(call=effect.call, value=value)))

    def _escalate(self, arguments: Any) -> Any:
        if arguments["target"] != self.name("experts"):
            raise RuntimeError("There is no such group.")
        self.escalated.append("experts")
        return {"status": "ACCEPTED"}

    def _fall_back(self, arguments: Any) -> Any:
        if arguments["target"] != "call_back":
            raise RuntimeError("There is no such action.")
        self.fell_back.append("call_back")
        return {"status": "COMPLETED"}


class BrokerDoor(SessionDoor):
    """Two members at a broker."""

    roles: ClassVar = {"did:example:desk": "member", "did:example:support": "member", "did:example:broker": "broker"}
    broker = "did:example:broker"

    def __init__(self) -> None:
        super().__init__()
        for name in ("desk", "support"):
            self._events.append((self.broker, PeerJoined(peer=f"did:example:{name}", role="member", is_proved=True)))
            joining = build(
                Kind.NOTIFICATION, {"event": "JOIN"}, sender=name, recipient="broker", task="t", state="JOINING", now=self.now
            )
            self._events.append((f"did:example:{name}", Call(call="join", operation="handOff", arguments={"message": joining})))
            self._run()


def door(name: str, world: Callable[[], World]) -> Door:
    """Open a door. `world`: makes the world of an agent of the library, if this door needs one."""
    match name:
        case "session":
            return SessionDoor()
        case "broker":
            return BrokerDoor()
    return QueueDoor(world()) if name == "queue" else HttpDoor(world())
