"""Both ends of the negotiation flow for tests: engines joined by a wire that delivers when a test says so, and agents that really
speak product-info, with simulated names and handlers in this process."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connections import NotingConnection
from meetings import LAPTOP, URI_1, URI_2, InlineRuntime, Published, identity, product_info

from treaty_agent.sessions.flow_context import DidKeys, FlowDependencies, FlowSettings
from treaty_agent.sessions.flow_manager import MetaProtocolManager
from treaty_agent.sessions.handler_hosts import HandlerHosts, HostRequest
from treaty_agent.sessions.interfaces import Located, SpokenProtocol
from treaty_agent.sessions.operation_errors import OperationError
from treaty_agent.sessions.operations import Functions, choose_role
from treaty_agent.transport import memory
from treaty_anp.flow_profile.actions import (
    Action,
    DeliverData,
    Evaluate,
    Host,
    LoadProtocol,
    NegotiationEnded,
    PeerChanged,
    Ready,
    RenegotiationFailed,
    ReportReceived,
    SendMessage,
    SessionEnded,
    Shortcut,
)
from treaty_anp.flow_profile.capabilities import CapabilityManager, FlowRequest, ProtocolOffer, ProtocolRegistry
from treaty_anp.flow_profile.commands import Evaluated, Hosted, Loaded, LoadFailed
from treaty_anp.flow_profile.initiator import Initiator
from treaty_anp.flow_profile.machine import NegotiationEngine
from treaty_anp.flow_profile.messages import TYPE, FlowMessage, Foreign
from treaty_anp.flow_profile.payloads import ContextInfo, Metrics, Payload
from treaty_anp.flow_profile.processor import Now
from treaty_anp.flow_profile.responder import Responder
from treaty_anp.flow_profile.states import FlowLimits, FlowTimeouts
from treaty_anp.flow_profile.strategy import StrategyEngine
from treaty_anp.transcript import TranscriptRecorder, replay
from treaty_consensus.canonical import b64encode, hex_digest
from treaty_consensus.errors import NotFound
from treaty_consensus.handler import Role

BUYER, SHOP = identity("buyer.example"), identity("shop.example")
SHARING, DELEGATION, GRAPH = (
    "anp:protocol:data-sharing:1.0",
    "anp:protocol:task-delegation:2.1",
    "anp:protocol:knowledge-graph:1.2",
)
INFO_1, INFO_2 = "anp:protocol:product-info:1.0", "anp:protocol:product-info:1.1"
START = 1_790_000_000_000
"""When tests begin, in milliseconds since 1970."""


def at(seconds: float) -> Now:
    """The time, seconds after the beginning."""
    return Now(seconds, START + round(seconds * 1000))


def digest_of(id: str) -> str:
    """The hash of the document that an id means in tests."""
    return hex_digest(id.encode())


def registry(*offers: ProtocolOffer) -> ProtocolRegistry:
    """A registry with these offers."""
    registry = ProtocolRegistry()
    for offer in offers:
        registry.add(offer)
    return registry


def sharing(**fields: Any) -> ProtocolOffer:
    """The source's data-sharing protocol."""
    members = {"capabilities": ("query", "stream", "batch"), "preference": 0.9, **fields}
    return ProtocolOffer(SHARING, metrics=Metrics("low", "high", "medium"), **members)


def delegation(**fields: Any) -> ProtocolOffer:
    """The source's task-delegation protocol."""
    return ProtocolOffer(DELEGATION, **{"capabilities": ("assign",), "preference": 0.7, **fields})


def keeper(registry: ProtocolRegistry, context: ContextInfo | None = None) -> CapabilityManager:
    """A capability manager."""
    return CapabilityManager(registry, context)


def unsent(machine: NegotiationEngine, payload: Payload, *, session_id: str = "") -> FlowMessage:
    """A message as this machine would write it next. The machine does not know that it is sent."""
    return machine._say(payload, session_id=session_id).message


def wrap(data: bytes) -> Foreign:
    """The payload of a message in the byte form."""
    return Foreign({"data": b64encode(data)})


def payloads(sent: Sequence[tuple[str, FlowMessage]], action: str) -> list[Payload]:
    """The payloads of an action among what was sent."""
    return [message.payload for _, message in sent if message.action == action and isinstance(message.payload, Payload)]


