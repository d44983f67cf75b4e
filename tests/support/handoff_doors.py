"""The doors of handoff with one face: queues, HTTP, a session of two, and a broker. A rule is tested once, at each of them."""

from __future__ import annotations

import asyncio
import itertools
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import httpx
from handoffs import World, drained, until

from treaty_handler import (
    Audit,
    Call,
    Cancel,
    Effect,
    Event,
    Failure,
    Invoke,
    Opened,
    PeerJoined,
    PeerLost,
    Persist,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
    encode_json,
)
from treaty_handoff import (
    Handling,
    HandoffAgent,
    Kind,
    Message,
    Outcome,
    Permissions,
    Priority,
    Routes,
    Rule,
    SenderGrant,
    Status,
    build,
    subscription,
)
from treaty_handoff.handler import handler
from treaty_handoff.http import create_app, post
from treaty_handoff.messages import accept

NEVER: Any = object()
"""The result of work that does not end."""
RECEIPTS = ("ACCEPTED", "DUPLICATE")
DOORS = ("queue", "http", "session", "broker")
SYMPTOMS = "The connection drops."
ROUTE = {"recipients": ["front"], "kinds": ["ESCALATION"], "where": {"technical_details.symptoms": SYMPTOMS}}
"""Urgent messages like these to `front` go to `support`."""
WATCHED = {"event": "WATCHED"}
"""Notifications of this event are copied to `support`."""
UNPERMITTED = Kind.APPROVAL_REQUEST
"""The type that the sender may not send to an agent of the library."""
Work = Callable[[Message], Any]


class Door(ABC):
    """A sender `desk` and a receiver `support`, which is the member of the group `pool`, and the way between them.

    `work`: the receiver's function: it returns an outcome, or raises.

    `worked`: the messages that it was given. `escalated`, `fell_back`: those that were handed on. `told`: the messages that the
    sender got, without receipts. `audited`: the texts of a session's own record.
    """

    def __init__(self) -> None:
        self.work: Work = lambda message: {"status": "COMPLETED"}
        self.worked, self.escalated, self.fell_back, self.told = list[Message](), list[Any](), list[Any](), list[Message]()
        self.audited = list[str]()
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def name(self, name: str) -> str:
        """The name of an agent at this door."""
        return name

    def message(self, kind: Kind, data: dict[str, Any], **parts: Any) -> Message:
        """A message of the sender to the receiver."""
        parts = {"task": "task-1", "state": "OPEN", "now": self.now, "flow": "flow-1", **parts}
        sender, recipient = self.name(parts.pop("sender", "desk")), self.name(parts.pop("recipient", "support"))
        return build(kind, data, sender=sender, recipient=recipient, **parts)

    async def hand_off(self, message: Message | bytes) -> list[dict[str, Any]]:
        """Let a message arrive and wait until its work has ended. Returns the data of all that the sender was told."""
        await self.deliver(message if isinstance(message, bytes) else encode_json(message))
        return [entry["payload"]["data"] for entry in self.told]

    @abstractmethod
    async def deliver(self, body: bytes) -> None:
        """Let bytes arrive as a message, and wait until nothing is left to do."""

    @abstractmethod
    async def send(self, *messages: Message, is_away: bool = False) -> None:
        """Let the sender hand messages off. `is_away`: the receiver comes when all of them are sent."""

    @abstractmethod
    def restart(self) -> None:
        """End the sides, and begin again with what is stored."""

    def given(self, message: Message) -> Any:
        self.worked.append(message)
        return self.work(message)


class LibraryDoor(Door):
    """An agent of the library."""

    _agent: HandoffAgent | None = None

    @property
    def agent(self) -> HandoffAgent:
        """The receiver, after the first message."""
        assert self._agent is not None
        return self._agent

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.now = world, world.clock()

    async def deliver(self, body: bytes) -> None:
        await self._open()
        await self.arrive(body)

    async def _open(self) -> None:
        if self._agent is not None:
            return
        desk = SenderGrant(None, frozenset(Kind) - {UNPERMITTED})
        settings: dict[str, Any] = {
            "routes": self._routes(),
            "permissions": Permissions({self.name("desk"): desk}),
            "escalates_to": [self.name("experts")],
        }
        self._agent = await self.world.agent("support", groups=("pool",), **settings)
        self.agent.handles(*Kind)(self._handle)
        self.agent.falls_back("call_back")(self._fall_back)

    def _routes(self) -> Routes:
        queue, front = self.name("support"), frozenset({self.name("front")})
        rule = Rule((queue,), front, frozenset({Kind.ESCALATION}), Priority.HIGH, ROUTE["where"])  # type: ignore[arg-type]
        return Routes([rule, subscription(queue, Kind.NOTIFICATION, **WATCHED)])

    def restart(self) -> None:
        self._agent = None

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
        # Those to the group are in its queue.
        queue = next((name for name in reversed(self.agent.queues) if name.encode() in body), self.agent.name)
        await broker.publish(queue, seal.close(body, f"queue/{queue}"), 0)
        await self._work()

    async def send(self, *messages: Message, is_away: bool = False) -> None:
        desk = await self.world.agent("desk")
        for message in messages:
            await desk.send(message)
        # The queue brings them one by one, and also while no one takes them.
        async with desk.running():
            await until(lambda: drained(self.world, "desk"))
        await self._open()
        await self._work()

    async def _work(self) -> None:
        """Run the receiver until its queues are empty, and read the queue of the sender."""
        broker, seal, desk = await self.world.broker(), self.world.seal, self.name("desk")
        assert seal is not None
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
            query = "select count(*) from pgqueuer where entrypoint = any($1)"
            return not await transaction.connection.fetchval(query, list(self.agent.queues))


