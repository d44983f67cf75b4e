"""Keys of the curve secp256k1 prove a peer only where its owner asked for it, and there they prove no more than others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from secp256k1_peers import Secp256k1Peer
from signed_requests import NOW, URL, Listener

from treaty_consensus.errors import Unauthorized
from treaty_io.identity import Identity

BODY = b"{}"
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
BOTH = pytest.mark.parametrize("bound", [True, False], ids=["k1", "plain"])


@pytest.fixture
def listener(tmp_path: Path) -> Any:
    listener = Listener(tmp_path, now=NOW - 30, legacy=True, secp256k1=True)
    listener.now = NOW
    yield listener
    listener.nonces.close()


async def refused(listener: Listener, headers: dict[str, str], body: bytes = BODY) -> str:
    """The code with which a request is refused. Nothing of it is remembered: the same nonce is still free."""
    with pytest.raises(Unauthorized) as refusal:
        await listener.verify(headers, body=body)
    return refusal.value.code


@BOTH
async def test_both_forms_of_a_request_pass_where_allowed(listener: Listener, bound: bool) -> None:
    peer = Secp256k1Peer(bound)
    listener.documents[peer.did] = peer.document()
    assert await listener.verify(peer.headers("POST", URL, BODY, created=NOW)) == peer.did
    assert await listener.verify(peer.didwba("shop.example", created=NOW, nonce="m" * 32)) == peer.did


@pytest.mark.threat(101)
@BOTH
async def test_off_by_default(tmp_path: Path, bound: bool) -> None:
    listener, peer = Listener(tmp_path, now=NOW - 30, legacy=True), Secp256k1Peer(bound)
    listener.now = NOW
    listener.documents[peer.did] = peer.document()
    assert await refused(listener, peer.headers("POST", URL, BODY, created=NOW)) == "authentication.identity"
    assert await refused(listener, peer.didwba("shop.example", created=NOW)) == "authentication.identity"
    listener.nonces.close()


@pytest.mark.threat(101)
@BOTH
async def test_a_signature_by_another_key_proves_nothing(listener: Listener, bound: bool) -> None:
    peer = Secp256k1Peer(bound)
    listener.documents[peer.did] = peer.document()
    honest = peer.headers("POST", URL, BODY, created=NOW)
    forger = Secp256k1Peer(bound)
    forged = forger.headers("POST", URL, BODY, created=NOW)
    forged = {name: value.replace(forger.did, peer.did) for name, value in forged.items()}
    assert await refused(listener, forged) == "authentication.signature"
    older = {name: value.replace(forger.did, peer.did) for name, value in forger.didwba("shop.example", created=NOW).items()}
    assert await refused(listener, older) == "authentication.signature"
    assert await refused(listener, honest, body=b"[]") == "authentication.signature"
    assert await listener.verify(honest) == peer.did, "the refused ones used nothing up"


@pytest.mark.threat(100)
@BOTH
async def test_a_request_passes_once_under_both_signatures(listener: Listener, bound: bool) -> None:
    """ECDSA has two valid signatures for one message, and anybody can make one from the other."""
    peer = Secp256k1Peer(bound)
    listener.documents[peer.did] = peer.document()
    headers = peer.headers("POST", URL, BODY, created=NOW)
    assert await listener.verify(headers) == peer.did
    assert await refused(listener, headers) == "authentication.replayed"
    sign = peer.sign

    def mirrored(message: bytes) -> bytes:
        signature = sign(message)
        return signature[:32] + (ORDER - int.from_bytes(signature[32:], "big")).to_bytes(32, "big")

    peer.sign = mirrored  # type: ignore[method-assign]
    assert await refused(listener, peer.headers("POST", URL, BODY, created=NOW)) == "authentication.replayed"
    assert await listener.verify(peer.headers("POST", URL, BODY, created=NOW, nonce="m" * 32)) == peer.did, "it does verify"


@pytest.mark.threat(101)
@pytest.mark.parametrize("signature", [b"", bytes(64), b"\xff" * 64, bytes(63), bytes(65), bytes(31) + b"\1" + bytes(32)])
async def test_signatures_that_are_none(listener: Listener, signature: bytes) -> None:
    peer = Secp256k1Peer()
    listener.documents[peer.did] = peer.document()
    peer.sign = lambda message: signature  # type: ignore[method-assign]
    peer_headers = peer.headers("POST", URL, BODY, created=NOW)
    assert await refused(listener, peer_headers) == "authentication.signature"


@pytest.mark.threat(101)
async def test_the_name_of_an_algorithm_does_not_choose_it(listener: Listener) -> None:
    """A signature that says `alg="ed25519"` is not judged as one, and a point is never read as another key."""
    peer = Secp256k1Peer()
    listener.documents[peer.did] = peer.document()
    sign, alg = peer.sign, ';alg="ed25519"'
    peer.sign = lambda message: sign(message + alg.encode())  # type: ignore[method-assign]
    headers = peer.headers("POST", URL, BODY, created=NOW)
    headers["Signature-Input"] += alg
    assert await refused(listener, headers) == "authentication.signature"


def _stranger_listed(peer: Secp256k1Peer) -> dict[str, Any]:
    """The web server lists a key of its own beside the bound one, under the old proof."""
    stranger = Secp256k1Peer().method(f"{peer.did}#key-2")
    return {**peer.document(), "verificationMethod": [peer.method(), stranger], "authentication": [peer.key_id, stranger["id"]]}


def _stranger_alone(peer: Secp256k1Peer) -> dict[str, Any]:
    """It replaces the key, and proves the document by the new one."""
    other = Secp256k1Peer()
    document = {name: value for name, value in peer.document().items() if name != "proof"}
    document["verificationMethod"] = [other.method(peer.key_id)]
    return other.proved(document, peer.key_id)


def _ed25519_instead(peer: Secp256k1Peer) -> dict[str, Any]:
    """It lists an Ed25519 key, as a document of another profile would."""
    method = {**Identity.create("old.example").did_document()["verificationMethod"][0], "id": f"{peer.did}#key-1"}  # type: ignore[index]
    return {"id": peer.did, "verificationMethod": [method], "authentication": [f"{peer.did}#key-1"]}


def _second_key_proved(peer: Secp256k1Peer) -> dict[str, Any]:
    """Even with the owner's proof a second key of the curve is none of the profile."""
    other = Secp256k1Peer().method(f"{peer.did}#key-2")
    return peer.document(verificationMethod=[peer.method(), other], authentication=[peer.key_id, other["id"]])


