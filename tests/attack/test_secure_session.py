"""Somebody in between, who sees and changes everything: the E2EE profile leaves them nothing to read and nothing to say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
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
    plain_hello,
    shake_hands,
    source,
)

from treaty_anp.e2ee import key_schedule, keys
from treaty_anp.e2ee.accepted_hellos import AcceptedHellos
from treaty_anp.e2ee.hello import FRESHNESS, UNBOUND
from treaty_consensus.errors import TreatyError
from treaty_io.identity import Identity

ASKED = plain_hello("sourceHello", BUYER, SHOP.did)
ANSWERED = plain_hello("destinationHello", SHOP, BUYER.did)
MALLORYS_KEY = ec.derive_private_key(666, ec.SECP256R1())


def changed(text: str, change: Callable[[dict[str, Any]], object], signer: Identity | None = None) -> str:
    """A message that was changed in between; signed anew by `signer`, in its own name or not."""
    value = json.loads(text)
    change(value)
    if signer is not None:
        del value["proof"]["proofValue"]
        message = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        value["proof"]["proofValue"] = keys.sign(signer.private_key, message)
    return json.dumps(value)


def refused(code: str, reader: Peer, text: str, now: float = NOW) -> None:
    before = list(reader.got)
    with pytest.raises(TreatyError) as refusal:
        reader.take(text, now=now)
    assert refusal.value.code == code
    assert reader.got == before


def swap_shares(value: dict[str, Any]) -> None:
    share = key_schedule.share(MALLORYS_KEY)
    for one in value.get("keyShares", [value.get("keyShare")]):
        one["keyExchange"] = share


def claim_key(value: dict[str, Any]) -> None:
    """Another key, under the name of the claimed DID's own."""
    value["verificationMethod"]["publicKeyHex"] = MALLORY.public_key.hex()


@pytest.mark.threat(105)
@pytest.mark.parametrize("signer", [None, MALLORY])
def test_swapping_the_sources_key_share_is_refused(signer: Identity | None) -> None:
    far = destination()
    refused("secure.hello", far, changed(source().say(ASKED)[0], swap_shares, signer))
    assert far.channel.peer == ""


@pytest.mark.parametrize("signer", [None, MALLORY])
def test_swapping_the_destinations_key_share_is_refused(signer: Identity | None) -> None:
    near, far = source(), destination()
    far.take(*near.say(ASKED))
    refused("secure.hello", near, changed(far.say(ANSWERED)[0], swap_shares, signer))
    assert near.channel.peer == ""


@pytest.mark.threat(106)
def test_claiming_a_did_with_another_key_is_refused() -> None:
    def impersonate(value: dict[str, Any]) -> None:
        swap_shares(value)
        claim_key(value)

    refused("secure.identity", destination(), changed(source().say(ASKED)[0], impersonate, MALLORY))
    near, far = source(), destination()
    far.take(*near.say(ASKED))
    refused("secure.identity", near, changed(far.say(ANSWERED)[0], impersonate, MALLORY))


def test_claiming_a_did_with_a_key_of_ones_own_did_is_refused() -> None:
    def impersonate(value: dict[str, Any]) -> None:
        value["verificationMethod"] = keys.method_of(MALLORY)
        value["proof"]["verificationMethod"] = MALLORY.key_id

    refused("secure.identity", destination(), changed(source().say(ASKED)[0], impersonate, MALLORY))
    someone = Identity.create()

    def by_did_key(value: dict[str, Any]) -> None:
        value["verificationMethod"] = keys.method_of(someone)
        value["proof"]["verificationMethod"] = someone.key_id

    refused("secure.identity", destination(), changed(source().say(ASKED)[0], by_did_key, someone))


@pytest.mark.threat(106)
def test_a_key_that_the_document_no_longer_lists_proves_nothing() -> None:
    document = BUYER.did_document()
    for gone in (document | {"authentication": []}, document | {"deactivated": True}, MALLORY.did_document()):
        far = Peer(destination().channel, SHOP, documents=DOCUMENTS | {BUYER.did: gone})
        refused("secure.identity", far, source().say(ASKED)[0])


def test_another_agents_answer_is_not_the_asked_ones() -> None:
    near, mallory = source(), destination(MALLORY)
    (frame,) = near.say(ASKED)
    refused("hello.destination", mallory, frame)
    mallory = destination(MALLORY)
    mallory.take(changed(frame, lambda value: value.update(destinationDid=MALLORY.did), BUYER))
    (answered, _) = mallory.say(plain_hello("destinationHello", MALLORY, BUYER.did))
    refused("hello.destination", near, answered)


