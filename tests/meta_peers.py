"""Both ends of the Hello profile for tests: ready-made Hellos and machines, driven by hand or joined by a wire."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from treaty_client.meta import frame, messages
from treaty_client.meta.actions import Action, Deliver, Ended, Load, SendBinary, SendText
from treaty_client.meta.frame import ProtocolType
from treaty_client.meta.hello import Hello
from treaty_client.meta.machine import Machine, Provided, Timeouts
from treaty_client.meta.messages import CodeGeneration, MetaMessage

BUYER, SHOP = "did:wba:buyer.example", "did:wba:shop.example"
DOCUMENT = "# Agreed protocol\n"
HASH = hashlib.sha256(DOCUMENT.encode()).hexdigest()
OTHER_HASH = hashlib.sha256(b"# Another\n").hexdigest()
URI = "https://registry.example/protocols/example.com/product-info/1.0"
OTHER_URI = "https://registry.example/protocols/example.com/product-info/2.0"
FRESH = {URI: Provided(HASH, True)}
STALE = {URI: Provided(HASH, False)}
TIMEOUTS = Timeouts()


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


def destination_hello(*, capabilities: tuple[str, ...] = (), used: str | None = None, selected: str | None = None) -> Hello:
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
    )


def buyer(hello: Hello | None = None, *, known: str = URI, now: float = 0.0) -> Machine:
    """A source that has sent its Hello."""
    machine, _ = Machine.source(hello or source_hello(), now=now, timeouts=TIMEOUTS, known_uri=known)
    return machine


def shop(provides: Mapping[str, Provided] = FRESH, *, capabilities: tuple[str, ...] = (), now: float = 0.0) -> Machine:
    """A destination that waits for a Hello."""
    return Machine.destination(destination_hello(capabilities=capabilities), now=now, timeouts=TIMEOUTS, provides=provides)


def meta(message: MetaMessage) -> bytes:
    """A PT=00 frame."""
    return frame.encode(ProtocolType.META, messages.encode(message))


def application(payload: bytes) -> bytes:
    """A PT=01 frame."""
    return frame.encode(ProtocolType.APPLICATION, payload)


GENERATED, FAILED = meta(CodeGeneration("generated")), meta(CodeGeneration("error"))


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
        machine, actions = Machine.source(hello, now=0.0, timeouts=TIMEOUTS, known_uri=URI)
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
        """Deliver everything, and have each side's code ready as soon as it is asked for."""
        while self.to_destination or self.to_source or any(self.loads.values()):
            for who, machine in (("source", self.source), ("destination", self.destination)):
                while self.loads[who]:
                    agreement = self.loads[who].pop().agreement
                    self.perform(who, machine.code_ready(agreement.protocol_hash or HASH, now))
                if self.to_source if who == "source" else self.to_destination:
                    self.deliver(who, now)
