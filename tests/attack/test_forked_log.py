"""A registry shows this agent another history than it showed before, or than its checkpoint says: steps 2 and 3."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher, refused_at
from signers import signed
from simulated_registry import ALICE, CLOCK_KEY, NAME, uri_of, with_echo

from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import kinds
from treaty_consensus.log.checkpoint import Checkpoint, open_checkpoint
from treaty_consensus.log.note import KeyType, SignerKey, sign
from treaty_consensus.log.proof import Receipt


@pytest.mark.threat(10)
async def test_a_rewritten_history_is_refused_with_evidence(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
        checkpoint = registry.checkpoint()
    fork = registry.rewritten(3, signed(kinds.Status(uri_of(), "active"), ALICE, issued=registry.now).leaf)
    fork.force(fork.leaves[2])
    fork.now += 7200
    fork.cosigned = fork.now
    failure = await refused_at(2, fork, tmp_path)
    assert failure.code == "log.consistency"
    first, second = (open_checkpoint(note, NAME.key).checkpoint for note in failure.evidence)
    assert first == open_checkpoint(checkpoint, NAME.key).checkpoint
    assert (second.size, second.root) == (fork.size, fork.root())


async def test_a_fork_of_the_same_size_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
    fork = registry.rewritten(5, registry.leaves[4])
    fork.now += 7200
    failure = await refused_at(2, fork, tmp_path)
    assert failure.code == "log.consistency"
    assert len(failure.evidence) == 2


async def test_a_fork_that_a_receipt_shows_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
        seen = agent.registries.get(NAME.origin).seen
        fork = registry.rewritten(3, registry.leaves[4])
        statement = signed(kinds.Status(uri_of(), "active"), ALICE, issued=registry.now)
        index = fork.force(statement.leaf)
        receipt = fork.receipt(index)
        assert Receipt.parse(receipt).verify(statement.leaf, NAME.key)
    async with fetcher(fork, tmp_path) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.head(NAME.origin).accept_receipt(receipt, statement)
        assert failure.value.step == 2
        assert len(failure.value.evidence) == 2
        assert agent.registries.get(NAME.origin).seen == seen


async def test_a_log_by_another_key_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    other = SignerKey(NAME.origin, KeyType.ED25519, b"\x07" * 32)
    text = Checkpoint(NAME.origin, registry.size, registry.root()).format()
    forged = sign(text, [other, CLOCK_KEY], time=registry.now)
    registry.checkpoint = lambda: forged  # type: ignore[method-assign]
    failure = await refused_at(2, registry, tmp_path)
    assert failure.code == "note.signature"


@pytest.mark.threat(2)
async def test_a_leaf_that_is_not_in_the_log_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    honest = registry.inclusion
    registry.inclusion = lambda index: honest(index) if index != 4 else honest(5)  # type: ignore[method-assign]
    failure = await refused_at(3, registry, tmp_path)
    assert failure.code == "log.inclusion"
