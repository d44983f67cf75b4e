"""Another user of the machine reads nothing of what an agent keeps, names included."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetching import fetcher
from lying import retell, seen, stops
from simulated_registry import ALICE, NAME, uri_of, with_echo

from treaty_aip import AgentMessage
from treaty_aip.memory import ContextMemory
from treaty_client.registries.trust import TrustedRegistries


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def shown(folder: Path) -> dict[str, str]:
    """The files and folders that others may read, without those of locks, which are empty."""
    places = [folder, *folder.rglob("*")]
    modes = {place.relative_to(folder).as_posix(): stat.S_IMODE(place.stat().st_mode) for place in places}
    return {name: oct(mode) for name, mode in modes.items() if mode & 0o077 and not name.endswith(".lock.lock")}


@pytest.mark.threat(348)
async def test_a_home_is_for_its_user(tmp_path: Path) -> None:
    registry, home = with_echo(), tmp_path / "home"
    TrustedRegistries(home).add(NAME)
    await seen(registry, home)
    retell(registry, ALICE, document=b"# Another\n")
    await stops(registry, home, "memory.contradicted")
    assert any((home / "evidence").iterdir())
    assert shown(home) == {}


@pytest.mark.threat(348)
async def test_a_lock_that_a_team_shares_keeps_its_mode(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    lock = tmp_path / "treaty.lock"
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    lock.chmod(0o644)
    registry.publish("1.1")
    registry.attach("1.1")
    registry.now += 7200
    before = lock.read_bytes()
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of("1.1"), fresh=True)
    assert lock.read_bytes() != before
    assert stat.S_IMODE(lock.stat().st_mode) == 0o644


@pytest.mark.threat(348)
def test_conversations_of_aip_are_for_their_user(tmp_path: Path) -> None:
    memory = ContextMemory("agent", str(tmp_path / "cache"))
    assert memory.create("task") and memory.write("task", AgentMessage(message_id="m", sender_id="a", receiver_id="b"))
    assert shown(tmp_path / "cache") == {}
