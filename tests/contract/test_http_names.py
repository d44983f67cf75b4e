"""`/hashes` and `/resolve`: every kind of name, and what a claim is worth."""

from __future__ import annotations

import base64
import hashlib

import httpx
import msgspec
import pytest
from http_api import attach, path_of, post, problem, publish, put, unchanged
from registries import Publication, blob, publication
from signers import Signer, domain_signer

from treaty_consensus import kinds
from treaty_consensus.did import parse_did
from treaty_consensus.protocol import is_verified_alias
from treaty_registry.registry import Registry

W3C = "https://alice.example/ns/product-info/v1"


def claiming(agent: Signer, *aliases: str, version: str = "1.0") -> Publication:
    """A publication that claims foreign names."""
    plain = publication(agent, version=version)
    body = kinds.Publish(plain.body.uri, plain.body.topic, plain.body.document, plain.body.card, "standard", aliases=aliases)
    return Publication(body, plain.document, plain.card)


async def resolve(api: httpx.AsyncClient, name: str) -> list[dict[str, object]]:
    response = await api.get("/resolve", params={"uri": name})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer.keys() == {"uri", "matches"} and answer["uri"] == name
    matches: list[dict[str, object]] = answer["matches"]
    return matches


async def test_every_kind_of_name_resolves(api: httpx.AsyncClient, alice: Signer, bob: Signer) -> None:
    others = (
        "https://a2a.example/extensions/product-info/v1",
        "anp:protocol:product-info:1.0",
        "pkg:pypi/product-info@1.0",
        "urn:ietf:rfc:9999",
    )
    publication_ = claiming(alice, W3C, *others)
    await publish(api, alice, publication_)
    await publish(api, bob, publication(bob, version="7.0"))
    sha1 = hashlib.sha1(publication_.document).digest()
    digest = publication_.body.document.sha256
    match = {"uri": publication_.body.uri, "hash": digest, "publisher": alice.did}
    names = {
        publication_.body.uri: ("uri", True),
        digest: ("hash", True),
        f"sha256:{digest}": ("hash", True),
        sha1.hex(): ("agora", False),
        base64.b64encode(sha1).decode(): ("agora", False),
        W3C: ("alias", True),
        **dict.fromkeys(others, ("alias", False)),
    }
    for name, (by, verified) in names.items():
        assert await resolve(api, name) == [match | {"by": by, "verified": verified}], name
    for name in (
        digest.upper(),
        f"sha512:{digest}",
        sha1.hex().upper(),
        "https://alice.example/ns",
        "anp:protocol:product-info:2",
    ):
        assert await resolve(api, name) == [], name


async def test_000_62_each_version_has_one_uri_and_its_own_code(
    api: httpx.AsyncClient, registry: Registry, alice: Signer
) -> None:
    """A name or a hash leads to one URI, and that URI to the document and the handler of its version."""
    standard, negotiated = claiming(alice, W3C), publication(alice, version="2.0")
    assert (standard.body.origin, negotiated.body.origin) == ("standard", "negotiated")
    for statement in (standard, negotiated):
        await publish(api, alice, statement)
        code = (await attach(api, alice, statement, statement.body.uri.rpartition("/")[2])).body
        assert isinstance(code, kinds.Handler)
        for name in (statement.body.uri, statement.body.document.sha256, *statement.body.aliases):
            assert [match["uri"] for match in await resolve(api, name)] == [statement.body.uri]
        path = path_of(statement.body.uri)
        assert (await api.get(f"{path}.md")).content == statement.document
        described = (await api.get(path)).json()
        assert (described["origin"], described["hash"]) == (statement.body.origin, statement.body.document.sha256)
        assert [handler["wheel"] for handler in described["handlers"]] == [code.wheel.sha256]
    document = b"# Another\n"
    body = msgspec.structs.replace(negotiated.body, document=blob(document))
    signed = alice.statement(body)
    assert (await put(api, document, signed)).status_code == 201
    async with unchanged(registry):
        problem(await post(api, signed), 409, "publish.version-exists")
    assert (await api.get(f"{path_of(body.uri)}.md")).content == negotiated.document


async def test_a_claim_is_listed_beside_the_truth_and_never_verified(api: httpx.AsyncClient, alice: Signer, bob: Signer) -> None:
    honest = claiming(alice, W3C)
    await publish(api, alice, honest)
    thief = claiming(bob, W3C, honest.body.uri, version="6.6")
    await publish(api, bob, thief)
    by_alias = await resolve(api, W3C)
    assert [(match["publisher"], match["verified"]) for match in by_alias] == [(alice.did, True), (bob.did, False)]
    by_uri = await resolve(api, honest.body.uri)
    assert [(match["publisher"], match["by"], match["verified"]) for match in by_uri] == [
        (alice.did, "uri", True),
        (bob.did, "alias", False),
    ]


