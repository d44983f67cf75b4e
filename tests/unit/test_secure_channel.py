"""The channel of the E2EE profile: what is signed, in which order things come, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from secure_peers import (
    BUYER,
    DOCUMENTS,
    MALLORY,
    NOW,
    SHOP,
    Peer,
    destination,
    draws,
    keys_of,
    opened,
    plain_hello,
    refused,
    shake_hands,
    source,
)

from treaty_agent.reports.report_rules import negotiation_id
from treaty_anp.e2ee import is_secure_hello, keys
from treaty_anp.e2ee.channel import LIFETIME, ChannelState, SecureChannel
from treaty_anp.e2ee.hello import BOUND, FRESHNESS, UNBOUND
from treaty_anp.e2ee.records import MAX_RECORD
from treaty_anp.hello_profile import hello as plain
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.identity import Identity

BOTH = (BOUND, UNBOUND)


def first_hello(**changed: Any) -> str:
    return plain_hello("sourceHello", BUYER, SHOP.did, **changed)


def answer() -> str:
    return plain_hello("destinationHello", SHOP, BUYER.did)


def signed(text: str, change: Callable[[dict[str, Any]], object], signer: Identity = BUYER) -> str:
    """A Hello that was changed, and signed again by whoever it is from."""
    value = json.loads(text)
    change(value)
    del value["proof"]["proofValue"]
    message = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    value["proof"]["proofValue"] = keys.sign(signer.private_key, message)
    return json.dumps(value)


def test_the_hellos_have_every_field_of_the_source() -> None:
    source_hello, answered, *_ = (json.loads(text) for text in shake_hands(source(), destination()))
    common = {
        *("version", "type", "timestamp", "messageId", "sessionId", "sourceDid", "destinationDid", "verificationMethod"),
        *("random", "proof", "metaProtocol"),
    }
    assert set(source_hello) == common | {"supportedVersions", "cipherSuites", "supportedGroups", "keyShares"}
    assert set(answered) == common | {"selectedVersion", "cipherSuite", "keyShare"}
    assert set(source_hello["keyShares"][0]) == set(answered["keyShare"]) == {"group", "expires", "keyExchange"}
    for value, signer in ((source_hello, BUYER), (answered, SHOP)):
        assert value["verificationMethod"] == keys.method_of(signer)
        assert set(value["proof"]) == {"type", "created", "verificationMethod", "proofValue"}
        assert value["timestamp"] == "2027-01-15T08:00:00.000Z"
        assert value["proof"]["created"] == "2027-01-15T08:00:00Z"


def test_both_sides_prove_their_dids_and_are_open() -> None:
    near, far = opened()
    assert (near.channel.peer, far.channel.peer) == (SHOP.did, BUYER.did)
    assert near.channel.state is far.channel.state is ChannelState.OPEN


def test_what_the_keys_came_from_is_forgotten() -> None:
    def private_keys(peer: Peer) -> list[object]:
        return [value for value in vars(peer.channel).values() if isinstance(value, ec.EllipticCurvePrivateKey)]

    near = source()
    near.say(first_hello())
    assert len(private_keys(near)) == 1
    for peer in opened():
        assert private_keys(peer) == []


def test_the_machine_ignores_additional_hello_fields() -> None:
    near, far = source(), destination()
    wire = shake_hands(near, far)
    assert far.got == [wire[0]]
    assert near.got == [wire[1]]
    for text, type, expected in ((wire[0], "sourceHello", first_hello()), (wire[1], "destinationHello", answer())):
        assert plain.parse(text, type) == plain.parse(expected, type)  # type: ignore[arg-type]


def test_the_negotiation_id_uses_the_signed_randoms() -> None:
    wire = shake_hands(source(), destination())
    hellos = plain.parse(wire[0], "sourceHello"), plain.parse(wire[1], "destinationHello")
    assert negotiation_id(*hellos) == negotiation_id(
        plain.parse(first_hello(), "sourceHello"), plain.parse(answer(), "destinationHello")
    )


def test_nothing_passes_before_finished_is_verified() -> None:
    near, far = source(), destination()
    (frame,) = near.say(first_hello())
    far.take(frame)
    assert far.got == [frame]
    answered, finished = far.say(answer())
    (reply,) = near.take(answered)
    assert near.got == []
    assert not near.channel.may_send
    near.take(finished)
    assert near.got == [answered]
    (record,) = near.say(b"\x40early")
    refused("secure.hello", far.take, record)
    assert far.got == [frame]
    refused("secure.hello", far.take, reply)


def test_a_destination_may_speak_right_behind_its_finished() -> None:
    near, far = source(), destination()
    far.take(*near.say(first_hello()))
    flight = far.say(answer()) + far.say(b"\x00{}")
    near.take(*flight)
    assert near.got == [flight[0], b"\x00{}"]


@pytest.mark.parametrize("seconds", [FRESHNESS + 1, -FRESHNESS - 1, 3600, -(10**9)])
def test_a_hello_of_another_time_is_refused(seconds: float) -> None:
    near, far = source(), destination()
    refused("secure.stale", lambda: far.take(near.say(first_hello())[0], now=NOW + seconds))
    assert far.got == []


@pytest.mark.parametrize("seconds", [FRESHNESS - 1, -FRESHNESS + 1])
def test_clocks_may_differ_a_little(seconds: float) -> None:
    far = destination()
    far.take(source().say(first_hello())[0], now=NOW + seconds)
    assert len(far.got) == 1


def test_the_answer_has_to_be_fresh_too() -> None:
    near, far = source(), destination()
    far.take(*near.say(first_hello()))
    refused("secure.stale", lambda: near.take(far.say(answer())[0], now=NOW + FRESHNESS + 1))


@pytest.mark.parametrize(
    "change, code",
    [
        (lambda value: value.update(random="short"), "secure.hello"),
        (lambda value: value.update(random="r" * 65), "secure.hello"),
        (lambda value: value.update(version="2.0"), "secure.hello"),
        (lambda value: value.update(type="destinationHello"), "secure.hello"),
        (lambda value: value.update(timestamp="2027-01-15 08:00:00"), "secure.hello"),
        (lambda value: value.update(timestamp="2027-02-31T08:00:00Z"), "secure.hello"),
        (lambda value: value["proof"].update(created="2020-01-15T08:00:00Z"), "secure.stale"),
        (lambda value: value["proof"].update(verificationMethod=f"{BUYER.did}#other"), "secure.hello: proof|signature"),
        (lambda value: value["proof"].update(type="Ed25519Signature2018"), "secure.hello: proof|signature"),
        (lambda value: value["verificationMethod"].update(type="Ed25519VerificationKey2018"), "secure.key"),
        (lambda value: value.update(destinationDid=MALLORY.did), "hello.destination"),
        (lambda value: value.update(sourceDid=MALLORY.did), "secure.identity"),
        (lambda value: value.update(cipherSuites=["TLS_AES_256_GCM_SHA384"]), "secure.no-common: cipher suite"),
        (lambda value: value.update(supportedGroups=["x25519"]), "secure.no-common: group"),
        (lambda value: value["keyShares"][0].update(group="secp384r1"), "secure.no-common: group"),
        (lambda value: value.update(keyShares=[]), "secure.no-common: group"),
        (lambda value: value["keyShares"][0].update(keyExchange="04" + "00" * 64), "secure.record: key share"),
        (lambda value: value["keyShares"][0].update(expires=0), "secure.hello"),
        (lambda value: value.update(supportedVersions=["1.0", "2.0"]), "secure.no-common: version"),
        (lambda value: value.pop("supportedVersions"), "secure.hello"),
    ],
)
def test_a_signed_source_hello_must_keep_the_rules(change: Callable[[dict[str, Any]], object], code: str) -> None:
    far = destination()
    text = signed(source().say(first_hello())[0], change)
    refused(code, far.take, text)
    assert (far.got, far.channel.peer) == ([], "")
    refused(code, lambda: far.take(source().say(first_hello())[0]))
    refused(code, far.say, answer())


@pytest.mark.parametrize(
    "change, code",
    [
        (lambda value: value.update(sessionId="t" * 16), "secure.record: another sourceHello"),
        (lambda value: value.update(destinationDid=MALLORY.did), "secure.record: another sourceHello"),
        (lambda value: value.update(selectedVersion=UNBOUND), "secure.no-common: version"),
        (lambda value: value.update(cipherSuite="TLS_AES_256_GCM_SHA384"), "secure.no-common: cipher suite"),
        (lambda value: value["keyShare"].update(group="x25519"), "secure.no-common: group"),
        (lambda value: value.pop("keyShare"), "secure.hello"),
    ],
)
def test_a_destination_hello_that_breaks_a_rule_is_refused(change: Callable[[dict[str, Any]], object], code: str) -> None:
    near, far = source(), destination()
    far.take(*near.say(first_hello()))
    text = signed(far.say(answer())[0], change, SHOP)
    refused(code, near.take, text)
    assert (near.got, near.channel.peer, near.channel.may_send) == ([], "", False)


def test_another_agent_than_the_one_that_was_meant_is_refused() -> None:
    near, far = source(), destination(MALLORY)
    (frame,) = near.say(plain_hello("sourceHello", BUYER, SHOP.did))
    refused("hello.destination", far.take, frame)
    anyone = source()
    far = destination(MALLORY)
    far.take(*anyone.say(plain_hello("sourceHello", BUYER, "")))
    anyone.take(*far.say(plain_hello("destinationHello", MALLORY, BUYER.did)))
    assert anyone.channel.peer == MALLORY.did


def test_an_unsignable_hello_is_refused_before_sending() -> None:
    for text in (
        plain_hello("sourceHello", SHOP, "", key_id=None),
        first_hello(key_id=f"{BUYER.did}#other"),
        first_hello(random=None),
        first_hello(random="r" * 16),
    ):
        near = source()
        refused("secure.hello", near.say, text)
        assert near.channel.state is ChannelState.BEGUN
    near = source()
    long = tuple("https://registry.example/" + "x" * 480 for _ in range(16))
    many = tuple("c" * 64 for _ in range(32))
    near.say(first_hello(candidate_protocols=long, capabilities=many))


def test_keys_expire_on_both_sides_at_the_earlier_time() -> None:
    near, far = source(lifetime=60), destination()
    shake_hands(near, far)
    (record, last) = near.say(b"1", NOW + 59) + near.say(b"2", NOW + 59)
    far.take(record, now=NOW + 59)
    error = refused("session.closed", near.say, b"3", NOW + 60)
    assert isinstance(error, Unavailable)
    refused("session.closed", lambda: far.take(last, now=NOW + 60))
    refused("session.closed", far.say, b"4", NOW + 59)
    assert far.got[1:] == [b"1"]
    near, far = opened()
    refused("session.closed", far.say, b"", NOW + LIFETIME)
    assert far.channel.close("", NOW + LIFETIME) == []


def test_a_plain_hello_is_refused_where_encryption_is_required() -> None:
    far = destination()
    refused("secure.required", far.take, first_hello())
    assert far.got == []
    near = source()
    near.say(first_hello())
    refused("secure.required", near.take, answer())
    assert near.got == []
    refused("secure.required", lambda: source_asked().take(b"\x40frame"))


def source_asked() -> Peer:
    near = source()
    near.say(first_hello())
    return near


def test_preferred_encryption_speaks_plainly_to_a_plain_peer() -> None:
    near, far = source(required=False), destination(required=False)
    near.say(first_hello())
    near.take(answer())
    far.take(first_hello())
    for peer, hello in ((near, answer()), (far, first_hello())):
        assert peer.got == [hello]
        assert peer.channel.send(b"\x40plain", NOW) == [b"\x40plain"]
        peer.take(b"\x40too")
        assert peer.got[-1] == b"\x40too"
        assert (peer.channel.state, peer.channel.peer) == (ChannelState.PLAIN, "")
        assert peer.channel.close("reason", NOW) == []
    both = source(required=False), destination(required=False)
    shake_hands(*both)
    assert both[0].channel.peer == SHOP.did


def test_hellos_of_the_two_profiles_are_told_apart() -> None:
    near, far = source(), destination()
    source_hello, answered, *rest = shake_hands(near, far)
    assert is_secure_hello(source_hello)
    assert is_secure_hello(answered)
    for text in (first_hello(), answer(), "", "[]", "{", "7", "\ud800", '"proof"', "x" * 40_000, rest[0]):
        assert not is_secure_hello(text)
    for mark in ("proof", "keyShares"):
        value = json.loads(source_hello)
        del value[mark]
        assert is_secure_hello(json.dumps(value)), "half a signed Hello is no plain one"


def test_only_text_comes_in() -> None:
    for at in (opened()[0], source_keyed()):
        refused("secure.record", at.take, b"\x40frame")


def source_keyed() -> Peer:
    near, far = source(), destination()
    far.take(*near.say(first_hello()))
    near.take(far.say(answer())[0])
    assert near.channel.state is ChannelState.KEYED
    return near


def test_what_comes_out_of_turn_is_refused() -> None:
    near = source()
    refused("secure.key", near.say, b"\x40frame")
    refused("secure.record", near.take, "{}")
    far = destination()
    refused("secure.key", far.say, answer())
    far.take(*source().say(first_hello()))
    refused("secure.record", far.take, "{}")
    assert source().channel.resolved(SHOP.did_document(), NOW) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"type": "message"}', "\ud800", '{"type": 1}', "x" * (MAX_RECORD + 1)],
    ids=lambda text: text[:12],
)
def test_what_is_no_record_is_refused(text: str) -> None:
    for peer in (*opened(), source_keyed(), source_asked(), destination()):
        before = list(peer.got)
        with pytest.raises(TreatyError):
            peer.take(text)
        assert peer.got == before
        assert peer.channel.state is ChannelState.BROKEN


def source_keyed_in(version: str) -> tuple[Peer, str, bytes]:
    """A source that waits for the destination's `finished`, the keys' public name, and the destination's key."""
    near, far = source(versions=(version,)), destination(versions=(version,))
    far.take(*near.say(first_hello()))
    near.take(far.say(answer())[0])
    session_keys = keys_of(near)
    assert session_keys is not None
    return near, session_keys.key_id, session_keys.destination


