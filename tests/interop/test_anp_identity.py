"""The official SDK and Treaty accept each other's DIDs and signed requests, but for what the SDK should not accept."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from signed_requests import URL, Listener

from treaty_agent.authentication.request_signing import RequestSigner
from treaty_agent.transport.connection import Connection, next_message
from treaty_agent.transport.http import MEDIA_TYPE, SESSIONS, decode_messages, encode_messages
from treaty_agent.transport.listener import listen
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Unauthorized
from treaty_io.identity import Identity
from treaty_io.network.did_documents import read_did_document

BODY = b'{"hello":"w\xc3\xb6rld"}'
MODES = ["http_signatures", "legacy_didwba"]
IDENTITIES = [
    Identity.create("agent.example"),
    Identity.create("agent.example:users:alice"),
    Identity.create("agent.example%3A8443:users:alice"),
    Identity.create("agent.example", bind=True),
    Identity.create("agent.example:users:alice", bind=True),
    Identity.create("agent.example", bind=True).rotated(),
    Identity.create("agent.example:users:alice").rotated(),
]
NAMES = ("domain", "path", "port", "bound", "bound path", "bound, rotated", "path, rotated")


def encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """One that reads the time that the SDK reads, and accepts the older form; it started a while ago."""
    listener = Listener(tmp_path, now=time.time() - 30, legacy=True)
    listener.now = time.time()
    yield listener
    listener.nonces.close()


@pytest.mark.parametrize("identity", IDENTITIES, ids=NAMES)
def test_our_documents_are_valid_to_the_sdk(sdk: Any, identity: Identity) -> None:
    document = identity.did_document(services=[{"id": f"{identity.did}#ad", "type": "AgentDescription", "serviceEndpoint": "x"}])
    assert sdk.call("validate", document=document) is True
    assert sdk.call("validate", document=json.loads(json.dumps(document))) is True


def test_a_changed_bound_document_is_refused_by_both(sdk: Any) -> None:
    identity = Identity.create("agent.example:u", bind=True)
    document = identity.did_document()
    changed = {**document, "alsoKnownAs": ["did:wba:evil.example"]}
    assert sdk.call("validate", document=changed) is False
    with pytest.raises(Unauthorized, match="does not verify"):
        read_did_document(identity.parsed, json.dumps(changed).encode())


@pytest.mark.parametrize("path", [[], ["users", "alice"]])
def test_the_sdks_documents_are_valid_to_us(sdk: Any, path: list[str]) -> None:
    document = sdk.call("create", host="agent.example", path=path)["document"]
    read = read_did_document(parse_did(document["id"]), json.dumps(document).encode())
    assert list(read.keys) == [document["authentication"][0]]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("identity", IDENTITIES, ids=NAMES)
def test_the_sdk_accepts_our_requests(sdk: Any, identity: Identity, legacy: bool) -> None:
    for method, body in (("POST", BODY), ("GET", b"")):
        headers = RequestSigner(identity, legacy=legacy).headers(method, URL, body)
        request = {"document": identity.did_document(), "method": method, "url": URL, "body": encoded(body)}
        verdict = sdk.call("verify", headers=headers, **request)
        assert verdict == {"did": identity.did, "scheme": "legacy_didwba" if legacy else "http_signatures"}
        assert sdk.call("verify", headers=headers, **request)["status"] == 401  # once


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", [[], ["users", "alice"]])
async def test_we_accept_the_sdks_requests(sdk: Any, listener: Listener, mode: str, path: list[str]) -> None:
    created = sdk.call("create", host="agent.example", path=path)
    did = created["document"]["id"]
    listener.documents[did] = created["document"]
    for method, body in (("POST", BODY), ("GET", b"")):
        headers = sdk.call("headers", **created, mode=mode, method=method, url=URL, body=encoded(body))
        listener.now = time.time()
        assert await listener.verify(headers, method=method, body=body) == did
        with pytest.raises(Unauthorized) as refusal:
            await listener.verify(headers, method=method, body=body)
        assert refusal.value.code == "authentication.replayed"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("profile", ["k1", "plain_legacy"])
async def test_the_sdks_older_profiles_pass_where_allowed(sdk: Any, listener: Listener, mode: str, profile: str) -> None:
    created = sdk.call("create", host="agent.example", path=["u"], profile=profile)
    did = created["document"]["id"]
    listener.documents[did] = created["document"]
    for secp256k1 in (False, True):
        listener.secp256k1 = secp256k1
        headers = sdk.call("headers", **created, mode=mode, method="POST", url=URL, body=encoded(BODY))
        listener.now = time.time() + 10 * secp256k1  # later, the refusal of the document is no longer remembered
        if secp256k1:
            assert await listener.verify(headers, body=BODY) == did
        with pytest.raises(Unauthorized) as refusal:
            await listener.verify(headers, body=BODY)
        assert refusal.value.code == ("authentication.replayed" if secp256k1 else "authentication.identity")


async def test_the_sdk_answers_our_challenge(sdk: Any, listener: Listener) -> None:
    created = sdk.call("create", host="agent.example", path=["u"])
    listener.documents[created["document"]["id"]] = created["document"]
    challenge = listener.verifier.challenge()
    for body in (BODY, b""):
        headers = sdk.call("answer_challenge", **created, challenge=challenge, method="POST", url=URL, body=encoded(body))
        listener.now = time.time()
        assert await listener.verify(headers, body=body) == created["document"]["id"]


async def test_only_the_sdk_accepts_an_authority_signature_elsewhere(sdk: Any, listener: Listener) -> None:
    created = sdk.call("create", host="agent.example", path=["u"])
    document = created["document"]
    listener.documents[document["id"]] = document
    headers = sdk.call("sign_covering", **created, components=["@authority"], method="GET", url=URL)
    other = URL.replace("sessions", "orders")
    listener.now = time.time()
    with pytest.raises(Unauthorized) as refusal:
        await listener.verify(headers, method="DELETE", url=other, body=b"")
    assert refusal.value.code == "authentication.signature"
    verdict = sdk.call("verify", document=document, method="DELETE", url=other, headers=headers, body="")
    assert verdict["did"] == document["id"]  # the day this fails, the SDK has mended it


def test_the_sdk_refuses_rotated_keys_and_deactivated_dids(sdk: Any) -> None:
    identity = Identity.create("agent.example:u", bind=True)
    for document in (identity.rotated().did_document(), identity.did_document(deactivated=True)):
        headers = RequestSigner(identity).headers("GET", URL)
        verdict = sdk.call("verify", document=document, method="GET", url=URL, headers=headers, body="")
        assert verdict == {"refused": "Verification method is not authorized for authentication", "status": 403}


async def test_a_request_that_the_sdk_signs_opens_a_session_over_http(sdk: Any, listener: Listener) -> None:
    created = sdk.call("create", host="agent.example", path=["u"])
    listener.documents[created["document"]["id"]] = created["document"]
    peers: list[str] = []

    async def answer(connection: Connection) -> None:
        peers.append(connection.peer)
        connection.send(f"welcome, {connection.peer}")
        await next_message(connection)

    async def verify(method: str, target: str, headers: Mapping[str, str], body: bytes) -> str:
        listener.now = time.time()
        return await listener.verifier.verify(method, target, headers, body)

    body = encode_messages(["hello"])
    async with listen(answer, "127.0.0.1", 0, max_connections=4, authenticate=verify) as port, httpx.AsyncClient() as client:
        base = f"http://127.0.0.1:{port}"
        listener.verifier.audiences = (base,)
        for mode in MODES:
            url = f"{base}{SESSIONS}?key={secrets.token_urlsafe(16)}"
            headers = sdk.call("headers", **created, mode=mode, method="POST", url=url, body=encoded(body))
            headers["Content-Type"] = MEDIA_TYPE
            opened = await client.post(url, content=body, headers=headers)
            assert opened.status_code == 201, opened.text
            assert decode_messages(opened.content) == [f"welcome, {created['document']['id']}"]
            assert (await client.post(url, content=body, headers=headers)).json()["code"] == "authentication.replayed"
    assert peers == [created["document"]["id"]] * 2
