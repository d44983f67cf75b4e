"""The documents of an agent over a real socket: a reader that has them asks whether they changed."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from meetings import shop

from treaty_agent.transport.application import StaticDocument
from treaty_agent.transport.connection import Connection
from treaty_agent.transport.listener import listen
from treaty_consensus import canonical
from treaty_consensus.did import decode_multikey

CACHED = "public, max-age=60"
DOCUMENTS = {
    "/.well-known/agent-descriptions": CACHED,
    "/ad.json": CACHED,
    "/.well-known/agent-card.json": CACHED,
    "/.well-known/ai-catalog.json": CACHED,
    "/.well-known/did.json": "no-cache",
}


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an agent with all five documents."""
    seller = shop(tmp_path)
    async with (
        seller.agent,
        seller.agent.listen("127.0.0.1", 0, public=("wss://shop.example/", "https://shop.example")) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        yield client


@pytest.mark.parametrize(("path", "cached"), DOCUMENTS.items())
async def test_a_document_is_sent_again_only_when_it_changed(web: httpx.AsyncClient, path: str, cached: str) -> None:
    first = await web.get(path)
    etag = first.headers["ETag"]
    assert (first.status_code, first.headers["Cache-Control"]) == (200, cached)
    for tag in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = await web.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b""), tag
        assert (again.headers["ETag"], again.headers["Cache-Control"]) == (etag, cached)
        assert "Content-Length" not in again.headers
    for unknown in ('"other"', etag.strip('"'), "", '"*"'):
        again = await web.get(path, headers={"If-None-Match": unknown})
        assert (again.status_code, again.content) == (200, first.content), unknown
    head = await web.head(path, headers={"If-None-Match": etag})
    assert (head.status_code, head.headers["ETag"]) == (304, etag)


async def test_five_documents_have_five_tags(web: httpx.AsyncClient) -> None:
    assert len({(await web.get(path)).headers["ETag"] for path in DOCUMENTS}) == len(DOCUMENTS)

    async def refuse(connection: Connection) -> None:
        raise AssertionError

    documents = {"/a": StaticDocument("text/plain", b"1")}
    async with listen(refuse, "127.0.0.1", 0, max_connections=1, documents=documents) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/a"
        tag = (await client.get(url)).headers["ETag"]
        documents["/a"] = StaticDocument("text/plain", b"2")
        changed = await client.get(url, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.content) == (200, b"2")


async def test_the_served_did_document_has_the_key_of_the_card(web: httpx.AsyncClient) -> None:
    card, document = [(await web.get(path)).json() for path in ("/.well-known/agent-card.json", "/.well-known/did.json")]
    (signature,) = card["signatures"]
    padded = signature["protected"] + "=" * (-len(signature["protected"]) % 4)
    protected = json.loads(base64.urlsafe_b64decode(padded))
    assert protected == {"alg": "EdDSA", "kid": document["authentication"][0], "typ": "JOSE"}


@pytest.mark.threat(406)
async def test_the_ai_catalog_is_bound_to_the_card_and_the_protocols(web: httpx.AsyncClient) -> None:
    answer, card, document = [await web.get(f"/.well-known/{name}.json") for name in ("ai-catalog", "agent-card", "did")]
    assert answer.headers["Content-Type"] == "application/ai-catalog+json"
    catalog, did = answer.json(), document.json()["id"]
    (entry,) = catalog["entries"]
    # The name is below the host of the DID that signs, so no other host has it.
    assert entry["identifier"] == "urn:air:shop.example:agent" and did == catalog["host"]["identifier"] == "did:wba:shop.example"
    manifest = entry["trustManifest"]
    assert (manifest["identity"], manifest["identityType"]) == (did, "did")
    digest = f"sha256:{hashlib.sha256(card.content).hexdigest()}"
    assert manifest["provenance"] == [{"relation": "publishedFrom", "sourceId": entry["url"], "sourceDigest": digest}]
    extensions = card.json()["capabilities"]["extensions"]
    assert extensions
    assert [(each["uri"], each["digest"]) for each in manifest["attestations"]] == [
        (f"{each['uri']}.md", f"sha256:{each['params']['digest']}") for each in extensions
    ]
    (key,) = document.json()["verificationMethod"]
    public = Ed25519PublicKey.from_public_bytes(decode_multikey(key["publicKeyMultibase"]))
    protected, payload, signature = manifest.pop("signature").split(".")
    header = json.loads(base64.urlsafe_b64decode(protected + "=="))
    assert payload == "" and header == {"alg": "EdDSA", "kid": key["id"], "typ": "JOSE"}

    def verify(value: object) -> None:
        body = base64.urlsafe_b64encode(canonical.dumps(value)).rstrip(b"=")
        public.verify(base64.urlsafe_b64decode(signature + "=="), protected.encode() + b"." + body)

    verify(manifest)
    for forged in (
        {**manifest, "identity": "did:wba:evil.example"},
        {**manifest, "attestations": []},
        {**manifest, "provenance": [{**manifest["provenance"][0], "sourceDigest": f"sha256:{'0' * 64}"}]},
    ):
        with pytest.raises(InvalidSignature):
            verify(forged)