@pytest.mark.parametrize(
    "version, changed, fine",
    [
        (BOUND, {}, False),
        (BOUND, {"transcript": "0" * 64}, False),
        (BOUND, {"transcript": None}, False),
        (UNBOUND, {}, True),
        (UNBOUND, {"transcript": "0" * 64}, False),
        (UNBOUND, {"secretKeyId": "0" * 16}, False),
    ],
)
def test_finished_says_what_its_version_asks_for(version: str, changed: dict[str, str], fine: bool) -> None:
    near, key_id, key = source_keyed_in(version)
    text = _finished_by_hand(key, **({"secretKeyId": key_id} | changed))
    if fine:
        near.take(text)
        assert len(near.got) == 1
        return
    refused("secure.hello", near.take, text)
    assert near.got == []


@pytest.mark.parametrize(
    "changed",
    [{"version": "1.1"}, {"type": "message"}, {"sessionId": "t" * 16}, {"sourceDid": MALLORY.did}, {"destinationDid": SHOP.did}],
)
def test_a_finished_of_another_session_is_refused(changed: dict[str, str]) -> None:
    near, key_id, key = source_keyed_in(UNBOUND)
    text = json.dumps(json.loads(_finished_by_hand(key, secretKeyId=key_id)) | changed)
    refused("secure.hello", near.take, text)
    assert near.got == []


