"""A registry goes back to a shorter log, so that what was logged since seems not to have happened: step 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher, refused_at
from simulated_registry import ALICE, BOB, NAME, SimulatedRegistry, uri_of, with_echo

from treaty_consensus import kinds
from treaty_consensus.log.checkpoint import open_checkpoint


@pytest.mark.threat(7)
async def test_a_log_that_lost_its_newest_leaves_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    short = registry.copy()
    registry.add(kinds.Status(uri_of(), "deprecated"), ALICE)
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
    short.now += 7200
    failure = await refused_at(2, short, tmp_path)
    assert failure.code == "log.rollback"
    assert [open_checkpoint(note, NAME.key).checkpoint.size for note in failure.evidence] == [registry.size, short.size]


def lagging(registry: SimulatedRegistry) -> None:
    """Serve the log without its last leaf, and tiles of the whole log."""
    whole = registry.copy()
    registry.served = registry.size - 1
    registry.tamper = lambda path, body: whole.tile(path) if path.startswith("/tile/") else body


async def test_a_lagging_server_is_accepted_and_not_remembered(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish(signer=BOB)
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
        newest = agent.registries.get(NAME.origin).seen
    registry.now += 7200
    lagging(registry)
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of())
        assert verified.checkpoint.checkpoint.size == registry.size < len(registry.leaves)
        assert verified.warnings == ()
        assert agent.registries.get(NAME.origin).seen == newest


@pytest.mark.threat(16)
async def test_a_server_behind_the_seen_protocol_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.add(kinds.Status(uri_of(), "deprecated"), ALICE)
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
    registry.now += 7200
    lagging(registry)
    failure = await refused_at(10, registry, tmp_path)
    assert failure.code == "memory.behind" and "Try again" in failure.fix
    registry.served = None
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(uri_of())).warnings


async def test_a_server_that_lags_behind_for_too_long_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.add(kinds.Status(uri_of(), "deprecated"), ALICE)
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
    registry.cosigned = registry.now
    registry.now += 7200
    registry.served = registry.size - 1
    assert (await refused_at(2, registry, tmp_path)).code == "checkpoint.stale"
