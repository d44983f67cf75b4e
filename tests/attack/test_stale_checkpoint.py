"""Somebody keeps news from an agent by showing it an old checkpoint, or one from the future: step 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher, refused_at
from simulated_registry import LOG_KEY, NAME, uri_of, with_echo

from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import KeyType, SignerKey, sign


@pytest.mark.threat(6)
async def test_an_old_checkpoint_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.cosigned = registry.now - 601
    failure = await refused_at(2, registry, tmp_path, max_age=600)
    assert failure.code == "checkpoint.stale"
    registry.cosigned = registry.now - 600
    async with fetcher(registry, tmp_path, max_age=600) as agent:
        assert (await agent.fetch(uri_of())).age(registry.now) == 600


async def test_a_checkpoint_from_the_future_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.cosigned = registry.now + 301
    failure = await refused_at(2, registry, tmp_path)
    assert failure.code == "checkpoint.future"


@pytest.mark.threat(6)
async def test_a_checkpoint_without_the_clock_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    unclocked = sign(Checkpoint(NAME.origin, registry.size, registry.root()).format(), [LOG_KEY])
    registry.checkpoint = lambda: unclocked  # type: ignore[method-assign]
    assert (await refused_at(2, registry, tmp_path)).code == "checkpoint.not-witnessed"


@pytest.mark.threat(25)
async def test_a_clock_outside_the_genesis_does_not_count(tmp_path: Path) -> None:
    registry = with_echo()
    other = SignerKey(f"{NAME.origin}/clock", KeyType.COSIGNATURE, b"\x09" * 32)
    text = Checkpoint(NAME.origin, registry.size, registry.root()).format()
    note = sign(text, [LOG_KEY, other], time=registry.now)
    registry.checkpoint = lambda: note  # type: ignore[method-assign]
    assert (await refused_at(2, registry, tmp_path)).code == "checkpoint.not-witnessed"
