"""An agent notices that it lost what registries proved to it, and that a log's time goes back."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from fetching import fetcher, refused_at
from lying import leave_out, seen
from simulated_registry import NAME, TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.trust import TrustedRegistries
from treaty_consensus import kinds
from treaty_consensus.errors import Untrusted

FILES = ("seen.db", "seen.db-wal", "seen.db-shm")


def delete(home: Path, before: Path) -> None:
    for name in FILES:
        (home / name).unlink(missing_ok=True)


def restore(home: Path, before: Path) -> None:
    """Put an older copy of the memory in the place of the present one, as a copy without seen.db-wal is."""
    delete(home, before)
    shutil.copy(before, home / "seen.db")


def copied(home: Path, to: Path) -> None:
    with closing(sqlite3.connect(home / "seen.db")) as database:
        database.execute("pragma wal_checkpoint(truncate)")
    shutil.copy(home / "seen.db", to)


async def learns(registry: SimulatedRegistry, home: Path, to: Path) -> None:
    """An agent learns of a protocol, and a copy of its memory is made. Then it learns of a revocation."""
    await seen(registry, home)
    copied(home, to)
    registry.publish("1.1")
    registry.now += 7200
    await seen(registry, home)


@pytest.mark.threat(342)
@pytest.mark.parametrize("lose", [delete, restore])
async def test_a_lost_memory_is_a_warning_with_the_fix_or_a_refusal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lose: Callable[[Path, Path], None]
) -> None:
    registry, home, before = with_echo(), tmp_path / "home", tmp_path / "before.db"
    home.mkdir()
    await learns(registry, home, before)
    total = TrustedRegistries(home).get(NAME.origin).learned
    assert total == TrustedRegistries(home).memory.learned(NAME.origin) > 0
    lose(home, before)
    with pytest.raises(Untrusted) as lost:
        TrustedRegistries(home).check_memory(NAME.origin)
    assert lost.value.code == "memory.lost"
    registry.now += 7200
    refusal = await refused_at(10, registry, home, lost_memory="refuse")
    assert (refusal.code, TrustedRegistries(home).get(NAME.origin).learned) == ("memory.lost", total)
    assert f"treaty trust accept-loss {NAME.origin}" in refusal.fix
    caplog.clear()
    async with fetcher(registry, home) as agent:
        await agent.fetch(uri_of(), fresh=True)
    (warning,) = [record.getMessage() for record in caplog.records if "lost" in record.getMessage()]
    assert f"treaty trust accept-loss {NAME.origin}" in warning
    TrustedRegistries(home).accept_loss(NAME.origin)
    caplog.clear()
    async with fetcher(registry, home, lost_memory="refuse") as agent:
        await agent.fetch(uri_of(), fresh=True)


@pytest.mark.threat(342)
async def test_a_memory_that_is_whole_is_never_lost(tmp_path: Path) -> None:
    registry = with_echo()
    await learns(registry, tmp_path, tmp_path.parent / f"{tmp_path.name}.db")
    memory = TrustedRegistries(tmp_path).memory
    memory.forget(NAME.origin, f"protocol/{uri_of()}")  # by its owner
    TrustedRegistries(tmp_path).check_memory(NAME.origin)
    with closing(sqlite3.connect(tmp_path / "seen.db")) as database:  # of a version that did not count
        database.execute("drop table learned")
        database.execute("pragma user_version = 1")
    path = tmp_path / "registries.json"
    value = json.loads(path.read_text())
    del value["registries"][NAME.origin]["learned"]
    path.write_text(json.dumps(value))
    async with fetcher(registry, tmp_path, lost_memory="refuse") as agent:
        await agent.fetch(uri_of(), fresh=True)


@pytest.mark.threat(343)
async def test_the_time_of_a_log_does_not_go_back(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    before = (tmp_path / "registries.json").read_bytes()
    for minutes in (50, 21):
        registry.cosigned = registry.now - 60 * minutes
        async with fetcher(registry, tmp_path, max_age=3600) as agent:
            with pytest.raises(VerificationFailed) as failure:
                await agent.fetch(uri_of(), fresh=True)
        assert (failure.value.step, failure.value.code) == (2, "checkpoint.stale")
        assert "older than one that was seen" in failure.value.message
        assert (tmp_path / "registries.json").read_bytes() == before
    registry.cosigned = registry.now - 1200  # a cache, a mirror that follows, or a static copy
    async with fetcher(registry, tmp_path, max_age=3600) as agent:
        await agent.fetch(uri_of(), fresh=True)
        registry.now, registry.cosigned = registry.now + 3000, None
        await agent.fetch(uri_of(), fresh=True)  # of the same size, and later: the floor rises
        registry.cosigned = registry.now - 1201
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of(), fresh=True)
        assert failure.value.code == "checkpoint.stale"


@pytest.mark.threat(344)
async def test_distrust_of_a_topic_outlives_the_process(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.candidates(TOPIC)).uris
    left_out = registry.left_out
    leave_out(registry, kinds.Publish)
    for _ in range(2):  # after a restart, too
        async with fetcher(registry, tmp_path) as agent:
            with pytest.raises(VerificationFailed) as refused:
                await agent.candidates(TOPIC, fresh=True)
            assert refused.value.step == 10
    async with fetcher(registry, tmp_path) as agent:
        with pytest.raises(VerificationFailed):
            await agent.candidates(TOPIC)
    registry.left_out = left_out
