"""A publisher took something back, and a registry or an old cache would still hand it out: step 9."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher, refused_at
from simulated_registry import ALICE, SimulatedRegistry, uri_of, with_echo

from treaty_consensus import kinds


def handlers(registry: SimulatedRegistry) -> list[kinds.Handler]:
    return [made.body for _, made in registry.statements() if isinstance(made.body, kinds.Handler)]


@pytest.mark.parametrize("state", ["yanked", "revoked"])
async def test_a_protocol_that_was_taken_back_is_refused(tmp_path: Path, state: str) -> None:
    registry = with_echo()
    registry.publish("2.0")
    registry.add(kinds.Status(uri_of(), state, successor=uri_of("2.0")), ALICE)  # type: ignore[arg-type]
    failure = await refused_at(9, registry, tmp_path)
    assert failure.code == f"status.{state}"
    assert uri_of("2.0") in failure.message


@pytest.mark.parametrize("state", ["yanked", "revoked"])
async def test_the_only_handler_that_was_taken_back_is_refused(tmp_path: Path, state: str) -> None:
    registry = with_echo()
    registry.add(kinds.Status(uri_of(), state, wheel=handlers(registry)[0].wheel.sha256), ALICE)  # type: ignore[arg-type]
    assert (await refused_at(9, registry, tmp_path)).code == f"status.{state}"


async def test_an_older_handler_takes_the_place_of_one_that_was_taken_back(tmp_path: Path) -> None:
    registry = with_echo()
    registry.attach(release="2")
    registry.add(kinds.Status(uri_of(), "yanked", wheel=handlers(registry)[1].wheel.sha256), ALICE)
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(uri_of())).package.version == "1"


async def test_the_newest_word_holds(tmp_path: Path) -> None:
    registry = with_echo()
    registry.add(kinds.Status(uri_of(), "yanked"), ALICE)
    registry.add(kinds.Status(uri_of(), "deprecated", successor=uri_of("2.0")), ALICE)
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of())
    assert verified.warnings == (f"{uri_of()} is deprecated by its publisher. Its successor is {uri_of('2.0')}.",)


async def test_a_withdrawn_wheel_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.withdrawn.add(handlers(registry)[0].wheel.sha256)
    assert (await refused_at(9, registry, tmp_path)).code == "blob.withdrawn"


async def test_a_cache_notices_once_its_proof_is_too_old(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path, max_age=600) as agent:
        verified = await agent.fetch(uri_of())
        registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
        registry.now += 600
        assert agent.cached(verified.hash) == verified
        registry.now += 1
        assert agent.cached(verified.hash) is None
    await refused_at_again(registry, tmp_path)


async def refused_at_again(registry: SimulatedRegistry, home: Path) -> None:
    assert (await refused_at(9, registry, home, max_age=600)).code == "status.revoked"
