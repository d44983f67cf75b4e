"""Admission: what is refused, by which step, and that a refusal changes nothing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from handler_packages import metadata
from registries import (
    Publication,
    Web,
    ballot,
    blob,
    bucket,
    contents,
    grant,
    log,
    open_registry,
    operator_in,
    publication,
    publish,
    refuse,
)
from signers import Signer, domain_signer, key_signer, signed

from treaty_consensus import kinds, statement
from treaty_consensus.errors import Gone, Refused, TreatyError, Unavailable
from treaty_consensus.handler import build_wheel
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import KeyType, SignerKey, sign
from treaty_consensus.statement import Statement
from treaty_registry.log.entry import Logged
from treaty_registry.registry import Registry
from treaty_registry.settings import Quotas, Settings

ALICE, BOB, STRANGER = (domain_signer(f"{name}.example") for name in ("alice", "bob", "stranger"))
KEY = key_signer("nobody")


async def upload(registry: Registry, signer: Signer, body: kinds.Body, *data: bytes) -> None:
    leaf = signer.statement(body).leaf
    for item in data:
        await registry.put_blob(hashlib.sha256(item).hexdigest(), leaf, item)


async def refused_upload(registry: Registry, leaf: bytes, data: bytes, digest: str | None = None) -> TreatyError:
    before = await contents(registry)
    with pytest.raises(TreatyError) as error:
        await registry.put_blob(digest or hashlib.sha256(data).hexdigest(), leaf, data)
    assert await contents(registry) == before
    return error.value


# --- form and signature


@pytest.mark.deep
async def test_leaves_that_are_no_statements(registry: Registry) -> None:
    good = KEY.statement(grant(KEY))
    envelope = json.loads(good.leaf)
    spaced = json.dumps(envelope).encode()
    unsigned = json.dumps(envelope | {"signatures": []}, separators=(",", ":")).encode()
    for leaf in (b"", b"null", b"\xff", spaced, unsigned, good.leaf[:-1], good.leaf + b"\n", b"{" * 70_000):
        await refuse(registry, leaf)
    assert isinstance((await registry.submit([good.leaf]))[0], Logged)


async def test_every_flipped_byte_is_refused(registry: Registry) -> None:
    leaf = KEY.statement(grant(KEY)).leaf
    before = await contents(registry)
    flipped = [leaf[:at] + bytes([leaf[at] ^ 1]) + leaf[at + 1 :] for at in range(len(leaf))]
    for begin in range(0, len(flipped), 256):
        for outcome in await registry.submit(flipped[begin : begin + 256]):
            assert isinstance(outcome, TreatyError)
    assert await contents(registry) == before
    assert isinstance((await registry.submit([leaf]))[0], Logged)


async def test_a_statement_for_another_log(registry: Registry) -> None:
    statement = KEY.statement(grant(KEY), log="other.example")
    assert (await refuse(registry, statement)).code == "statement.other-log"


@pytest.mark.threat(71)
async def test_the_signature_of_somebody_else(registry: Registry) -> None:
    impostor = Signer(KEY.did, KEY.key_id, key_signer("impostor").private_key)
    assert (await refuse(registry, impostor.statement(grant(KEY)))).code == "statement.signature-invalid"


@pytest.mark.parametrize("kind", ["genesis", "parameters", "identity", "decision", "withdrawal"])
async def test_only_the_operator_speaks_for_the_log(registry: Registry, tmp_path: Path, kind: str) -> None:
    digest, data = "ab" * 32, kinds.Blob("cd" * 32, 4)
    bodies: dict[str, kinds.Body] = {
        "genesis": operator_in(tmp_path / "registry").genesis(),
        "parameters": (await statement_at(registry, 1)).body,
        "identity": kinds.Identity(ALICE.did, data, (kinds.Key(ALICE.key_id, KEY.did.removeprefix("did:key:")),), 1),
        "decision": kinds.Decision(
            "a/b", 0, "schulze-margins-v2", "development", digest, kinds.Input(2, digest), 0, data, data, ()
        ),
        "withdrawal": kinds.Withdrawal(digest, "malicious"),
    }
    assert isinstance(bodies[kind], statement.KINDS[kind])
    refusal = await refuse(registry, KEY.statement(bodies[kind]))
    assert refusal.code in ("statement.not-operator", "log.exists", "blob.missing")


@pytest.mark.threat(74)
@pytest.mark.parametrize("with_operator", [False, True], ids=["alone", "with the operator's name"])
async def test_what_only_the_operator_says_is_not_read_for_a_stranger(
    registry: Registry, tmp_path: Path, web: Web, with_operator: bool
) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    await publish(registry, ALICE, statement)
    (stored,) = (tmp_path / "registry" / "blobs").rglob(f"*{statement.body.document.sha256[2:]}*")
    stored.write_bytes(b"?" * statement.body.document.size)  # whoever reads it says that it is damaged
    named = statement.body.document
    decision = kinds.Decision(
        "a/b", 0, "schulze-margins-v2", "development", "ab" * 32, kinds.Input(2, "ab" * 32), 0, named, named, ()
    )
    strangers = (
        [
            STRANGER,
            Signer(registry.operator, f"{registry.operator}#{registry.operator.removeprefix('did:key:')}", KEY.private_key),
        ]
        if with_operator
        else [KEY]
    )
    refusal = await refuse(registry, signed(decision, *sorted(strangers, key=lambda signer: signer.key_id)))
    assert refusal.code in (
        "statement.not-operator",
        "statement.signature-invalid",
        "identity.unresolved",
        "statement.unknown-key",
    )


async def statement_at(registry: Registry, index: int) -> Statement:
    return statement.parse((await registry.leaves([index]))[index])


# --- identity


async def test_an_unknown_author_is_logged_once_before_its_statement(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    leaves = [ALICE.statement(ballot(registry, 0, topic=f"topic/number-{n}")).leaf for n in range(8)]
    outcomes = await asyncio.gather(*(registry.submit([leaf]) for leaf in leaves))
    assert all(isinstance(outcome, Logged) for (outcome,) in outcomes)
    assert set(web.fetched) == {ALICE.did}, "the guard makes one fetch of these"
    web.fetched.clear()
    assert registry.head.size == 2 + 1 + len(leaves), "one identity was logged"
    identity = (await statement_at(registry, 2)).body
    assert isinstance(identity, kinds.Identity)
    assert (identity.did, identity.tenure, identity.previous) == (ALICE.did, 1, None)
    assert await registry.blob(identity.document.sha256) == web.documents[ALICE.did]
    assert await registry.authentication_keys(ALICE.did) == {ALICE.key_id: ALICE.public_key}
    assert web.fetched == []


async def test_an_author_without_a_document(registry: Registry, web: Web) -> None:
    refusal = await refuse(registry, STRANGER.statement(ballot(registry)))
    assert refusal.code == "identity.unresolved"
    assert web.fetched == [STRANGER.did]
    assert (await refused_keys(registry, STRANGER.did)).code == "identity.unresolved"


async def refused_keys(registry: Registry, did: str) -> TreatyError:
    with pytest.raises(TreatyError) as error:
        await registry.authentication_keys(did)
    return error.value


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"id":"did:wba:other.example"}', b"\xff", b"x" * 70_000])
async def test_a_document_that_says_nothing(registry: Registry, web: Web, document: bytes) -> None:
    web.documents[ALICE.did] = document
    assert (await refuse(registry, ALICE.statement(ballot(registry)))).code == "identity.unresolved"


@pytest.mark.threat(71)
async def test_a_logged_document_proves_nothing_for_an_impostor(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    impostor = Signer(ALICE.did, ALICE.key_id, KEY.private_key)
    (outcome,) = await registry.submit([impostor.statement(ballot(registry)).leaf])
    assert isinstance(outcome, TreatyError)
    assert outcome.code == "statement.signature-invalid"
    assert registry.head.size == 3, "the identity alone"
    await refuse(registry, impostor.statement(ballot(registry)))
    await log(registry, ballot(registry), ALICE)


async def test_a_new_key_opens_a_new_tenure(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    await log(registry, ballot(registry), ALICE)
    rotated = Signer(ALICE.did, f"{ALICE.did}#key-2", KEY.private_key)
    web.serve(rotated)
    # The identity is logged, and the ballot waits: the domain may have changed hands.
    (outcome,) = await registry.submit([rotated.statement(ballot(registry, 1)).leaf])
    assert isinstance(outcome, Refused) and outcome.code == "identity.new-tenure"
    identity = (await statement_at(registry, registry.head.size - 1)).body
    first = await statement_at(registry, 2)
    assert isinstance(identity, kinds.Identity)
    assert (identity.tenure, identity.previous) == (2, first.id)
    assert await registry.authentication_keys(ALICE.did) == {rotated.key_id: rotated.public_key}


async def test_a_made_up_key_of_a_known_author_changes_nothing(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    await log(registry, ballot(registry), ALICE)
    made_up = Signer(ALICE.did, f"{ALICE.did}#key-9", KEY.private_key)
    assert (await refuse(registry, made_up.statement(ballot(registry, 1)))).code == "statement.unknown-key"


async def test_a_report_needs_both_authors(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    note = registry.head.note.decode()
    report = kinds.Report("commerce/product-info", "ab" * 32, "cd" * 32, "agreed", 0, note)
    (outcome,) = await registry.submit([signed(report, ALICE, BOB).leaf])
    assert isinstance(outcome, TreatyError)
    assert outcome.code == "identity.unresolved"
    web.serve(BOB)
    await log(registry, report, ALICE, BOB)


# --- the checkpoint a statement has seen


async def test_a_seen_checkpoint_of_the_past_is_fine_however_old(registry: Registry, web: Web) -> None:
    web.serve(ALICE, BOB)
    notes = [registry.head.note.decode()]
    for number in range(12):
        await log(registry, ballot(registry, number), ALICE)
        notes.append(registry.head.note.decode())
    for number, note in enumerate(notes):
        await log(registry, kinds.Ballot("topic/x", number, (), note), BOB)


async def test_a_seen_checkpoint_that_our_key_did_not_sign(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    await log(registry, ballot(registry), ALICE)
    other = SignerKey("registry.example", KeyType.ED25519, b"\7" * 32)
    forged = sign(Checkpoint("registry.example", 2, registry.head.root).format(), [other]).decode()
    refusal = await refuse(registry, ALICE.statement(kinds.Ballot("topic/x", 0, (), forged)))
    assert refusal.code == "note.signature"
    assert (await refuse(registry, ALICE.statement(kinds.Ballot("topic/x", 0, (), "no note")))).code == "note.form"


@pytest.mark.parametrize(("size", "root"), [(2, b"\1" * 32), (1, b"\1" * 32), (1_000, b"\1" * 32)])
async def test_a_seen_checkpoint_that_proves_a_fork(registry: Registry, tmp_path: Path, web: Web, size: int, root: bytes) -> None:
    web.serve(ALICE)
    await log(registry, ballot(registry), ALICE)
    log_key = operator_in(tmp_path / "registry").log_key
    forked = sign(Checkpoint("registry.example", size, root).format(), [log_key]).decode()
    refusal = await refuse(registry, ALICE.statement(kinds.Ballot("topic/x", 0, (), forked)))
    assert refusal.code == "log.forked"


# --- blobs


async def test_a_statement_whose_blobs_did_not_come(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    await log(registry, ballot(registry), ALICE)
    statement = publication(ALICE)
    assert (await refuse(registry, ALICE.statement(statement.body))).code == "blob.missing"
    await upload(registry, ALICE, statement.body, statement.document)
    assert (await refuse(registry, ALICE.statement(statement.body))).code == "blob.missing"
    await upload(registry, ALICE, statement.body, statement.card)
    logged = await log(registry, statement.body, ALICE)
    assert await registry.blob(statement.body.document.sha256) == statement.document
    assert await registry.pool.fetchval("select count(*) from pending_blobs") == 0
    assert logged.new


async def test_an_upload_is_served_only_once_it_is_logged(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    await upload(registry, ALICE, statement.body, statement.document, statement.card)
    with pytest.raises(TreatyError) as refusal:
        await registry.blob(statement.body.document.sha256)
    assert refusal.value.code == "blob.unknown"
    await log(registry, statement.body, ALICE)
    assert await registry.blob(statement.body.card.sha256) == statement.card


async def test_uploads_that_do_not_fit_their_statement(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    await log(registry, ballot(registry), ALICE)
    statement = publication(ALICE)
    leaf = ALICE.statement(statement.body).leaf
    digest = statement.body.document.sha256
    other = bytes(reversed(statement.document))
    for data, of, why in (
        (b"another blob", None, "not name"),
        (statement.document + b"x", digest, "bytes"),
        (other, digest, "SHA-256"),
    ):
        error = await refused_upload(registry, leaf, data, of)
        assert error.code == "blob.digest" and why in error.message
    assert (await refused_upload(registry, leaf, statement.document, "no digest")).code == "canonical.text"
    assert (await refused_upload(registry, b"no statement", statement.document)).code == "canonical.json"
    impostor = Signer(ALICE.did, ALICE.key_id, KEY.private_key)
    forged = impostor.statement(statement.body).leaf
    assert (await refused_upload(registry, forged, statement.document)).code == "statement.signature-invalid"
    elsewhere = ALICE.statement(statement.body, log="other.example").leaf
    assert (await refused_upload(registry, elsewhere, statement.document)).code == "statement.other-log"
    assert await registry.blobs.get(digest) is None


async def test_an_upload_may_come_again(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    leaf = ALICE.statement(statement.body).leaf
    digest = statement.body.document.sha256
    assert [await registry.put_blob(digest, leaf, statement.document) for _ in range(2)] == [True, False]
    await publish(registry, ALICE, statement)
    assert await registry.put_blob(digest, leaf, statement.document) is False
    assert await registry.pool.fetchval("select count(*) from pending_blobs") == 0


async def test_withdrawn_bytes_stay_away(registry: Registry, tmp_path: Path, web: Web) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    await publish(registry, ALICE, statement)
    withdrawal = operator_in(tmp_path / "registry").state(
        kinds.Withdrawal(statement.body.document.sha256, "malicious"), issued=registry.clock()
    )
    await registry.submit([withdrawal.statement.leaf])
    with pytest.raises(Gone):
        await registry.blob(statement.body.document.sha256)
    again = publication(ALICE, version="2.0")
    same = replace(again, document=statement.document)
    body = kinds.Publish(again.body.uri, again.body.topic, statement.body.document, again.body.card, "negotiated")
    await upload(registry, ALICE, body, again.card)
    assert (await refused_upload(registry, ALICE.statement(body).leaf, same.document)).code == "blob.withdrawn"
    assert (await refuse(registry, ALICE.statement(body))).code == "blob.withdrawn"


@dataclass(frozen=True)
class Contents:
    document: bytes
    card: bytes
    code: str


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "case",
    [
        Contents(b"\xff\xfe", b'{"summary":"","title":"x"}', "document.text"),
        Contents(b"  \n", b'{"summary":"","title":"x"}', "document.text"),
        Contents(b"# text", b"no card", "canonical.json"),
        Contents(b"# text", b'{"title":"x"}', "card.form"),
        Contents(b"# text", b'{"summary":"", "title":"x"}', "canonical.json"),
        Contents(b"# text", b'{"summary":"","tags":["A B"],"title":"x"}', "card.form"),
    ],
)
async def test_documents_and_cards_are_read_before_they_are_logged(registry: Registry, web: Web, case: Contents) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    body = kinds.Publish(statement.body.uri, statement.body.topic, blob(case.document), blob(case.card), "negotiated")
    await upload(registry, ALICE, body, case.document, case.card)
    assert (await refuse(registry, ALICE.statement(body))).code == case.code


async def test_a_size_that_the_stored_bytes_do_not_have(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    await upload(registry, ALICE, statement.body, statement.document, statement.card)
    wrong = kinds.Blob(statement.body.document.sha256, statement.body.document.size + 1)
    body = kinds.Publish(statement.body.uri, statement.body.topic, wrong, statement.body.card, "negotiated")
    assert (await refuse(registry, ALICE.statement(body))).code == "blob.digest"


async def test_stored_bytes_that_are_damaged(registry: Registry, web: Web, tmp_path: Path) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    await upload(registry, ALICE, statement.body, statement.document, statement.card)
    digest = statement.body.document.sha256
    path = tmp_path / "registry" / "blobs" / "sha256" / digest[:2] / digest
    path.write_bytes(bytes(reversed(statement.document)))
    assert (await refuse(registry, ALICE.statement(statement.body))).code == "blob.digest"


async def handler_for(registry: Registry, publication: Publication, **changes: str) -> tuple[kinds.Handler, list[bytes]]:
    about = replace(metadata(), protocol_uri=publication.body.uri, protocol_hash=publication.body.document.sha256)
    filename, wheel = build_wheel({"__init__.py": b"handler = None\n"}, about)
    bundle = b'{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}'
    fields = {"uri": publication.body.uri, "document": publication.body.document.sha256, "filename": filename}
    fields |= {"entry_point": about.entry_point}
    fields |= {name: value for name, value in changes.items() if name in fields}
    if "wheel" in changes:
        wheel = base64.b64decode(changes["wheel"])
    if "bundle" in changes:
        bundle = changes["bundle"].encode()
    return kinds.Handler(**fields, wheel=blob(wheel), bundle=blob(bundle)), [wheel, bundle]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"wheel": base64.b64encode(b"no wheel").decode()}, "handler.package"),
        ({"filename": "something_else-1.0-py3-none-any.whl"}, "handler.package"),
        ({"entry_point": "elsewhere:handler"}, "handler.mismatch"),
        ({"bundle": "no bundle"}, "canonical.json"),
        ({"document": "ab" * 32}, "handler.mismatch"),
    ],
)
async def test_wheels_are_read_before_they_are_logged(registry: Registry, web: Web, changes: dict[str, str], code: str) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    await publish(registry, ALICE, statement)
    good, uploads = await handler_for(registry, statement)
    bad, crafted = await handler_for(registry, statement, **changes)
    await upload(registry, ALICE, bad, *crafted)
    refusal = await refuse(registry, ALICE.statement(bad))
    assert refusal.code.startswith(code.partition(".")[0])
    assert refusal.code == code or code == "handler.package"
    await upload(registry, ALICE, good, *uploads)
    await log(registry, good, ALICE)


# --- quotas


@pytest.mark.threat(81)
async def test_quotas_refuse_before_anything_is_parsed(tmp_path: Path, database: str, web: Web) -> None:
    few = Quotas(bucket(2), bucket(6), bucket(100))
    settings = Settings(data=tmp_path / "registry", new=True, origin="registry.example", database=database, quotas=few)
    async with Registry.open(settings, resolve=web.resolve) as registry:
        before = await contents(registry)
        with pytest.raises(Unavailable) as refusal:
            await registry.submit([b"nonsense"] * 7, source="192.0.2.1")
        assert refusal.value.code == "quota.sender"
        assert len(await registry.submit([b"nonsense"] * 6, source="192.0.2.9")) == 6
        with pytest.raises(Unavailable):
            await registry.put_blob("ab" * 32, b"nonsense", b"", source="192.0.2.1")
        assert await contents(registry) == before


async def test_an_authors_quota_counts_what_it_signed(tmp_path: Path, database: str, web: Web) -> None:
    few = Quotas(principal=bucket(2))
    settings = Settings(data=tmp_path / "registry", new=True, origin="registry.example", database=database, quotas=few)
    async with Registry.open(settings, resolve=web.resolve) as registry:
        web.serve(ALICE, BOB)
        await log(registry, ballot(registry), ALICE)
        impostor = Signer(ALICE.did, ALICE.key_id, KEY.private_key)
        for _ in range(5):
            await refuse(registry, impostor.statement(ballot(registry, 1)))
        await log(registry, ballot(registry, 1), ALICE)
        assert (await refuse(registry, ALICE.statement(ballot(registry, 2)))).code == "quota.sender"
        await log(registry, ballot(registry), BOB)


@pytest.mark.deep
async def test_a_ballot_that_saw_another_log_of_the_same_name(data: Path, web: Web, registry: Registry) -> None:
    async with open_registry(data, None, web) as other:
        web.serve(ALICE)
        (outcome,) = await other.submit([ALICE.statement(ballot(registry)).leaf])
        assert isinstance(outcome, TreatyError)
        assert outcome.code == "note.signature", "the checkpoint it has seen is the first one's"
        assert other.head.root != registry.head.root
