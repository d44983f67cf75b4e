"""Requests in somebody else's name."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from signed_requests import NOW, URL, Listener

from treaty_agent.authentication.nonces import LIFETIME
from treaty_agent.authentication.request_signing import RequestSigner
from treaty_consensus.errors import Unauthorized
from treaty_io.identity import Identity

ALICE = Identity.create("alice.example", bind=True)
MALLORY = Identity.create("mallory.example")


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(tmp_path, now=NOW - 2 * LIFETIME)
    listener.now = NOW
    for identity in (ALICE, MALLORY):
        listener.knows(identity)
    yield listener
    listener.nonces.close()


def signer(identity: Identity) -> RequestSigner:
    return RequestSigner(identity, clock=lambda: NOW)


async def refused(listener: Listener, headers: dict[str, str], **request: object) -> str:
    with pytest.raises(Unauthorized) as refusal:
        await listener.verify(headers, **request)  # type: ignore[arg-type]
    return refusal.value.code


@pytest.mark.threat(101)
async def test_a_signature_over_the_authority_alone_is_refused(listener: Listener) -> None:
    """The official SDK's verifier accepts it on any method and path (tests/interop)."""
    inputs = f'("@authority");created={NOW};expires={NOW + 300};nonce="n";keyid="{ALICE.key_id}"'
    base = f'"@authority": shop.example\n"@signature-params": {inputs}'
    signature = base64.b64encode(ALICE.sign(base.encode())).decode()
    headers = {"Signature-Input": f"sig1={inputs}", "Signature": f"sig1=:{signature}:"}
    for method in ("GET", "DELETE"):
        assert await refused(listener, headers, method=method, body=b"") == "authentication.signature"


@pytest.mark.threat(101)
async def test_another_body_is_not_the_one_that_was_signed(listener: Listener) -> None:
    headers = signer(ALICE).headers("POST", URL, b'{"pay":1}')
    assert await refused(listener, headers, body=b'{"pay":9}') == "authentication.signature"
    other = signer(MALLORY).headers("POST", URL, b'{"pay":9}')["Content-Digest"]
    assert await refused(listener, {**headers, "Content-Digest": other}, body=b'{"pay":9}') == "authentication.signature"
    bodiless = signer(ALICE).headers("POST", URL)
    assert await refused(listener, bodiless, body=b'{"pay":9}') == "authentication.signature"
    assert await refused(listener, {**bodiless, "Content-Digest": other}, body=b'{"pay":9}') == "authentication.signature"


@pytest.mark.threat(101)
async def test_a_key_id_is_not_swapped(listener: Listener) -> None:
    headers = signer(MALLORY).headers("POST", URL, b"{}")
    forged = {**headers, "Signature-Input": headers["Signature-Input"].replace(MALLORY.key_id, ALICE.key_id)}
    assert await refused(listener, forged) == "authentication.signature"


async def test_two_key_ids_do_not_confuse_it(listener: Listener) -> None:
    """One inside the nonce, for whoever looks for the text alone."""
    for first, second in ((ALICE, MALLORY), (MALLORY, ALICE)):
        nonce = f';keyid=\\"{first.key_id}\\"'
        inputs = f'("@method" "@target-uri" "@authority");created={NOW};nonce="{nonce}";keyid="{second.key_id}"'
        base = f'"@method": GET\n"@target-uri": {URL}\n"@authority": shop.example\n"@signature-params": {inputs}'
        signature = base64.b64encode(MALLORY.sign(base.encode())).decode()
        headers = {"Signature-Input": f"sig1={inputs}", "Signature": f"sig1=:{signature}:"}
        try:
            assert await listener.verify(headers, method="GET", body=b"") == MALLORY.did == second.did
        except Unauthorized:
            assert second == ALICE


@pytest.mark.threat(103)
async def test_a_strangers_key_proves_nothing_for_a_bound_did(listener: Listener) -> None:
    """The web server was taken over: it serves a document with the thief's key."""
    document = ALICE.did_document()
    thief = Identity.create("alice.example")
    method = {"id": f"{ALICE.did}#key-2", "type": "Multikey", "controller": ALICE.did}
    method |= {
        "publicKeyMultibase": str(thief.did_document()["verificationMethod"]).split("'publicKeyMultibase': '")[1].split("'")[0]
    }
    listener.documents[ALICE.did] = {**document, "verificationMethod": [method], "authentication": [method["id"]]}
    forged = signer(thief).headers("POST", URL, b"{}")
    forged = {**forged, "Signature-Input": forged["Signature-Input"].replace(thief.key_id, method["id"])}
    assert await refused(listener, forged) == "authentication.identity"


@pytest.mark.threat(101)
async def test_a_rotated_key_or_a_deactivated_did_sends_nothing(listener: Listener) -> None:
    assert await listener.verify(signer(ALICE).headers("POST", URL, b"{}")) == ALICE.did
    old_headers = signer(MALLORY).headers("POST", URL, b"{}")
    listener.knows(MALLORY.rotated())
    assert await refused(listener, old_headers) == "authentication.identity"
    listener.now += 61
    listener.documents[ALICE.did] = ALICE.did_document(deactivated=True)
    late = RequestSigner(ALICE, clock=lambda: listener.now).headers("POST", URL, b"{}")
    assert await refused(listener, late) == "authentication.identity"