def _unproved(peer: Secp256k1Peer) -> dict[str, Any]:
    return {name: value for name, value in peer.document().items() if name != "proof"}


@pytest.mark.threat(103)
@pytest.mark.parametrize("serve", [_stranger_listed, _stranger_alone, _ed25519_instead, _second_key_proved, _unproved])
async def test_a_document_that_the_bound_key_did_not_make_is_refused(
    listener: Listener, serve: Callable[[Secp256k1Peer], dict[str, Any]]
) -> None:
    peer = Secp256k1Peer()
    listener.documents[peer.did] = serve(peer)
    assert await refused(listener, peer.headers("POST", URL, BODY, created=NOW)) == "authentication.identity"


@pytest.mark.threat(101)
async def test_points_that_are_on_no_curve_or_on_another_are_no_keys(listener: Listener) -> None:
    peer = Secp256k1Peer(bound=False)
    off_the_curve = {**peer.jwk, "y": Secp256k1Peer().jwk["y"]}
    for jwk in (off_the_curve, {**peer.jwk, "crv": "P-256"}, {**peer.jwk, "x": peer.jwk["x"] + "="}, {"kty": "EC"}):
        listener.now += 10  # the last refusal is no longer remembered
        listener.documents[peer.did] = peer.document(verificationMethod=[{**peer.method(), "publicKeyJwk": jwk}])
        headers = peer.headers("POST", URL, BODY, created=int(listener.now))
        assert await refused(listener, headers) == "authentication.identity"