def _finished_by_hand(key: bytes, **secret: Any) -> str:
    sealed = AESGCM(key).encrypt(bytes(12), json.dumps(secret).encode(), None)
    parts = {"iv": bytes(12), "tag": sealed[-16:], "ciphertext": sealed[:-16]}
    envelope = {"version": "1.0", "type": "finished", "sessionId": "s" * 16, "sourceDid": SHOP.did, "destinationDid": BUYER.did}
    return json.dumps(envelope | {"verifyData": {name: base64.b64encode(part).decode() for name, part in parts.items()}})


def test_keys_of_all_kinds_sign_hellos() -> None:
    for curve in (ec.SECP256R1(), ec.SECP256K1()):
        shop = _EcSigner(SHOP.did, f"{SHOP.did}#ec", ec.generate_private_key(curve))
        method = keys.method_of(shop)
        documents = DOCUMENTS | {SHOP.did: {"id": SHOP.did, "authentication": [method]}}
        near = Peer(SecureChannel(BUYER, is_initiator=True, draw=draws("near")), BUYER, documents)
        far = Peer(SecureChannel(shop, is_initiator=False, draw=draws("far")), shop)
        shake_hands(near, far)
        assert near.channel.peer == SHOP.did


class _EcSigner:
    def __init__(self, did: str, key_id: str, private_key: Any) -> None:
        self.did, self.key_id, self.private_key = did, key_id, private_key


def test_a_did_key_needs_no_resolver() -> None:
    someone = Identity.create()
    near = Peer(SecureChannel(someone, is_initiator=True, draw=draws("near")), someone)
    far = Peer(SecureChannel(SHOP, is_initiator=False, draw=draws("far")), SHOP, documents={})
    shake_hands(near, far)
    assert far.channel.peer == someone.did
