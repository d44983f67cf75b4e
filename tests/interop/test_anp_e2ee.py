"""The handshake and the records of the E2EE profile, version 1.0, with the official SDK at the other end."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from secure_peers import Peer

from treaty_anp.e2ee import keys
from treaty_anp.e2ee.channel import ChannelState, SecureChannel
from treaty_anp.e2ee.hello import BOUND, UNBOUND
from treaty_consensus.errors import TreatyError

VECTORS = Path(__file__).parents[1] / "vectors" / "e2ee"
RECORDED = json.loads((VECTORS / "handshake.json").read_text())
SESSION = "5" * 32
FRAME = b'\x00{"action": "codeGeneration", "status": "generated"}'
ALL_VERSIONS = (BOUND, UNBOUND)


class SdkSigner:
    """An identity as the SDK has them: a P-256 key, and a DID that is its hash."""

    def __init__(self, did: str, private_key: ec.EllipticCurvePrivateKey) -> None:
        self.did, self.key_id, self.private_key = did, f"{did}#keys-1", private_key


def document(did: str, public_key_hex: str) -> dict[str, Any]:
    method = {"id": f"{did}#keys-1", "type": "EcdsaSecp256r1VerificationKey2019", "publicKeyHex": public_key_hex}
    return {"id": did, "verificationMethod": [method], "authentication": [method]}


def plain_hello(type: str, signer: SdkSigner, to: str, random: str) -> str:
    """What our machine would say, which knows no such DIDs."""
    return json.dumps(
        {
            "version": "1.0",
            "type": type,
            "messageId": "m" * 16,
            "sessionId": SESSION,
            "sourceDid": signer.did,
            "destinationDid": to,
            "random": random,
            "metaProtocol": {"version": "1.0", "supportedCapabilities": []},
        }
    )


def private_key(scalar: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int(scalar, 16), ec.SECP256R1())


@pytest.mark.parametrize("role", ["source", "destination"])
def test_a_recorded_session_of_the_sdk_is_read_from_either_side(role: str) -> None:
    """This side takes the place of one of the two, with its keys: what the other one said then, it says now."""
    other = "destination" if role == "source" else "source"
    own, theirs = RECORDED["sides"][role], RECORDED["sides"][other]
    texts = [message["text"] for message in RECORDED["messages"] if message["from"] == other]
    now = _time_of(json.loads(texts[0]))
    signer = SdkSigner(own["did"], private_key(own["privateKey"]))
    seed = (int(own["ephemeral"], 16) - 1).to_bytes(48, "big")
    channel = SecureChannel(signer, is_initiator=role == "source", draw=lambda size: seed[-size:], versions=ALL_VERSIONS)
    peer = Peer(channel, signer, {theirs["did"]: document(theirs["did"], theirs["publicKeyHex"])})
    random = next(json.loads(m["text"])["random"] for m in RECORDED["messages"] if m["from"] == role)
    hello = plain_hello(f"{role}Hello", signer, theirs["did"], random)
    if role == "source":
        peer.say(hello, now)
        peer.take(texts[0], now=now)
    else:
        peer.take(texts[0], now=now)
        peer.say(hello, now)
    peer.take(*texts[1:], now=now)
    assert channel.state is ChannelState.OPEN
    assert channel.peer == theirs["did"]
    assert peer.got == [texts[0], FRAME]


def _time_of(hello: dict[str, Any]) -> float:
    return datetime.fromisoformat(hello["timestamp"]).timestamp()


@pytest.fixture
def end(sdk_script: Callable[[str], Any]) -> Iterator[Any]:
    """One end of the SDK."""
    with sdk_script("e2ee.py") as running:
        yield running


def us(end: Any, *, is_initiator: bool, versions: tuple[str, ...] = ALL_VERSIONS) -> tuple[SdkSigner, SecureChannel]:
    key = ec.generate_private_key(ec.SECP256R1())
    signer = SdkSigner(end.call("address", public_key_hex=keys.public_key(key).data.hex()), key)
    return signer, SecureChannel(signer, is_initiator=is_initiator, draw=secrets.token_bytes, versions=versions)


def as_source(end: Any, **options: Any) -> Peer:
    """A session that this side began."""
    signer, channel = us(end, is_initiator=True, **options)
    theirs = end.call("begin", peer=signer.did, session=SESSION, initiator=False)
    peer = Peer(channel, signer, {theirs["did"]: document(theirs["did"], theirs["publicKeyHex"])})
    (frame,) = peer.say(plain_hello("sourceHello", signer, theirs["did"], secrets.token_hex(32)), time.time())
    answered, finished = end.call("receive", text=frame)
    (reply,) = peer.take(json.dumps(answered), now=time.time())
    peer.take(json.dumps(finished), now=time.time())
    assert end.call("receive", text=reply) == []
    return peer


def as_destination(end: Any, **options: Any) -> Peer:
    """A session that the SDK began."""
    signer, channel = us(end, is_initiator=False, **options)
    theirs = end.call("begin", peer=signer.did, session=SESSION, initiator=True)
    peer = Peer(channel, signer, {theirs["did"]: document(theirs["did"], theirs["publicKeyHex"])})
    peer.take(json.dumps(theirs["sent"][0]), now=time.time())
    answered, finished = peer.say(plain_hello("destinationHello", signer, theirs["did"], secrets.token_hex(32)), time.time())
    (reply,) = end.call("receive", text=answered)
    peer.take(json.dumps(reply), now=time.time())
    assert end.call("receive", text=finished) == []
    return peer


@pytest.mark.parametrize("begin", [as_source, as_destination])
def test_the_sdk_and_this_side_speak_in_either_role(end: Any, begin: Callable[[Any], Peer]) -> None:
    peer = begin(end)
    assert end.call("finished")
    assert peer.channel.state is ChannelState.OPEN
    assert peer.channel.peer.startswith("did:all:")
    (record,) = peer.say(FRAME, time.time())
    assert end.call("decrypt", text=record) == FRAME.decode()
    peer.take(json.dumps(end.call("encrypt", frame=FRAME.decode())), now=time.time())
    assert peer.got[1:] == [FRAME]


@pytest.mark.parametrize("begin", [as_source, as_destination])
def test_the_sdks_unordered_records_are_refused_by_default(end: Any, begin: Callable[..., Peer]) -> None:
    with pytest.raises(TreatyError) as refusal:
        begin(end, versions=(BOUND,))
    assert refusal.value.code == "secure.no-common"


def test_the_sdk_refuses_a_hello_that_was_changed(end: Any) -> None:
    signer, channel = us(end, is_initiator=True)
    theirs = end.call("begin", peer=signer.did, session=SESSION, initiator=False)
    (message,) = channel.send(plain_hello("sourceHello", signer, theirs["did"], secrets.token_hex(32)), time.time())
    assert end.call("receive", text=json.dumps(json.loads(message) | {"random": "0" * 64})) == []
    assert not end.call("finished")


# Why a session of an agent with the SDK stays without encryption. The day one of these fails, the SDK has changed.


def test_the_sdk_accepts_no_identity_but_the_hash_of_a_p256_key(end: Any) -> None:
    """An agent with a did:wba proves its key by its document, which the SDK does not fetch."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = SdkSigner("did:wba:shop.example", key)
    channel = SecureChannel(signer, is_initiator=True, draw=secrets.token_bytes, versions=ALL_VERSIONS)
    theirs = end.call("begin", peer=signer.did, session=SESSION, initiator=False)
    (message,) = channel.send(plain_hello("sourceHello", signer, theirs["did"], secrets.token_hex(32)), time.time())
    assert end.call("receive", text=message) == []
    assert not end.call("finished")


def test_the_hellos_of_the_sdk_say_nothing_of_the_meta_protocol(end: Any) -> None:
    """Accepting did:all would not be enough: the mandatory fields of a Hello are missing, so there is nothing to agree on."""
    signer, _ = us(end, is_initiator=False)
    source = end.call("begin", peer=signer.did, session=SESSION, initiator=True)["sent"][0]
    assert source["metaProtocol"] == {"version": "1.0", "protocolHash": None}
    signer, channel = us(end, is_initiator=True)
    theirs = end.call("begin", peer=signer.did, session=SESSION, initiator=False)
    (message,) = channel.send(plain_hello("sourceHello", signer, theirs["did"], secrets.token_hex(32)), time.time())
    destination, _ = end.call("receive", text=message)
    assert "metaProtocol" not in destination


@pytest.mark.parametrize("frame", [b"\x80hello", b'@{"price": "1 \xff"}'])
def test_the_sdk_reads_no_frame_that_is_no_text(end: Any, frame: bytes) -> None:
    """It decodes what it decrypts as UTF-8: frames of natural language, and binary ones, get lost without a word."""
    peer = as_source(end)
    (record,) = peer.say(frame, time.time())
    assert end.call("decrypt", text=record) is None
