"""A registry invents or changes what a publisher signed, in a log that it really keeps: step 4."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fetching import refused_at
from signers import domain_signer, signed
from simulated_registry import ALICE, BOB, OPERATOR, TOPIC, uri_of, with_echo

from treaty_consensus import canonical, kinds
from treaty_consensus.did import encode_multikey
from treaty_consensus.statement import Statement


def with_signature_of(statement: Statement, other: Statement) -> bytes:
    envelope, donor = json.loads(statement.leaf), json.loads(other.leaf)
    envelope["signatures"][0]["sig"] = donor["signatures"][0]["sig"]
    return canonical.dumps(envelope)


@pytest.mark.threat(15)
async def test_a_publish_that_its_author_never_signed_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    document, card = registry.put(b"# Evil\n"), registry.put(canonical.dumps({"summary": "", "title": "Evil"}))
    statement = signed(kinds.Publish(uri_of("2.0"), TOPIC, document, card, "negotiated"), ALICE, issued=registry.now)
    genuine = next(entry for _, entry in registry.statements() if entry.author.text == ALICE.did)
    registry.force(with_signature_of(statement, genuine))
    failure = await refused_at(4, registry, tmp_path, uri_of("2.0"))
    assert failure.code == "statement.signature-invalid"


async def test_a_handler_that_its_author_never_signed_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    genuine = next(statement for _, statement in registry.statements() if isinstance(statement.body, kinds.Handler))
    assert isinstance(genuine.body, kinds.Handler)
    body = kinds.Handler(
        genuine.body.uri,
        genuine.body.document,
        "treaty_handler_evil-1-py3-none-any.whl",
        registry.put(b"evil"),
        "treaty_handler_evil:handler",
        registry.put(b"{}"),
    )
    registry.force(with_signature_of(signed(body, ALICE, issued=registry.now), genuine))
    failure = await refused_at(4, registry, tmp_path)
    assert failure.code == "statement.signature-invalid"


@pytest.mark.threat(15)
async def test_an_identity_without_the_operators_testimony_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    mallory = domain_signer("mallory.example")
    identity = next(
        statement
        for _, statement in registry.statements()
        if isinstance(statement.body, kinds.Identity) and statement.body.did == ALICE.did
    )
    key = kinds.Key(ALICE.key_id, encode_multikey(mallory.public_key))
    body = kinds.Identity(ALICE.did, kinds.Blob("00" * 32, 5), (key,), 2, identity.id)
    registry.force(signed(body, mallory, issued=registry.now).leaf)
    failure = await refused_at(4, registry, tmp_path)
    assert failure.code == "statement.unknown-key"


@pytest.mark.threat(21)
async def test_a_second_publication_of_the_same_version_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    document, card = registry.put(b"# Other\n"), registry.put(canonical.dumps({"summary": "", "title": "Other"}))
    again = signed(kinds.Publish(uri_of(), TOPIC, document, card, "negotiated"), ALICE, issued=registry.now)
    registry.force(again.leaf)
    failure = await refused_at(4, registry, tmp_path)
    assert failure.code == "publish.version-exists"


@pytest.mark.threat(34)
async def test_a_statement_for_another_log_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    body = kinds.Status(uri_of(), "active")
    registry.force(signed(body, ALICE, log="other.example", issued=registry.now).leaf)
    failure = await refused_at(4, registry, tmp_path)
    assert failure.code == "statement.other-log"


@pytest.mark.threat(31)
async def test_a_key_that_was_rotated_out_signs_nothing_more(tmp_path: Path) -> None:
    registry = with_echo()
    old = next(
        statement
        for _, statement in registry.statements()
        if isinstance(statement.body, kinds.Identity) and statement.body.did == BOB.did
    )
    renewed = domain_signer("bob-renewed.example")
    key = kinds.Key(f"{BOB.did}#key-2", encode_multikey(renewed.public_key))
    registry.add(kinds.Identity(BOB.did, kinds.Blob("11" * 32, 5), (key,), 2, old.id), OPERATOR)
    registry.publish("2.0")
    genuine = next(statement for _, statement in registry.statements() if isinstance(statement.body, kinds.Handler))
    assert isinstance(genuine.body, kinds.Handler)
    document = registry.document_of(uri_of("2.0")).sha256
    wheel, bundle = genuine.body.wheel, genuine.body.bundle
    body = kinds.Handler(uri_of("2.0"), document, genuine.body.filename, wheel, genuine.body.entry_point, bundle)
    registry.force(signed(body, BOB, issued=registry.now).leaf)
    failure = await refused_at(4, registry, tmp_path, uri_of("2.0"), publishers=(BOB,))
    assert failure.code == "statement.unknown-key"
