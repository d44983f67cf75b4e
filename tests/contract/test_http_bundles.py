"""Bundles: whoever has one and the log's key needs nothing else. Each is replayed through the rules that admitted its leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from http_api import attach, post, publish, put, say
from registries import TOPIC, Publication, Web, ballot, log, publication, settings_for
from signers import NOW, Signer, domain_signer

from treaty_client.registries.bundle import Bundle, parse_bundle
from treaty_consensus import kinds, statement
from treaty_consensus.admit import TENURE_WAIT, admit
from treaty_consensus.canonical import hex_digest
from treaty_consensus.facts import Fact, keys_of
from treaty_consensus.kinds import Decision, Genesis, Handler, Parameters, Publish, Status
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.merkle import leaf_hash, verify_consistency, verify_inclusion
from treaty_consensus.statement import Statement
from treaty_registry.app import create_app
from treaty_registry.cache_control import SHARED
from treaty_registry.registry import Registry

PATH = "/protocols/alice.example/product-info/1.0.bundle"


@dataclass(frozen=True)
class Replayed:
    """What a bundle proved: its statements in the log's order, and the facts they leave."""

    bundle: Bundle
    statements: tuple[Statement, ...]
    facts: Mapping[str, Fact]

    def bodies(self, kind: type[kinds.Body]) -> list[kinds.Body]:
        return [statement.body for statement in self.statements if isinstance(statement.body, kind)]


async def fetch(api: httpx.AsyncClient, registry: Registry, path: str = PATH) -> Replayed:
    """Get a bundle and check all that it claims, with the consensus library alone."""
    response = await api.get(path)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/vnd.treaty.bundle.v1+json"
    bundle = parse_bundle(response.content)
    head = open_checkpoint(bundle.checkpoint, registry.log_key, registry.clock_key)
    assert head.time is not None
    facts: dict[str, Fact] = {}
    statements = []
    for leaf in bundle.leaves:
        verify_inclusion(leaf.index, head.checkpoint.size, leaf_hash(leaf.leaf), leaf.proof, head.checkpoint.root)
        publication = statement.parse(leaf.leaf)
        keys: dict[str, bytes] = {}
        for did in publication.authors:
            keys |= keys_of(facts, did)
        verified = statement.verify(publication, keys)
        if isinstance(publication.body, Decision):
            assert [did.text for did in publication.authors] == [registry.operator]
        else:
            facts |= admit(facts, verified, leaf.index)
        statements.append(publication)
    genesis = statements[0].body
    assert isinstance(genesis, Genesis)
    assert hex_digest(bundle.blobs[genesis.trusted_root]) == genesis.trusted_root
    assert all(hex_digest(data) == digest for digest, data in bundle.blobs.items())
    return Replayed(bundle, tuple(statements), facts)


async def test_shared_caches_keep_proofs_and_no_seq(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    await publish(api, alice, publication(alice))
    record = PATH.removesuffix(".bundle")
    topic = f"/topics/{TOPIC}"
    for path in (PATH, record, record.rpartition("/")[0], topic, f"{topic}.bundle", "/topics", "/log", "/checkpoint"):
        answer = await api.get(path)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, SHARED), path
        unchanged = await api.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (unchanged.status_code, unchanged.headers["cache-control"]) == (304, SHARED), path
    since = await api.get(f"{PATH}?since=2")
    assert (since.status_code, since.headers["cache-control"]) == (200, SHARED)
    for path in (f"/ballots?did={alice.did}&topic={TOPIC}", f"/vouches?did={alice.did}"):  # a cached `seq` would be refused
        assert (await api.get(path)).headers["cache-control"] == "no-cache", path