@pytest.mark.parametrize(
    ("alias", "did", "verified"),
    [
        ("https://example.com/ns", "did:wba:example.com", True),
        ("http://example.com/ns#v1", "did:web:example.com", True),
        ("https://EXAMPLE.com", "did:wba:example.com", True),
        ("https://example.com/ns", "did:wba:example.com:users:mallory", False),
        ("https://example.com/ns", "did:wba:example.com%3A8443", False),
        ("https://example.com:8443/ns", "did:wba:example.com", False),
        ("https://example.com@evil.example/ns", "did:wba:example.com", False),
        ("https://evil.example/https://example.com", "did:wba:example.com", False),
        ("https://sub.example.com/ns", "did:wba:example.com", False),
        ("https://example.com.evil.example/ns", "did:wba:example.com", False),
        ("ftp://example.com/ns", "did:wba:example.com", False),
        ("urn:example.com", "did:wba:example.com", False),
        ("https://[::1", "did:wba:example.com", False),
        ("https://example.com:99999/", "did:wba:example.com", False),
        ("https://example.com/ns", "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp", False),
        # Reverse DNS: UCP's names, and MCP's with a path.
        ("com.example.payments.installments", "did:wba:example.com", True),
        ("com.example/weather", "did:web:example.com", True),
        ("com.example.pay", "did:wba:pay.example.com", True),
        ("com.example.pay", "did:wba:cdn.example.com", False),
        ("com.examplecorp.pay", "did:wba:example.com", False),
        ("com.example.pay", "did:wba:example.com:users:mallory", False),
        ("com.example.pay", "did:wba:example.com%3A8443", False),
        ("com.example.pay", "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp", False),
        # A GitHub account: the domain that GitHub serves for it alone.
        ("io.github.alice/weather", "did:wba:alice.github.io", True),
        ("io.github.Alice/weather", "did:wba:alice.github.io", True),
        ("https://github.com/alice/a2a-x402/v0.1", "did:wba:alice.github.io", True),
        ("https://github.com/Alice", "did:wba:alice.github.io", True),
        ("https://github.com/alice-2/weather", "did:wba:alice.github.io", False),
        ("https://github.com/mallory/../alice/x", "did:wba:alice.github.io", False),
        ("https://github.com@evil.example/alice", "did:wba:alice.github.io", False),
        ("https://github.com.evil.example/alice", "did:wba:alice.github.io", False),
        ("http://github.com/alice/x", "did:wba:alice.github.io", False),
        ("https://github.com/alice/x", "did:wba:alice.github.io:project", False),
        ("https://github.com/alice/x", "did:wba:alice.github.com", False),
        ("io.github.alice/weather", "did:wba:bob.github.io", False),
    ],
)
def test_only_the_domain_itself_verifies_its_names(alias: str, did: str, verified: bool) -> None:
    assert is_verified_alias(alias, parse_did(did)) is verified


async def test_a_hash_finds_every_protocol_that_has_it(api: httpx.AsyncClient, alice: Signer, bob: Signer) -> None:
    ours = publication(alice)
    await publish(api, alice, ours)
    digest = ours.body.document.sha256
    theirs = kinds.Publish(publication(bob, "copy").body.uri, "other/topic", ours.body.document, ours.body.card, "negotiated")
    signed = bob.statement(theirs)
    for data in ours.blobs.values():
        await put(api, data, signed)
    assert (await post(api, signed)).status_code == 201
    answer = (await api.get(f"/hashes/{digest}")).json()
    assert answer["hash"] == digest
    assert [entry["uri"] for entry in answer["protocols"]] == [ours.body.uri, theirs.uri]
    problem(await api.get(f"/hashes/{'0' * 64}"), 404, "protocol.unknown")
    problem(await api.get(f"/hashes/{digest.upper()}"), 400, "canonical.text")


async def test_names_are_capped(api: httpx.AsyncClient) -> None:
    problem(await api.get("/resolve"), 400, "http.request")
    problem(await api.get("/resolve", params={"uri": ""}), 400, "http.request")
    problem(await api.get("/resolve", params={"uri": "x" * 513}), 400, "http.request")
    assert await resolve(api, "x" * 512) == []
    stranger = domain_signer("nobody.example")
    problem(await api.get(f"/identities/{stranger.did}"), 404, "identity.unknown")
