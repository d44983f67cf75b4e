"""The sequencer: group commit, one refusal for one statement, idempotency, and what a failing commit leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from registries import Web, ballot, contents, grant, log, open_registry, publication, publish, refuse, settings_for
from signers import NOW, Signer, domain_signer, key_signer

from treaty_consensus import kinds, statement
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.proof import Receipt
from treaty_consensus.sigstore_leaf import CertificateLeaf
from treaty_registry import projection
from treaty_registry import registry as registry_module
from treaty_registry.log import sequencer as sequencer_module
from treaty_registry.log.entry import Entry, Logged
from treaty_registry.registry import Registry
from treaty_registry.storage.postgres import Connection

WRITERS = [key_signer(f"writer {number}") for number in range(40)]
ALICE = domain_signer("alice.example")
PROTOCOL = "10" * 32


def granted(writer: Signer, number: int = 0) -> bytes:
    return writer.statement(grant(writer, number)).leaf


def vote(registry: Registry, voter: Signer, seq: int = 0) -> bytes:
    return voter.statement(ballot(registry, seq, PROTOCOL)).leaf


def verify(registry: Registry, outcome: Logged | TreatyError, leaf: bytes) -> int:
    """Check a receipt as a client would; returns the size of the tree it is for."""
    assert isinstance(outcome, Logged), outcome
    receipt = Receipt.parse(outcome.receipt)
    assert receipt.index == outcome.index
    return receipt.verify(leaf, registry.log_key, registry.clock_key).checkpoint.size


async def test_a_log_begins_with_its_genesis_and_parameters(registry: Registry) -> None:
    leaves = await registry.leaves([0, 1])
    genesis, parameters = (statement.parse(leaves[index]).body for index in (0, 1))
    assert isinstance(genesis, kinds.Genesis)
    assert (genesis.log_key, genesis.clock_key) == (str(registry.log_key), str(registry.clock_key))
    assert genesis.operator == registry.operator
    assert isinstance(parameters, kinds.Parameters)
    assert registry.head.size == 2


async def test_concurrent_writers_share_commits_and_each_gets_a_proof(registry: Registry) -> None:
    leaves = [granted(writer) for writer in WRITERS]
    outcomes = [outcome for (outcome,) in await asyncio.gather(*(registry.submit([leaf]) for leaf in leaves))]
    sizes = {verify(registry, outcome, leaf) for outcome, leaf in zip(outcomes, leaves, strict=True)}
    assert sorted(outcome.index for outcome in outcomes if isinstance(outcome, Logged)) == list(range(2, 42))
    assert max(sizes) == registry.head.size == 42
    assert len(sizes) < len(WRITERS), "every statement had a commit of its own"


async def test_a_refusal_in_a_batch_concerns_one_statement(registry: Registry) -> None:
    first, second = WRITERS[:2]
    batch = [
        granted(first, 0),
        first.statement(grant(second)).leaf,
        b"{}",
        granted(first, 1),
        second.statement(grant(first)).leaf,
        granted(first, 2),
    ]
    outcomes = await registry.submit(batch)
    assert [outcome.code if isinstance(outcome, TreatyError) else outcome.index for outcome in outcomes] == [
        *(2, "publish.not-entitled", "statement.form", 3, "publish.not-entitled", 4)
    ]
    for outcome, leaf in zip(outcomes, batch, strict=True):
        if isinstance(outcome, Logged):
            verify(registry, outcome, leaf)


async def test_a_statement_sees_the_one_before_it_in_its_batch(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    first = ALICE.statement(statement.body).leaf
    for digest, data in statement.blobs.items():
        await registry.put_blob(digest, first, data)
    early, late = (ALICE.statement(kinds.Status(statement.body.uri, state)).leaf for state in ("deprecated", "yanked"))
    outcomes = await registry.submit([early, first, late])
    assert [getattr(outcome, "code", "logged") for outcome in outcomes] == ["protocol.unknown", "logged", "logged"]


async def test_one_statement_has_one_place_however_often_it_comes(registry: Registry) -> None:
    leaf = granted(WRITERS[0])
    together = await registry.submit([leaf, leaf, leaf])
    again = await asyncio.gather(*(registry.submit([leaf]) for _ in range(5)))
    outcomes = [*together, *(outcome for (outcome,) in again)]
    assert {outcome.index for outcome in outcomes if isinstance(outcome, Logged)} == {2}
    assert [outcome.new for outcome in outcomes if isinstance(outcome, Logged)] == [True] + [False] * 7
    for outcome in outcomes:
        verify(registry, outcome, leaf)
    assert registry.head.size == 3


async def test_a_statement_that_no_rule_refuses_twice_is_logged_once(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    await publish(registry, ALICE, statement)
    leaf = ALICE.statement(kinds.Status(statement.body.uri, "deprecated")).leaf
    connection = registry.leader.connection
    together = await registry.submit([leaf, leaf])
    (again,) = await registry.submit([leaf])
    outcomes = [outcome for outcome in (*together, again) if isinstance(outcome, Logged)]
    assert [(outcome.index, outcome.new) for outcome in outcomes] == [(4, True), (4, False), (4, False)]
    assert registry.head.size == 5
    assert registry.leader.connection is connection, "no commit failed on the way"


async def test_a_refused_statement_logged_in_its_batch_has_a_receipt(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    first, second = (vote(registry, ALICE, seq) for seq in (0, 1))
    outcomes = await registry.submit([second, first, second])
    assert [(outcome.index, outcome.new) for outcome in outcomes if isinstance(outcome, Logged)] == [
        (4, False),
        (3, True),
        (4, True),
    ]


async def test_a_receipt_outlives_the_key_of_its_statement(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    leaf = vote(registry, ALICE)
    (before,) = await registry.submit([leaf])
    web.documents[ALICE.did] = web.documents[ALICE.did].replace(b"key-1", b"key-2")
    rotated = Signer(ALICE.did, ALICE.key_id.replace("key-1", "key-2"), ALICE.private_key)
    await log(registry, ballot(registry, 1, PROTOCOL), rotated)
    (after,) = await registry.submit([leaf])
    assert isinstance(before, Logged)
    assert isinstance(after, Logged)
    assert (after.index, after.new) == (before.index, False)
    verify(registry, after, leaf)
    assert (await refuse(registry, vote(registry, ALICE, 2))).code == "statement.unknown-key"


async def test_an_internal_fault_fails_its_statement_alone(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    poison, apply = granted(WRITERS[3]), projection.apply

    async def faulty(connection: Connection, entries: Sequence[Entry]) -> None:
        await apply(connection, entries)
        if any(entry.leaf == poison for entry in entries):
            raise ZeroDivisionError

    monkeypatch.setattr(projection, "apply", faulty)
    leaves = [granted(writer) for writer in WRITERS[:8]]
    outcomes = await registry.submit(leaves)
    failed = [leaf for leaf, outcome in zip(leaves, outcomes, strict=True) if isinstance(outcome, TreatyError)]
    assert failed == [poison]
    assert isinstance(outcomes[3], Unavailable)
    assert outcomes[3].code == "log.unavailable"
    assert registry.head.size == 2 + 7
    monkeypatch.undo()
    (retried,) = await registry.submit([poison])
    assert verify(registry, retried, poison) == 10


async def test_a_lost_connection_is_made_again(registry: Registry) -> None:
    await log(registry, grant(WRITERS[0]), WRITERS[0])
    await registry.pool.execute("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted")
    leaf = granted(WRITERS[1])
    outcomes = [(await registry.submit([leaf]))[0] for _ in range(2)]
    assert verify(registry, outcomes[-1], leaf) == 4


async def test_what_the_fence_cannot_record_is_not_signed(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(registry.leader.fence, "advance", fail)
    before = registry.head
    leaf = granted(WRITERS[0])
    (outcome,) = await registry.submit([leaf])
    assert isinstance(outcome, Unavailable)
    assert registry.head == before, "readers see the last checkpoint that was recorded"
    assert not await registry.is_ready()
    (outcome,) = await registry.submit([granted(WRITERS[1])])
    assert isinstance(outcome, Unavailable)
    monkeypatch.undo()
    (outcome,) = await registry.submit([leaf])
    assert isinstance(outcome, Logged)
    assert not outcome.new, "it was committed, though nobody was told"
    assert verify(registry, outcome, leaf) == 3
    assert await registry.is_ready()


async def test_closing_waits_for_what_has_queued_up(tmp_path: Path, database: str, web: Web) -> None:
    async with open_registry(tmp_path / "registry", database, web) as registry:
        leaves = [granted(writer) for writer in WRITERS]
        tasks = [asyncio.create_task(registry.submit([leaf])) for leaf in leaves]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)  # some are under way, some wait
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    logged = [outcome for outcome in outcomes if isinstance(outcome, list) and isinstance(outcome[0], Logged)]
    assert logged
    async with open_registry(tmp_path / "registry", database, web) as registry:
        assert registry.head.size == 2 + len(logged)


async def test_a_full_queue_refuses_all_of_a_batch(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer_module, "MAX_QUEUE", 3)
    before = await contents(registry)
    with pytest.raises(Unavailable) as refused:
        await registry.submit([granted(writer) for writer in WRITERS[:4]])
    assert refused.value.code == "registry.busy"
    assert await contents(registry) == before
    assert len(await registry.submit([granted(writer) for writer in WRITERS[:3]])) == 3


async def test_sigstore_leaves_stand_between_statements(registry: Registry) -> None:
    leaf = CertificateLeaf(b"a certificate").encode()
    await log(registry, grant(WRITERS[0]), WRITERS[0])
    placed = await registry.append(leaf)
    await log(registry, grant(WRITERS[1]), WRITERS[1])
    assert (placed.index, placed.size) == (3, 4)
    Receipt(placed.index, tuple(placed.hashes), placed.checkpoint.encode()).verify(leaf, registry.log_key)
    assert (await registry.leaves([3]))[3] == leaf
    before = registry.head
    for bad in (b"", b"{}", leaf + b" ", leaf.replace(b"cert", b"Cert")):
        with pytest.raises(TreatyError):
            await registry.append(bad)
    assert registry.head == before


async def test_a_turn_logs_all_or_nothing(registry: Registry) -> None:
    writer = WRITERS[0]
    other = WRITERS[1]
    # The namespace of another writer.
    good, bad = writer.statement(grant(writer)), other.statement(grant(writer))
    keys = {signer.key_id: signer.public_key for signer in (writer, other)}
    before = await contents(registry)
    async with registry.sequencer.exclusive() as exclusive:
        with pytest.raises(Refused):
            await exclusive.append([statement.verify(good, keys), statement.verify(bad, keys)])
    assert await contents(registry) == before
    async with registry.sequencer.exclusive() as exclusive:
        (place,) = await exclusive.append([statement.verify(good, keys)])
    assert place.index == 2


async def test_a_turn_keeps_writers_waiting_and_no_reader(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    logged = await publish(registry, ALICE, statement := publication(ALICE))
    assert isinstance(logged, Logged)
    async with registry.sequencer.exclusive():
        writing = asyncio.create_task(registry.submit([granted(WRITERS[0])]))
        async with asyncio.timeout(10):
            assert await registry.receipt(logged.id) == logged.receipt
            assert await registry.blob(statement.body.document.sha256) == statement.document
            assert await registry.tile("/tile/entries/000.p/1")
            await registry.inclusion(range(registry.head.size))
        assert not writing.done()
    assert isinstance((await writing)[0], Logged)


async def test_the_clock_cosigns_again_while_nothing_happens(
    tmp_path: Path, database: str, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "RENEWAL", 0.02)
    now = NOW

    def clock() -> datetime:
        nonlocal now
        now += 1
        return datetime.fromtimestamp(now, UTC)

    settings = settings_for(tmp_path / "registry", database)
    async with Registry.open(settings, clock=clock, resolve=web.resolve) as registry:
        first = registry.head
        for _ in range(3_000):
            if registry.head.time > first.time + 2:
                break
            await asyncio.sleep(0.01)
        renewed = open_checkpoint(registry.head.note, registry.log_key, registry.clock_key)
        assert renewed.checkpoint == first.signed.checkpoint
        assert renewed.time == registry.head.time