async def test_a_bundle_proves_a_protocol_and_its_handlers(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer
) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    own, theirs = await attach(api, alice, statement), await attach(api, bob, statement)
    assert isinstance(own.body, Handler) and isinstance(theirs.body, Handler)
    await publish(api, bob, publication(bob))  # has no place in the bundle
    await say(api, alice, kinds.Status(statement.body.uri, "deprecated"))
    newest = await say(api, alice, kinds.Status(statement.body.uri, "active"))
    yanked = await say(api, bob, kinds.Status(statement.body.uri, "yanked", wheel=theirs.body.wheel.sha256))
    answer = await fetch(api, registry)
    assert answer.bundle.uri == statement.body.uri and answer.bundle.topic == "" and answer.bundle.consistency is None
    assert answer.bodies(Publish) == [statement.body]
    assert answer.bodies(Handler) == [own.body, theirs.body]
    assert answer.bodies(Status) == [newest.body, yanked.body], "the newest of each subject"
    assert len(answer.bodies(Parameters)) == 1 and answer.bodies(Decision) == []
    genesis = answer.statements[0].body
    assert isinstance(genesis, Genesis)
    assert answer.bundle.blobs.keys() == {
        *statement.blobs,
        own.body.bundle.sha256,
        theirs.body.bundle.sha256,
        genesis.trusted_root,
    }, "and no wheels"