@dataclass
class FlowWire:
    """Two engines and what is on its way between them. `refuses`: ids that cannot be loaded, by side."""

    initiator: Initiator
    responder: Responder
    on_its_way: dict[str, deque[FlowMessage]] = field(default_factory=lambda: {"initiator": deque(), "responder": deque()})
    sent: list[tuple[str, FlowMessage]] = field(default_factory=list)
    done: dict[str, list[Action]] = field(default_factory=lambda: {"initiator": [], "responder": []})
    refuses: Mapping[str, set[str]] = field(default_factory=dict)
    recorders: Mapping[str, TranscriptRecorder] = field(default_factory=dict)
    now: float = 0.0

    @classmethod
    def join(
        cls,
        mine: ProtocolRegistry,
        theirs: ProtocolRegistry,
        goal: FlowRequest | None = None,
        *,
        count: int = 1,
        shortcut: Shortcut | None = None,
        limits: FlowLimits | None = None,
        timeouts: FlowTimeouts | None = None,
        encrypted: bool = False,
        refuses: Mapping[str, set[str]] | None = None,
        contexts: tuple[ContextInfo, ContextInfo] = (ContextInfo(), ContextInfo()),
        reports: tuple[bool, bool] = (False, False),
    ) -> FlowWire:
        """An initiator whose first messages are on their way to a responder."""
        numbers = itertools.count()

        def new_id(kind: str) -> str:
            return f"{kind}-{next(numbers):08}"

        waits = timeouts or FlowTimeouts(renew=0)
        allowed, goal = limits or FlowLimits(), goal or FlowRequest("data-exchange")
        recorders = {"initiator": TranscriptRecorder("flow"), "responder": TranscriptRecorder("flow")}
        initiator = Initiator(
            BUYER.did,
            SHOP.did,
            keeper(mine, contexts[0]),
            new_id,
            waits,
            allowed,
            encrypted=encrypted,
            goal=goal,
            count=count,
            shortcut=shortcut,
            reports=reports[0],
            recorder=recorders["initiator"],
        )
        responder = Responder(
            SHOP.did,
            "",
            keeper(theirs, contexts[1]),
            new_id,
            waits,
            allowed,
            reports[1],
            encrypted,
            recorder=recorders["responder"],
        )
        wire = cls(initiator, responder, refuses=refuses or {}, recorders=recorders)
        wire.perform("responder", responder.start(at(0)))
        wire.perform("initiator", initiator.start(at(0)))
        return wire

    def engine(self, who: str) -> Initiator | Responder:
        return self.initiator if who == "initiator" else self.responder

    def perform(self, who: str, actions: list[Action]) -> None:
        """What a driver would do, everything at once."""
        engine, now = self.engine(who), at(self.now)
        for action in actions:
            self.done[who].append(action)
            match action:
                case SendMessage(message):
                    stamped = FlowMessage(**{**vars(message), "timestamp": now.unix})
                    self.sent.append((who, stamped))
                    self.on_its_way["responder" if who == "initiator" else "initiator"].append(stamped)
                case Evaluate(ids):
                    self.perform(
                        who,
                        self.initiator.apply(Evaluated(StrategyEngine().rank(one for id in ids if (one := self.judge(id)))), now),
                    )
                case LoadProtocol(protocol, digest):
                    if protocol in self.refuses.get(who, set()):
                        self.perform(who, engine.apply(LoadFailed(protocol, NotFound("resolve.unknown", "Nobody has it.")), now))
                    else:
                        loaded = Loaded(protocol, f"https://r.example/{protocol}", digest or digest_of(protocol))
                        self.perform(who, engine.apply(loaded, now))
                case Host(session_id, _, _):
                    self.perform(who, engine.apply(Hosted(session_id), now))
                case (
                    Ready()
                    | DeliverData()
                    | ReportReceived()
                    | RenegotiationFailed()
                    | PeerChanged()
                    | SessionEnded()
                    | NegotiationEnded()
                ):
                    pass

    def judge(self, id: str) -> Any:
        """An evaluation by the initiator."""
        one = self.initiator
        offer = one.capabilities.registry.get(id)
        assert offer is not None
        evaluation = StrategyEngine().evaluate(
            offer.supported(), one.peer_capabilities.protocols[id], one.goal, one.capabilities.context, one.peer_capabilities
        )
        return evaluation and type(evaluation)(**{**vars(evaluation), "digest": digest_of(id)})

    def deliver(self, who: str) -> FlowMessage:
        """Hand the next message on its way to `who` over."""
        message = self.on_its_way[who].popleft()
        self.perform(who, self.engine(who).receive(message, at(self.now)))
        return message

    def settle(self) -> FlowWire:
        """Deliver everything."""
        for _ in range(1000):
            waiting = [who for who, messages in self.on_its_way.items() if messages]
            if not waiting:
                return self
            self.deliver(waiting[0])
        raise AssertionError("the two sides never come to rest")

    def wait(self, seconds: float) -> None:
        """Time passes for both."""
        self.now += seconds
        for who in ("initiator", "responder"):
            self.perform(who, self.engine(who).tick(at(self.now)))

    def check_transcripts(self) -> None:
        """What both sides did comes out the same once more."""
        for recorder in self.recorders.values():
            assert replay(recorder.transcript()) >= 1

    def actions(self) -> list[str]:
        """What was said, in order."""
        return [message.action if message.type == TYPE else message.type for _, message in self.sent]

    def of(self, who: str, kind: type[Any]) -> list[Any]:
        """The actions of a kind that one side asked for."""
        return [action for action in self.done[who] if isinstance(action, kind)]


