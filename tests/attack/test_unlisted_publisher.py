"""Somebody attaches a handler of their own to a protocol that the network elected: step 6."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher, refused_at
from simulated_registry import ALICE, BOB, uri_of, with_echo

from treaty_consensus import kinds


async def test_a_policy_that_names_nobody_runs_nothing(tmp_path: Path) -> None:
    failure = await refused_at(6, with_echo(), tmp_path, publishers=())
    assert failure.code == "policy.refused"
    assert "treaty policy allow" in failure.fix
    assert ALICE.did in failure.message


@pytest.mark.threat(26)
async def test_a_handler_by_a_stranger_is_refused(tmp_path: Path) -> None:
    failure = await refused_at(6, with_echo(), tmp_path, publishers=(BOB,))
    assert failure.code == "policy.refused"


async def test_a_strangers_newer_handler_is_passed_over(tmp_path: Path) -> None:
    registry = with_echo()
    registry.attach(signer=BOB, release="9")
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of())
    assert (verified.publisher, verified.package.version) == (ALICE.did, "1")


async def test_the_policys_first_publisher_and_newest_handler_win(tmp_path: Path) -> None:
    registry = with_echo()
    registry.attach(signer=BOB, release="3")
    registry.attach(release="2")
    async with fetcher(registry, tmp_path / "a", publishers=(ALICE, BOB)) as agent:
        assert (await agent.fetch(uri_of())).package.version == "2"
    async with fetcher(registry, tmp_path / "b", publishers=(BOB, ALICE)) as agent:
        verified = await agent.fetch(uri_of())
    assert (verified.publisher, verified.author, verified.package.version) == (BOB.did, ALICE.did, "3")


@pytest.mark.threat(28)
async def test_a_publisher_in_another_tenure_is_another_publisher(tmp_path: Path) -> None:
    failure = await refused_at(6, with_echo(), tmp_path, tenures={ALICE.did: 2})
    assert failure.code == "policy.refused"


async def test_a_handler_for_another_runtime_is_passed_over(tmp_path: Path) -> None:
    registry = with_echo()
    document = registry.document_of(uri_of()).sha256
    native = "treaty_handler_echo-5-cp39-cp39-win_amd64.whl"
    body = kinds.Handler(uri_of(), document, native, registry.put(b"native"), "x:handler", registry.put(b"{}"))
    registry.add(body, ALICE)
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(uri_of())).package.version == "1"