class HttpDoor(LibraryDoor):
    """HTTP. A sender that is asked to come again does so."""

    async def arrive(self, body: bytes) -> None:
        transport = httpx.ASGITransport(create_app(self.agent))
        async with httpx.AsyncClient(transport=transport, base_url="http://support") as client:
            while (answer := await client.post("/handoffs", content=body)).status_code == 503:
                pass
        self.told += [entry["handoff"] for entry in answer.json()["handoffs"]]
        await self._escalations()

    async def send(self, *messages: Message, is_away: bool = False) -> None:
        assert not is_away
        await self._open()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(self.agent))) as client:
            for message in messages:
                self.told += await post(client, "http://support", message)


class SessionDoor(Door):
    """A session of two, with a clock that runs when all wait."""

    roles: ClassVar = {"did:example:desk": "sender", "did:example:support": "receiver"}
    broker = ""

    def __init__(self) -> None:
        super().__init__()
        self._events: deque[tuple[str, Event]] = deque()
        self._invokes: deque[tuple[str, Invoke]] = deque()
        self._timers: dict[tuple[str, str], datetime] = {}
        self._stored: dict[str, dict[str, bytes]] = {did: {} for did in self.roles}
        self._away = set[str]()
        self._numbers = itertools.count()
        self.restart()

    def restart(self) -> None:
        self._timers.clear()
        self._sessions = {}
        for did, role in self.roles.items():
            peer = self.broker or next(other for other in self.roles if other != did)
            self._sessions[did] = handler.open(
                role, {"local": did, "peer": "" if role == "broker" else peer, "seed": f"{next(self._numbers):032}"}
            )
            self._events.append((did, Opened(stored=dict(self._stored[did]))))
        self._run()

    async def deliver(self, body: bytes) -> None:
        receiver = self.broker or "did:example:support"
        self._events.append((receiver, Received(peer="did:example:desk", data=body)))
        self._run()

    async def send(self, *messages: Message, is_away: bool = False) -> None:
        self._away |= {"did:example:support"} if is_away else set()
        for message in messages:
            call = Call(call=f"call-{next(self._numbers)}", operation="handOff", arguments={"message": message})
            self._events.append(("did:example:desk", call))
        if is_away:
            self._leave()
            self._run()
            self._away.clear()
            self._come()
        self._run()

    def _leave(self) -> None:
        """Let the receiver be away from now on. The session of its sender ends with it."""

    def _come(self) -> None:
        """Let the receiver come."""
        self.restart()

    def _run(self) -> None:
        """Process the events, then the work of the applications, then the timers, until none is left.

        Work takes longer than messages take. A timer of a day is not waited for.
        """
        while True:
            while self._events:
                did, event = self._events.popleft()
                if did in self._away:
                    continue
                at = round(self.now.timestamp() * 1000)
                object.__setattr__(event, "at", at)
                for effect in self._sessions[did].handle(event):
                    self._perform(did, effect)
            if self._invokes:
                self._invoke(*self._invokes.popleft())
                continue
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
                self._invokes.append((did, effect))
            case Persist(key=key, value=None):
                self._stored[did].pop(key, None)
            case Persist(key=key, value=bytes() as value):
                self._stored[did][key] = value
            case Return(error=error):
                # A sender whose receiver is away waits no longer: its message is kept.
                assert error is None or self._away
            case Audit(text=text):
                self.audited.append(text)
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
        rule = {**ROUTE, "to": ["support"], "priority": "HIGH"}
        self._events.append((self.broker, Call(call="rules", operation="setRoutes", arguments={"rules": [rule]})))
        self._run()

    def restart(self) -> None:
        super().restart()
        for name in ("desk", "support"):
            self._join(name)

    def _join(self, name: str) -> None:
        did, attributes = f"did:example:{name}", dict[str, Any]()
        if name == "support":
            attributes = {"groups": ["pool"], "subscriptions": [{"kinds": ["NOTIFICATION"], "where": WATCHED}]}
        self._events.append((self.broker, PeerJoined(peer=did, role="member", is_proved=True)))
        data = {"event": "JOIN", "attributes": attributes}
        joining = build(Kind.NOTIFICATION, data, sender=name, recipient="broker", task="t", state="JOINING", now=self.now)
        call = Call(call=f"join-{next(self._numbers)}", operation="handOff", arguments={"message": joining})
        self._events.append((did, call))
        self._run()

    def _leave(self) -> None:
        # First: the broker knows it before the next message.
        self._events.appendleft((self.broker, PeerLost(peer="did:example:support")))

    def _come(self) -> None:
        did = "did:example:support"
        self._sessions[did] = handler.open("member", {"local": did, "peer": self.broker, "seed": "f" * 32})
        self._events.append((did, Opened(stored=dict(self._stored[did]))))
        self._join("support")


def door(name: str, world: Callable[[], World]) -> Door:
    """Open a door. `world`: makes the world of an agent of the library, if this door needs one."""
    match name:
        case "session":
            return SessionDoor()
        case "broker":
            return BrokerDoor()
    return QueueDoor(world()) if name == "queue" else HttpDoor(world())