async def test_since_adds_the_proof_from_there(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    await publish(api, alice, publication(alice))
    heads = []
    for seq in range(6):
        head = registry.head
        heads.append((head.size, head.root))
        await say(api, alice, ballot(registry, seq))
    for path in (PATH, f"/topics/{TOPIC}.bundle"):
        for size, root in heads:
            answer = await fetch(api, registry, f"{path}?since={size}")
            latest = open_checkpoint(answer.bundle.checkpoint, registry.log_key).checkpoint
            assert answer.bundle.consistency is not None
            verify_consistency(size, latest.size, root, latest.root, answer.bundle.consistency)
        size = registry.head.size
        assert (await fetch(api, registry, f"{path}?since={size}")).bundle.consistency == ()
        assert (await fetch(api, registry, f"{path}?since=0")).bundle.consistency == ()
        assert (await fetch(api, registry, f"{path}?since={size + 1}")).bundle.consistency is None, "nobody here can know"


async def test_a_guest_comes_with_the_grant(api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer) -> None:
    granted = await say(api, alice, kinds.Grant("alice.example", bob.did))
    plain = publication(alice)  # in alice's namespace, signed by bob
    await publish(api, bob, plain)
    answer = await fetch(api, registry)
    assert answer.bodies(kinds.Grant) == [granted.body]
    assert [statement.body.did for statement in answer.statements if isinstance(statement.body, kinds.Identity)] == [
        alice.did,
        bob.did,
    ]


async def test_a_guest_comes_with_its_own_grant_and_the_newest_one(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer
) -> None:
    """However often the owner changes its mind, a bundle has two of the statements, and they verify."""

    async def say_grant(number: int, withdrawn: bool) -> kinds.Body:
        statement = await say(api, alice, kinds.Grant("alice.example", bob.did, withdrawn), issued=NOW + number)
        return statement.body

    first = await say_grant(0, False)
    await publish(api, bob, publication(alice))
    for number in range(1, 7):
        last = await say_grant(number, number % 2 == 1)
    answer = await fetch(api, registry)
    assert answer.bodies(kinds.Grant) == [first, last] and not last.withdrawn  # type: ignore[attr-defined]
    newest = await say_grant(7, True)
    answer = await fetch(api, registry)
    assert answer.bodies(kinds.Grant) == [first, newest]


async def test_a_change_comes_with_what_it_changes(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer
) -> None:
    first = publication(bob, version="0.8")
    await publish(api, bob, first)
    second = _based_on(first, publication(alice, version="0.9"))
    await publish(api, alice, second)
    third = _based_on(second, publication(alice))
    await publish(api, alice, third)
    answer = await fetch(api, registry)
    assert answer.bodies(Publish) == [first.body, second.body, third.body]
    assert third.body.document.sha256 in answer.bundle.blobs and first.body.document.sha256 not in answer.bundle.blobs


async def test_identities_come_in_the_order_they_were_logged(
    api: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer
) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    await attach(api, alice, statement)
    renamed = Signer(alice.did, f"{alice.did}#key-2", alice.private_key)  # the same key, so the same tenure
    web.serve(renamed)
    await attach(api, renamed, statement, "2")
    answer = await fetch(api, registry)
    identities = [statement.body for statement in answer.statements if isinstance(statement.body, kinds.Identity)]
    assert [(body.tenure, body.keys[0].id) for body in identities] == [(1, alice.key_id), (1, renamed.key_id)]
    assert len(answer.bodies(Handler)) == 2


async def test_a_domain_that_changed_hands_comes_with_the_clock(tmp_path: Path, database: str, web: Web) -> None:
    alice, bob = domain_signer("alice.example"), domain_signer("bob.example")
    web.serve(alice, bob)
    async with _with_clock(tmp_path, database, web) as (api, registry, clock):
        await say(api, alice, ballot(registry, 0))
        heir = Signer(alice.did, f"{alice.did}#heir", domain_signer("heir.example").private_key)
        web.serve(heir)
        # Its votes wait too; the answer comes after the identity.
        assert (await post(api, heir.statement(ballot(registry, 1)))).json()["code"] == "identity.new-tenure"
        statement = publication(heir)
        signed = heir.statement(statement.body)
        for data in statement.blobs.values():
            await put(api, data, signed)
        assert (await post(api, signed)).json()["code"] == "identity.new-tenure"
        clock[0] += TENURE_WAIT
        await say(api, bob, ballot(registry, 0))  # logs bob's identity, which sets the log's clock
        assert (await post(api, signed)).status_code == 201
        assert len((await fetch(api, registry)).bodies(Publish)) == 1
        await attach(api, heir, statement)
        answer = await fetch(api, registry)
        assert len(answer.bodies(Handler)) == 1
        dids = [body.did for body in answer.bodies(kinds.Identity) if isinstance(body, kinds.Identity)]
        assert dids == [alice.did, alice.did, bob.did], "bob's has no part in the protocol but the time"


async def test_a_topic_comes_with_its_protocols_and_decision(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer
) -> None:
    ours, theirs = publication(alice), publication(bob)
    await publish(api, alice, ours)
    await publish(api, bob, theirs)
    await publish(api, bob, publication(bob, "other", topic="other/topic"))
    taken_back = await say(api, bob, kinds.Status(theirs.body.uri, "yanked"))
    await say(api, alice, ballot(registry, 0, ours.body.document.sha256))
    await registry.decide()
    await say(api, alice, ballot(registry, 1, ours.body.document.sha256))
    await registry.decide()
    answer = await fetch(api, registry, f"/topics/{TOPIC}.bundle")
    assert answer.bundle.topic == TOPIC and answer.bundle.uri == ""
    assert answer.bodies(Publish) == [ours.body, theirs.body] and answer.bodies(Status) == [taken_back.body]
    (decision,) = answer.bodies(Decision)
    assert isinstance(decision, Decision) and decision.epoch == 1
    assert decision.transcript.sha256 in answer.bundle.blobs
    alone = await fetch(api, registry)
    assert alone.bodies(Decision) == [decision] and decision.transcript.sha256 in alone.bundle.blobs


@pytest.mark.sample(1)
@pytest.mark.parametrize("path", [PATH, f"/topics/{TOPIC}.bundle"])
async def test_a_bundle_is_of_one_head_while_others_write(
    newest: httpx.AsyncClient, registry: Registry, alice: Signer, path: str
) -> None:
    api = newest
    await publish(api, alice, publication(alice))

    async def write() -> None:
        for seq in range(40):
            await log(registry, ballot(registry, seq), alice)

    async def read() -> int:
        answer = await fetch(api, registry, path)
        return open_checkpoint(answer.bundle.checkpoint, registry.log_key).checkpoint.size

    writer = asyncio.create_task(write())
    sizes = []
    while not writer.done():
        sizes += await asyncio.gather(*(read() for _ in range(4)))
    await writer
    assert sizes == sorted(sizes) and len(set(sizes)) > 3


def _based_on(base: Publication, publication: Publication) -> Publication:
    pinned = kinds.Base(base.body.uri, base.body.document.sha256)
    body = kinds.Publish(
        publication.body.uri, publication.body.topic, publication.body.document, publication.body.card, "negotiated", base=pinned
    )
    return Publication(body, publication.document, publication.card)


@asynccontextmanager
async def _with_clock(tmp_path: Path, database: str, web: Web) -> AsyncIterator[tuple[httpx.AsyncClient, Registry, list[int]]]:
    """A registry whose clock the test sets: the one number of the list, Unix seconds."""
    clock = [NOW]
    settings = settings_for(tmp_path / "registry", database)
    opened = Registry.open(settings, clock=lambda: datetime.fromtimestamp(clock[0], UTC), resolve=web.resolve)
    async with opened as registry:
        transport = httpx.ASGITransport(create_app(registry))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="https://registry.example") as api:
            yield api, registry, clock
