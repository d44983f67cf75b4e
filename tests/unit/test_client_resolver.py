"""DID documents, fetched and read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loopback import Loopback, answering

from treaty_client.identity import Identity
from treaty_client.network.egress import EgressGuard
from treaty_client.network.resolver import fetch_did_document, read_did_document
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed, Refused, TooLarge


async def test_an_identitys_own_document_is_fetched_and_gives_its_key(tmp_path: Path) -> None:
    identity = Identity.create("alice.example:agents:shop")
    data = json.dumps(identity.did_document(), indent=2).encode()
    async with Loopback(tmp_path).serving(answering(data), "alice.example") as loopback:
        document = await fetch_did_document(identity.parsed, EgressGuard(loopback.network()))
    assert loopback.seen[0].startswith("GET /agents/shop/did.json HTTP/1.1\r\n")
    assert document.data == data
    assert document.keys == {identity.key_id: identity.public_key}


async def test_a_did_key_has_no_document(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no document"):
        await fetch_did_document(Identity.create().parsed, EgressGuard(Loopback(tmp_path).network()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"{}",
        b'{"id":"did:wba:alice.example"}',
        b'{"id":"did:wba:evil.example"}',
        b"\xff",
        b'{"id":1.5}',
    ],
)
def test_what_is_not_its_document_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_did_document(parse_did("did:wba:alice.example"), data)


def test_a_document_over_the_cap_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(TooLarge):
        read_did_document(parse_did("did:wba:alice.example"), b"{" * (64 * 1024 + 1))


def test_another_dids_document_is_refused() -> None:
    identity = Identity.create("alice.example")
    with pytest.raises(Malformed, match="not the one"):
        read_did_document(parse_did("did:web:alice.example"), json.dumps(identity.did_document()).encode())
