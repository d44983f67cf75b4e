"""A topic that was proved lately needs no registry: not when it is down, and not when it hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fetching import fetcher
from loopback import Loopback
from signers import ORIGIN
from simulated_registry import TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_client.policy import Policy
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.topics import Candidates
from treaty_consensus.errors import TreatyError, Unavailable

KNOWN = Candidates((uri_of(),))


def offline(registry: SimulatedRegistry, home: Path) -> Fetcher:
    """A process with the home of an earlier one, and no registry."""
    registry.trusted_in(home)
    return Fetcher(home, Policy(publishers=[POLICY]), registry.network(down=True), clock=lambda: registry.now)


POLICY = "did:wba:alice.example"


async def met(registry: SimulatedRegistry, home: Path) -> None:
    async with fetcher(registry, home) as agent:
        assert await agent.candidates(TOPIC) == KNOWN


async def test_a_stored_topic_is_used_while_its_proof_is_young(tmp_path: Path) -> None:
    registry = with_echo()
    await met(registry, tmp_path)
    async with offline(registry, tmp_path) as agent:
        assert await agent.candidates(TOPIC) == KNOWN
    registry.now += agent.policy.max_age + 1
    async with offline(registry, tmp_path) as agent:
        with pytest.raises(Unavailable):
            await agent.candidates(TOPIC)


async def test_a_stored_verified_protocol_is_offered_for_its_topic(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
    async with offline(registry, tmp_path) as agent:
        assert await agent.candidates(TOPIC) == KNOWN
        with pytest.raises(Unavailable):
            await agent.candidates("other/topic")


async def test_a_registry_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    registry, request_seen, never = with_echo(), asyncio.Event(), asyncio.Event()
    await met(registry, tmp_path)

    async def hang(request: str) -> bytes:
        request_seen.set()
        await never.wait()
        return b""

    loopback = Loopback(tmp_path)
    async with loopback.serving(hang, ORIGIN):
        registry.trusted_in(tmp_path)
        agent = Fetcher(tmp_path, Policy(publishers=[POLICY]), loopback.network(), clock=lambda: registry.now)
        async with agent:
            assert await agent.candidates(TOPIC) == KNOWN
            await request_seen.wait()  # the renewal, which is still waiting
            assert await agent.candidates(TOPIC) == KNOWN
        assert len(loopback.seen) == 1, "one renewal at a time"
        never.set()


async def test_a_renewal_that_finds_a_fork_ends_the_use_of_the_store(tmp_path: Path) -> None:
    registry = with_echo()
    await met(registry, tmp_path)
    fork = registry.rewritten(5, registry.leaves[4])
    async with fetcher(fork, tmp_path) as agent:
        assert await agent.candidates(TOPIC) == KNOWN
        with pytest.raises(TreatyError) as refused:
            for _ in range(100):
                await asyncio.sleep(0.05)  # the renewal works in a thread
                await agent.candidates(TOPIC)
        assert refused.value.code == "log.consistency"


@pytest.mark.parametrize("damage", [b"", b"{", b'{"topics": 1}'])
async def test_a_damaged_file_is_asked_anew(tmp_path: Path, damage: bytes) -> None:
    registry = with_echo()
    await met(registry, tmp_path)
    (tmp_path / "topics.json").write_bytes(damage)
    await met(registry, tmp_path)
