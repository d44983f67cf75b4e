"""Both ends of the E2EE profile for tests: identities, and channels that are joined by hand."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rejections import rejection
from signers import domain_signer

from treaty_agent.transport.connection import Connection, next_message
from treaty_agent.transport.secure import SecureConnection
from treaty_anp.e2ee.channel import Action, Resolve, SecureChannel, SendRecord
from treaty_anp.e2ee.key_schedule import SessionKeys
from treaty_anp.e2ee.keys import HelloSigner
from treaty_anp.e2ee.records import ReceivedMessage
from treaty_anp.hello_profile.hello import Hello, HelloType
from treaty_consensus.errors import NotFound, TreatyError
from treaty_io.identity import Identity


def identity(domain: str) -> Identity:
    """The identity of a domain, with a key derived from its name."""
    signer = domain_signer(domain)
    return Identity(signer.did, signer.key_id, Ed25519PrivateKey.from_private_bytes(signer.private_key.private_bytes_raw()))


BUYER, SHOP, MALLORY = (identity(f"{name}.example") for name in ("buyer", "shop", "mallory"))
NOW = 1_800_000_000.0
DOCUMENTS: dict[str, Mapping[str, Any]] = {one.did: one.did_document() for one in (BUYER, SHOP, MALLORY)}


def draws(name: str) -> Callable[[int], bytes]:
    """Randomness that is the same every time."""
    numbers = itertools.count()
    return lambda size: hashlib.shake_256(f"{name} {next(numbers)}".encode()).digest(size)


async def resolve(did: str, key_id: str = "") -> Mapping[str, Any]:
    """The documents of everybody here."""
    if did not in DOCUMENTS:
        raise NotFound("did.unknown", f"{did} has no document.")
    return DOCUMENTS[did]


def plain_hello(type: HelloType, signer: HelloSigner, to: str, **changed: Any) -> str:
    """A Hello as the machine says it."""
    fields: dict[str, Any] = {
        "message_id": "m" * 16,
        "session_id": "s" * 16,
        "source_did": signer.did,
        "destination_did": to,
        "random": ("b" if type == "sourceHello" else "t") * 32,
        "key_id": signer.key_id,
    }
    return Hello(type=type, **(fields | changed)).format()


@dataclass
class Peer:
    """One end: its channel, and what was handed on to its machine. It knows every DID document."""

    channel: SecureChannel
    signer: HelloSigner
    documents: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: DOCUMENTS)
    got: list[str | bytes] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def take(self, *messages: str | bytes, now: float = NOW) -> list[str]:
        """Receive messages; returns what is said at once."""
        return [text for message in messages for text in self._act(self.channel.receive(message, now), now)]

    def say(self, message: str | bytes, now: float = NOW) -> list[str]:
        """What goes on the wire for a message."""
        answer = self.channel.send(message, now)
        assert all(isinstance(one, str) for one in answer)
        return [str(one) for one in answer]

    def _act(self, actions: list[Action], now: float) -> list[str]:
        replies: list[str] = []
        for action in actions:
            match action:
                case SendRecord(text):
                    replies.append(text)
                case Resolve(did, _):
                    replies += self._act(self.channel.resolved(self.documents[did], now), now)
                case ReceivedMessage(content):
                    self.got.append(content)
                case _:
                    self.ends.append(action.reason)
        return replies


def source(signer: Identity = BUYER, **options: Any) -> Peer:
    """A side that connects."""
    return Peer(SecureChannel(signer, is_initiator=True, **({"draw": draws(f"source {signer.did}")} | options)), signer)


def destination(signer: Identity = SHOP, **options: Any) -> Peer:
    """A side that is connected to."""
    return Peer(SecureChannel(signer, is_initiator=False, **({"draw": draws(f"destination {signer.did}")} | options)), signer)


def keys_of(peer: Peer) -> SessionKeys | None:
    """The session's keys, which the channel shows to no one."""
    return peer.channel._keys


def shake_hands(near: Peer, far: Peer, *, now: float = NOW) -> list[str]:
    """The whole handshake: source and destination are open. Returns its four messages."""
    (frame,) = near.say(plain_hello("sourceHello", near.signer, far.signer.did), now)
    assert far.take(frame, now=now) == []
    answered = far.say(plain_hello("destinationHello", far.signer, near.signer.did), now)
    replies = near.take(*answered, now=now)
    assert far.take(*replies, now=now) == []
    return [frame, *answered, *replies]


def opened(**options: Any) -> tuple[Peer, Peer]:
    """Two ends whose handshake is over."""
    near, far = source(**options), destination(**options)
    shake_hands(near, far)
    return near, far


def refused(code: str, action: Callable[..., object], *arguments: object) -> TreatyError:
    """Expect an error with this code, or "CODE: PATTERN" for one of its reasons."""
    with pytest.raises(TreatyError) as refusal:
        action(*arguments)
    assert rejection(refusal.value, code) == code
    return refusal.value


async def greet(near: Connection, far: Connection) -> None:
    """The handshake over two secure connections, as two machines would make it."""
    near.send(plain_hello("sourceHello", BUYER, SHOP.did))
    await next_message(far)
    far.send(plain_hello("destinationHello", SHOP, BUYER.did))
    await next_message(near)


def secured(near: Connection, far: Connection, **options: Any) -> tuple[SecureConnection, SecureConnection]:
    """Encrypt what two connected ends carry."""
    options = {"resolve": resolve} | options
    return SecureConnection.source(near, BUYER, **options), SecureConnection.destination(far, SHOP, **options)
