"""The handlers of a protocol are suddenly somebody else's: step 10 stops and asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fetching import fetcher, refused_at
from rejections import rejection
from simulated_registry import ALICE, BOB, uri_of, with_echo

from treaty_client.protocols.store import Lockfile
from treaty_consensus import kinds

LINE = uri_of().rpartition("/")[0]


@pytest.mark.threat(30)
async def test_another_publisher_stops_and_asks(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path, publishers=(ALICE, BOB)) as agent:
        first = await agent.fetch(uri_of())
    registry.attach(signer=BOB, release="2")
    wheel = next(
        statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Handler)
    ).wheel.sha256
    registry.add(kinds.Status(uri_of(), "yanked", wheel=wheel), ALICE)
    registry.now += 7200
    failure = await refused_at(10, registry, tmp_path, publishers=(ALICE, BOB))
    assert failure.code == "lock.publisher"
    assert "--allow-publisher-change" in failure.fix
    async with fetcher(registry, tmp_path, publishers=(ALICE, BOB)) as agent:
        second = await agent.fetch(uri_of(), accept=["publisher"])
    assert (first.publisher, second.publisher) == (ALICE.did, BOB.did)
    assert Lockfile(tmp_path).read()[LINE].publisher == BOB.did


async def test_another_publisher_of_a_new_version_stops_and_asks(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path, publishers=(ALICE, BOB)) as agent:
        await agent.fetch(uri_of())
    registry.publish("2.0")
    registry.attach("2.0", signer=BOB)
    failure = await refused_at(10, registry, tmp_path, uri_of("2.0"), publishers=(ALICE, BOB))
    assert failure.code == "lock.publisher"


@pytest.mark.threat(30)
@pytest.mark.parametrize(
    "path, value, code",
    [
        (("tenure",), 2, "lock.publisher: tenure|owner|changed hands"),
        (("signer", "identity"), "https://github.com/alice/echo", "lock.publisher: sign"),
        (("signer", "issuer"), "https://token.actions.githubusercontent.com", "lock.publisher: sign"),
    ],
)
async def test_another_tenure_or_signer_stops_and_asks(tmp_path: Path, path: tuple[str, ...], value: object, code: str) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
    lock = json.loads((tmp_path / "treaty.lock").read_text())
    entry = lock["protocols"][LINE]
    for name in path[:-1]:
        entry = entry[name]
    entry[path[-1]] = value
    (tmp_path / "treaty.lock").write_text(json.dumps(lock))
    assert rejection(await refused_at(10, registry, tmp_path), code) == code


async def test_the_same_publisher_may_renew_its_handler(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        first = await agent.fetch(uri_of())
    registry.attach(release="2")
    registry.now += 7200
    async with fetcher(registry, tmp_path) as agent:
        second = await agent.fetch(uri_of())
    assert first.package.digest != second.package.digest
    assert Lockfile(tmp_path).read()[LINE].versions["1.0"].wheel == second.package.digest
