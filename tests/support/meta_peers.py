"""Both ends of the Hello profile for tests: ready-made Hellos and machines, driven by hand or joined by a wire."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treaty_anp import frame
from treaty_anp.frame import ProtocolType
from treaty_anp.hello_profile import hello, messages
from treaty_anp.hello_profile.actions import Action, Deliver, Ended, Load, SendBinary, SendText
from treaty_anp.hello_profile.commands import CodeReady
from treaty_anp.hello_profile.hello import Hello
from treaty_anp.hello_profile.machine import Machine, Provided, Timeouts
from treaty_anp.hello_profile.messages import CodeGeneration, MetaMessage, NegotiationStatus, ProtocolNegotiation

BUYER, SHOP = "did:wba:buyer.example", "did:wba:shop.example"
DOCUMENT = "# Agreed protocol\n"
HASH = hashlib.sha256(DOCUMENT.encode()).hexdigest()
OTHER_HASH = hashlib.sha256(b"# Another\n").hexdigest()
URI = "https://registry.example/protocols/example.com/product-info/1.0"
OTHER_URI = "https://registry.example/protocols/example.com/product-info/2.0"
FRESH = {URI: Provided(HASH, True)}
STALE = {URI: Provided(HASH, False)}
TIMEOUTS = Timeouts()
NAMED = (
    hello.NATURAL_LANGUAGE_PROTOCOL,
    hello.VERIFICATION_PROTOCOL,
    hello.NATURAL_LANGUAGE_NEGOTIATION,
    hello.TEST_CASES_NEGOTIATION,
    hello.FIX_ERROR_NEGOTIATION,
)
"""The five capabilities that the source specification names."""


def source_hello(
    candidates: tuple[str, ...] = (URI,), *, offered: str | None = None, to: str = SHOP, capabilities: tuple[str, ...] = ()
) -> Hello:
    """What the buyer says first."""
    return Hello(
        type="sourceHello",
        message_id="m" * 16,
        session_id="s" * 16,
        source_did=BUYER,
        destination_did=to,
        random="b" * 32,
        capabilities=capabilities,
        used_protocol_hash=offered,
        candidate_protocols=candidates,
    )


def destination_hello(
    *, capabilities: tuple[str, ...] = (), used: str | None = None, selected: str | None = None, digest: str | None = None
) -> Hello:
    """What the shop answers; before it was asked, session and buyer are placeholders."""
    return Hello(
        type="destinationHello",
        message_id="d" * 16,
        session_id="s" * 16,
        source_did=SHOP,
        destination_did=BUYER,
        random="t" * 32,
        capabilities=capabilities,
        used_protocol_hash=used,
        selected_protocol=selected,
        selected_protocol_hash=digest,
    )


def buyer(hello: Hello | None = None, *, uri: str = URI, now: float = 0.0, **options: Any) -> Machine:
    """A source that has sent its Hello."""
    machine, _ = Machine.initiator(hello or source_hello(), now=now, timeouts=TIMEOUTS, known_uri=uri, **options)
    return machine


def shop(
    provides: Mapping[str, Provided] = FRESH, *, capabilities: tuple[str, ...] = (), now: float = 0.0, **options: Any
) -> Machine:
    """A destination that waits for a Hello."""
    own = destination_hello(capabilities=capabilities)
    return Machine.responder(own, now=now, timeouts=TIMEOUTS, provides=provides, **options)


def negotiating_buyer(capabilities: tuple[str, ...] = NAMED, **options: Any) -> Machine:
    """A source that is to draft the first proposal."""
    machine = buyer(source_hello((), capabilities=capabilities), negotiates=True, **options)
    machine.receive(destination_hello(capabilities=capabilities).format(), 0.0)
    return machine


def negotiating_shop(capabilities: tuple[str, ...] = NAMED, *, negotiates: bool = True, **options: Any) -> Machine:
    """A destination that waits for the first proposal."""
    machine = shop({}, capabilities=capabilities, negotiates=negotiates, **options)
    machine.receive(source_hello((), capabilities=capabilities).format(), 0.0)
    return machine


def meta(message: MetaMessage) -> bytes:
    """A PT=00 frame."""
    return frame.encode(ProtocolType.META, messages.encode(message))


def application(payload: bytes) -> bytes:
    """A PT=01 frame."""
    return frame.encode(ProtocolType.APPLICATION, payload)


def natural(text: str) -> bytes:
    """A PT=10 frame."""
    return frame.encode(ProtocolType.NATURAL_LANGUAGE, text.encode())


def verification(payload: bytes) -> bytes:
    """A PT=11 frame."""
    return frame.encode(ProtocolType.VERIFICATION, payload)


def proposal(number: int, text: str = DOCUMENT, summary: str | None = None) -> bytes:
    """A protocolNegotiation that proposes."""
    return meta(ProtocolNegotiation(number, "negotiating", text, summary))


def verdict(number: int, status: NegotiationStatus, text: str | None = None, summary: str | None = None) -> bytes:
    """A protocolNegotiation that accepts or rejects."""
    return meta(ProtocolNegotiation(number, status, text, summary))


def said(actions: list[Action]) -> list[MetaMessage]:
    """The meta messages among actions."""
    frames = [frame.decode(action.data) for action in actions if isinstance(action, SendBinary)]
    return [messages.parse(payload) for type, payload in frames if type is ProtocolType.META]


def rejection_in(actions: list[Action]) -> str:
    """The reason in a rejection that ends the session, with nothing else before it."""
    sent, ended = actions
    assert isinstance(ended, Ended)
    (message,) = said([sent])
    assert isinstance(message, ProtocolNegotiation)
    assert (message.status, message.candidate_protocols) == ("rejected", None)
    return message.modification_summary or ""


GENERATED, FAILED = meta(CodeGeneration("generated")), meta(CodeGeneration("error"))


def failed(reason: str) -> bytes:
    """The codeGeneration of a side whose code cannot be made, with its machine code."""
    return meta(CodeGeneration("error", reason))


@dataclass
class Wire:
    """Two machines and what is on its way between them, delivered only when a test says so."""

    source: Machine
    destination: Machine
    to_destination: deque[str | bytes] = field(default_factory=deque)
    to_source: deque[str | bytes] = field(default_factory=deque)
    delivered: dict[str, list[bytes]] = field(default_factory=lambda: {"source": [], "destination": []})
    loads: dict[str, list[Load]] = field(default_factory=lambda: {"source": [], "destination": []})
    ended: dict[str, Ended] = field(default_factory=dict)
    sent: list[tuple[str, str | bytes]] = field(default_factory=list)

    @classmethod
    def join(cls, hello: Hello, provides: Mapping[str, Provided] = FRESH) -> Wire:
        """A buyer whose Hello is on its way to a shop."""
        machine, actions = Machine.initiator(hello, now=0.0, timeouts=TIMEOUTS, known_uri=URI)
        wire = cls(machine, shop(provides))
        wire.perform("source", actions)
        return wire

    def perform(self, who: str, actions: list[Action]) -> None:
        """What a driver would do."""
        outgoing = self.to_destination if who == "source" else self.to_source
        for action in actions:
            match action:
                case SendText(text=message) | SendBinary(data=message):
                    outgoing.append(message)
                    self.sent.append((who, message))
                case Load():
                    self.loads[who].append(action)
                case Deliver(payload):
                    self.delivered[who].append(payload)
                case Ended():
                    assert who not in self.ended, "a session ends once"
                    self.ended[who] = action

    def deliver(self, who: str, now: float = 0.0) -> None:
        """Hand the next message on its way to `who` over."""
        machine = self.source if who == "source" else self.destination
        incoming = self.to_source if who == "source" else self.to_destination
        self.perform(who, machine.receive(incoming.popleft(), now))

    def settle(self, now: float = 0.0) -> None:
        """Deliver everything, have each side's code ready as soon as it is asked for, and hang up for whoever ended."""
        while self.to_destination or self.to_source or any(self.loads.values()):
            for who, machine in (("source", self.source), ("destination", self.destination)):
                while self.loads[who]:
                    agreement = self.loads[who].pop().agreement
                    self.perform(who, machine.apply(CodeReady(agreement.protocol_hash or HASH), now))
                if self.to_source if who == "source" else self.to_destination:
                    self.deliver(who, now)
        for who, machine in (("source", self.source), ("destination", self.destination)):
            if not machine.is_final and self.ended:
                error = next(iter(self.ended.values())).error
                self.perform(who, machine.lost(error.code if error else ""))
