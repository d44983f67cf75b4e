"""The head of a log: whatever shows us a checkpoint is compared with the newest one seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher
from registries import grant
from signers import signed
from simulated_registry import ALICE, CLOCK_KEY, NAME, SimulatedRegistry, uri_of, with_echo

from treaty_client.protocols.log_head import LogHead
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import kinds
from treaty_consensus.errors import Refused, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.durability import Durability
from treaty_consensus.log.note import KeyType, SignerKey, sign


def grown(registry: SimulatedRegistry, leaves: int) -> SimulatedRegistry:
    for number in range(leaves):
        registry.force(registry.leaves[number % 5])
    return registry


async def head_of(registry: SimulatedRegistry, home: Path) -> LogHead:
    return fetcher(registry, home).head(NAME.origin)


@pytest.mark.parametrize("leaves", [0, 1, 2, 300, 600])
async def test_a_larger_checkpoint_is_proved_by_tiles_and_remembered(tmp_path: Path, leaves: int) -> None:
    registry = with_echo()
    registries = registry.trusted_in(tmp_path)
    head = await head_of(registry, tmp_path)
    first = await head.refresh()
    assert registries.get(NAME.origin).seen == first.note
    grown(registry, leaves)
    second = await head.refresh()
    assert second.checkpoint.size == first.checkpoint.size + leaves
    assert registries.get(NAME.origin).seen == (second.note if leaves else first.note)


async def test_a_smaller_checkpoint_is_proved_and_not_remembered(tmp_path: Path) -> None:
    registry = with_echo()
    old = registry.checkpoint()
    head = await head_of(grown(registry, 300), tmp_path)
    newest = await head.refresh()
    assert (await head.observe(old)).checkpoint.size == registry.size - 300
    assert registry.trusted_in(tmp_path).get(NAME.origin).seen == newest.note


@pytest.mark.parametrize("leaves", [0, 5, 300])
async def test_a_fork_is_found_out_and_the_evidence_kept(tmp_path: Path, leaves: int) -> None:
    registry = with_echo()
    head = await head_of(registry, tmp_path)
    first = await head.refresh()
    fork = grown(registry.rewritten(3, registry.leaves[4]), leaves)
    with pytest.raises(VerificationFailed) as failure:
        await (await head_of(fork, tmp_path)).refresh()
    assert (failure.value.step, failure.value.evidence) == (2, (first.note, fork.checkpoint()))
    assert registry.trusted_in(tmp_path).get(NAME.origin).seen == first.note


async def test_a_log_that_lost_leaves_is_found_out(tmp_path: Path) -> None:
    registry = with_echo()
    short = registry.copy()
    newest = await (await head_of(grown(registry, 1), tmp_path)).refresh()
    with pytest.raises(VerificationFailed) as failure:
        await (await head_of(short, tmp_path)).refresh()
    assert (failure.value.step, failure.value.code) == (2, "log.rollback")
    assert failure.value.evidence == (short.checkpoint(), newest.note)


async def test_a_registry_that_is_down_is_no_proof_of_anything(tmp_path: Path) -> None:
    registry = with_echo()
    await (await head_of(registry, tmp_path)).refresh()
    note = grown(registry, 1).checkpoint()
    with pytest.raises(Unavailable):
        await fetcher(registry, tmp_path, down=True).head(NAME.origin).observe(note)


async def test_a_checkpoint_by_another_key_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    head = await head_of(registry, tmp_path)
    other = SignerKey(NAME.origin, KeyType.ED25519, b"\x08" * 32)
    note = sign(Checkpoint(NAME.origin, registry.size, registry.root()).format(), [other, CLOCK_KEY], time=registry.now)
    with pytest.raises(Untrusted):
        await head.observe(note)
    assert registry.trusted_in(tmp_path).get(NAME.origin).seen is None


async def test_a_receipt_is_for_its_statement_alone(tmp_path: Path) -> None:
    registry = with_echo()
    head = await head_of(registry, tmp_path)
    statement = signed(kinds.Status(uri_of(), "active"), ALICE, issued=registry.now)
    other = signed(kinds.Status(uri_of(), "deprecated"), ALICE, issued=registry.now)
    receipt = registry.receipt(registry.submit(statement.leaf))
    assert (await head.accept_receipt(receipt, statement)).index == registry.size - 1
    with pytest.raises(Untrusted) as error:
        await head.accept_receipt(receipt, other)
    assert error.value.code == "log.inclusion"


async def test_a_statement_goes_to_a_log_with_enough_copies(tmp_path: Path) -> None:
    registry = with_echo()
    head = fetcher(registry, tmp_path, copies=2).head(NAME.origin)
    before = list(registry.leaves)
    with pytest.raises(Refused) as refused:
        await head.submit(ALICE.statement(grant(ALICE, 1)))
    assert refused.value.code == "log.too-few-copies"
    assert registry.leaves == before
    registry.durability = Durability(standbys=1, copies=1)
    assert (await head.submit(ALICE.statement(grant(ALICE, 1)))).index == len(before)


async def test_a_receipt_with_fewer_promises_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.durability = Durability(copies=1)
    head = fetcher(registry, tmp_path, copies=1).head(NAME.origin)
    await head.refresh()
    registry.durability = Durability()
    with pytest.raises(Refused) as refused:
        await head.submit(ALICE.statement(grant(ALICE, 1)))
    assert refused.value.code == "log.too-few-copies"
    assert "is logged" in refused.value.message