# Agents


@dataclass
class SimulatedNames:
    """Ids as one agent's policy sees them."""

    known: dict[str, Published] = field(default_factory=lambda: {INFO_1: product_info(URI_1), INFO_2: product_info(URI_2)})
    located: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    delay: float = 0.0

    async def locate(self, id: str, digest: str = "") -> Located:
        self.located.append(id)
        await asyncio.sleep(self.delay)
        if id not in self.known or digest not in ("", self.known[id].hash):
            raise NotFound("resolve.unknown", f"Nobody claims to be {id}.")
        return Located(self.known[id].uri, self.known[id].hash)

    async def fetch(self, id: str, located: Located) -> SpokenProtocol:
        self.fetched.append(located.uri)
        await asyncio.sleep(self.delay)
        return self.known[id]


@dataclass
class FlowAgent:
    """A manager and everything it stands on."""

    manager: MetaProtocolManager
    names: SimulatedNames
    runtime: InlineRuntime
    functions: Functions
    home: Path
    events: list[str]


def virtual_clock() -> Now:
    """The event loop's time, for the wall clock too."""
    seconds = asyncio.get_running_loop().time()
    return Now(seconds, START + round(seconds * 1000))


async def keys_of(did: str) -> Mapping[str, bytes]:
    """The DID documents of this world."""
    return {name.key_id: name.public_key for name in (BUYER, SHOP) if name.did == did}


def agent(name: str, home: Path, *offers: ProtocolOffer, clock: Callable[[], Now] = virtual_clock, **settings: Any) -> FlowAgent:
    """The agent NAME.example, with offers of product-info unless others are given."""
    names, runtime, functions, events = SimulatedNames(), InlineRuntime(), Functions(), list[str]()

    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        if productId != LAPTOP["productId"]:
            raise OperationError(404, "产品未找到")
        return LAPTOP

    functions.add(getProductInfo)

    def served(protocol: SpokenProtocol, request: HostRequest) -> tuple[Role, Functions]:
        return choose_role(protocol.package.manifest, is_initiator=request.is_initiator, name=request.role), flow_agent.functions

    own = identity(f"{name}.example")
    hosts = HandlerHosts(own.did, home / name, runtime, served)
    around = FlowDependencies(
        names,
        hosts,
        FlowSettings(**settings),
        clock,
        observe=lambda side, peer, protocol, event: events.append(event.name),
    )
    manager = MetaProtocolManager(own, DidKeys(keys_of), around, home=home / name)
    for offer in offers or (ProtocolOffer(INFO_1, ("query",), 0.5), ProtocolOffer(INFO_2, ("query",), 0.9)):
        manager.registry.add(offer)
    flow_agent = FlowAgent(manager, names, runtime, functions, home / name, events)
    return flow_agent


@asynccontextmanager
async def meeting(shop: FlowAgent) -> AsyncIterator[NotingConnection]:
    """An open connection to an agent that accepts; its end of it is waited for."""
    near, far = memory.pair()
    task = asyncio.create_task(shop.manager.accept(far))
    try:
        yield NotingConnection(near)
    finally:
        await near.close()
        await task