@pytest.mark.threat(105)
def test_a_key_share_passed_off_as_ones_own_leads_nowhere() -> None:
    """Mallory, known to both, has each of them believe that the other's key share is Mallory's: both then derive the same keys,
    and only what `finished` covers tells them that they are not talking to whom they think."""
    near, far = source(), destination()
    (frame,) = near.say(plain_hello("sourceHello", BUYER, MALLORY.did))

    def as_mallory(value: dict[str, Any]) -> None:
        value["sourceDid"] = MALLORY.did
        value["destinationDid"] = SHOP.did if value["type"] == "sourceHello" else BUYER.did
        value["verificationMethod"] = keys.method_of(MALLORY)
        value["proof"]["verificationMethod"] = MALLORY.key_id

    far.take(changed(frame, as_mallory, MALLORY))
    answered, finished = far.say(plain_hello("destinationHello", SHOP, MALLORY.did))
    near.take(changed(answered, as_mallory, MALLORY))
    assert keys_of(near) == keys_of(far)
    forged = changed(finished, lambda value: value.update(sourceDid=MALLORY.did, destinationDid=BUYER.did))
    refused("secure.hello", near, forged)


@pytest.mark.parametrize("which", ["sourceHello", "destinationHello"])
def test_a_hello_that_was_only_written_in_another_way_is_noticed(which: str) -> None:
    """The signature is over what a Hello says, `finished` over how it was written."""
    near, far = source(), destination()

    def rewrite(text: str) -> str:
        return json.dumps(json.loads(text)) if json.loads(text)["type"] == which else text

    far.take(rewrite(near.say(ASKED)[0]))
    answered, finished = far.say(ANSWERED)
    (reply,) = near.take(rewrite(answered))
    refused("secure.hello", near, finished)
    refused("secure.hello", far, reply)


@pytest.mark.threat(105)
def test_a_recorded_hello_opens_nothing() -> None:
    wire = shake_hands(source(), destination())
    again = destination(draw=draws("another session"))
    again.take(wire[0], now=NOW + 1)
    again.say(ANSWERED, NOW + 1)
    refused("secure.record", again, wire[3], NOW + 1)
    later = destination()
    refused("secure.stale", later, wire[0], NOW + FRESHNESS + 1)


def test_records_of_one_session_are_not_those_of_another() -> None:
    first, second = (source(), destination()), (source(), destination(draw=draws("second")))
    for near, far in (first, second):
        shake_hands(near, far)
    (record,) = first[0].say(b"\x40pay")
    refused("secure.record", second[1], record)


def strip(value: dict[str, Any]) -> None:
    for name in ("proof", "keyShares", "keyShare", "timestamp", "supportedVersions", "cipherSuites", "supportedGroups"):
        value.pop(name, None)
    value["verificationMethod"] = {"id": value["verificationMethod"]["id"]}


@pytest.mark.threat(107)
def test_a_stripped_encryption_is_refused_where_required() -> None:
    near, far = source(), destination()
    (frame,) = near.say(ASKED)
    refused("secure.required", far, changed(frame, strip))
    far = destination()
    far.take(frame)
    refused("secure.required", near, changed(far.say(ANSWERED)[0], strip))


def test_taking_a_part_of_it_out_is_refused_everywhere() -> None:
    for name in ("proof", "keyShares"):
        far = destination(required=False)
        with pytest.raises(TreatyError):
            far.take(changed(source().say(ASKED)[0], lambda value, name=name: value.pop(name)))  # type: ignore[misc]
        assert far.got == []


@pytest.mark.threat(107)
def test_an_older_version_cannot_be_slipped_in() -> None:
    both = ("1.1", UNBOUND)
    near, far = source(versions=both), destination(versions=both)
    (frame,) = near.say(ASKED)
    refused("secure.hello", far, changed(frame, lambda value: value.update(supportedVersions=[UNBOUND])))
    far = destination(versions=both)
    far.take(frame)
    refused("secure.hello", near, changed(far.say(ANSWERED)[0], lambda value: value.update(selectedVersion=UNBOUND)))


@pytest.mark.threat(364)
def test_a_recorded_hello_opens_no_second_session() -> None:
    accepted = AcceptedHellos()
    far, again, later = (destination(accepted=accepted) for _ in range(3))
    (frame,) = source().say(ASKED)
    far.take(frame)
    assert [json.loads(str(got))["random"] for got in far.got] == [json.loads(frame)["random"]]
    refused("secure.replayed", again, frame)
    spaced = json.dumps(json.loads(frame), indent=1)
    refused("secure.replayed", destination(accepted=accepted), spaced)
    refused("secure.stale", later, frame, now=NOW + FRESHNESS + 1)


@pytest.mark.threat(364)
def test_a_flood_of_hellos_keeps_out_no_fresh_one() -> None:
    accepted = AcceptedHellos(capacity=3)
    for number in range(9):
        accepted.accept("did:wba:mallory.example", str(number), NOW + number, NOW + number)
    accepted.accept("did:wba:alice.example", "0", NOW + 8.5, NOW + 9)
    for random, code in (("2", "secure.stale"), ("8", "secure.replayed")):
        with pytest.raises(TreatyError) as refusal:
            accepted.accept("did:wba:mallory.example", random, NOW + int(random), NOW + 9)
        assert refusal.value.code == code
    accepted.accept("did:wba:mallory.example", "0", NOW + FRESHNESS + 20, NOW + FRESHNESS + 20)
