"""treaty.lock: exactly the pinned code runs, and each change of it is accepted by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fetching import fetcher, kept_in
from simulated_registry import ALICE, BOB, TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_client.protocols.locked import find_upgrade, install, newest_pinned, pinned_versions, unpin
from treaty_client.protocols.store import Lockfile, Store
from treaty_client.protocols.verification.explanation import step_evidence
from treaty_client.protocols.verification.pins import Change
from treaty_client.protocols.verification.steps import Step, VerificationFailed
from treaty_consensus import kinds
from treaty_consensus.errors import NotFound
from treaty_consensus.protocol import parse_protocol_uri

URI = parse_protocol_uri(uri_of())
LINE = uri_of().rpartition("/")[0]


async def pinned_home(registry: SimulatedRegistry, home: Path) -> bytes:
    """Pin `echo` 1.0; the bytes of the lock."""
    async with fetcher(registry, home) as agent:
        await agent.fetch(uri_of())
    return (home / "treaty.lock").read_bytes()


async def test_a_newer_proof_leaves_the_lock_alone(tmp_path: Path) -> None:
    registry = with_echo()
    before = await pinned_home(registry, tmp_path)
    assert b"bundle" not in before
    registry.now += 60
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of(), fresh=True)
    assert (tmp_path / "treaty.lock").read_bytes() == before
    registry.now += 60
    async with fetcher(registry, tmp_path, down=True) as agent:
        assert (await agent.fetch(uri_of())).checkpoint.time == verified.checkpoint.time


async def test_a_lock_of_an_older_release_is_read(tmp_path: Path) -> None:
    registry = with_echo()
    before = await pinned_home(registry, tmp_path)
    old = json.loads(before)
    old["protocols"][LINE]["versions"]["1.0"]["bundle"] = "0" * 64
    (tmp_path / "treaty.lock").write_text(json.dumps(old))
    (tmp_path / "proofs.json").unlink()
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
    assert (tmp_path / "treaty.lock").read_bytes() == before


async def test_a_frozen_home_runs_the_pinned_handler_alone(tmp_path: Path) -> None:
    registry = with_echo()
    before = await pinned_home(registry, tmp_path)
    wheel = pinned_versions(Lockfile(tmp_path))[0].version.wheel
    registry.attach(release="2")
    registry.publish("2.0")
    registry.attach("2.0")
    registry.now += 7200
    async with fetcher(registry, tmp_path, frozen=True) as agent:
        assert (await agent.fetch(uri_of())).package.digest == wheel
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of("2.0"))
        assert (failure.value.step, failure.value.code) == (Step.LOCK, "policy.refused")
    assert (tmp_path / "treaty.lock").read_bytes() == before
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(uri_of(), fresh=True)).package.digest != wheel


async def test_a_frozen_home_refuses_when_the_pinned_handler_is_taken_back(tmp_path: Path) -> None:
    registry = with_echo()
    before = await pinned_home(registry, tmp_path)
    wheel = pinned_versions(Lockfile(tmp_path))[0].version.wheel
    registry.attach(release="2")
    registry.add(kinds.Status(uri_of(), "revoked", wheel=wheel), ALICE)
    registry.now += 7200
    async with fetcher(registry, tmp_path, frozen=True) as agent:
        for _ in range(2):
            with pytest.raises(VerificationFailed) as failure:
                await agent.fetch(uri_of())
            assert (failure.value.step, failure.value.code) == (Step.STATUS, "status.revoked")
        with pytest.raises(VerificationFailed):
            agent.stored(URI)
    assert (tmp_path / "treaty.lock").read_bytes() == before


async def test_a_pinned_wheel_that_the_log_lacks_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    lock = json.loads(await pinned_home(registry, tmp_path))
    lock["protocols"][LINE]["versions"]["1.0"]["wheel"] = "0" * 64
    (tmp_path / "treaty.lock").write_text(json.dumps(lock))
    before = kept_in(tmp_path)
    registry.now += 7200
    async with fetcher(registry, tmp_path, frozen=True) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of())
    assert (failure.value.step, failure.value.code) == (Step.HANDLER, "lock.contradicted")
    assert kept_in(tmp_path) == before


async def test_another_machine_installs_the_pinned_bytes(tmp_path: Path) -> None:
    registry, there = with_echo(), tmp_path / "there"
    before = await pinned_home(registry, tmp_path / "here")
    registry.attach(release="2")
    there.mkdir()
    (there / "treaty.lock").write_bytes(before)
    async with fetcher(registry, there, frozen=True) as agent:
        assert agent.stored(URI) is None
        assert await install(agent, URI)
    registry.now += 7200
    async with fetcher(registry, there, frozen=True, down=True) as agent:
        assert not await install(agent, URI), "offline, by a proof of any age"
        Store(there).discard(pinned_versions(Lockfile(there))[0].version.wheel)
        assert agent.stored(URI) is None
    assert (there / "treaty.lock").read_bytes() == before


async def test_a_newer_version_and_a_newer_handler_are_found(tmp_path: Path) -> None:
    registry = with_echo()
    await pinned_home(registry, tmp_path)
    (pinned,) = newest_pinned(pinned_versions(Lockfile(tmp_path)))
    async with fetcher(registry, tmp_path) as agent:
        assert await find_upgrade(agent, pinned) is None
        registry.attach(release="2")
        newer = await find_upgrade(agent, pinned)
        assert newer is not None and (newer.uri, newer.is_other_wheel, newer.changes) == (uri_of(), True, ())
        for version in ("2.0", "10.0"):
            registry.publish(version)
            registry.attach(version)
        registry.add(kinds.Status(uri_of("10.0"), "yanked"), ALICE)
        newer = await find_upgrade(agent, pinned)
        assert newer is not None and newer.uri == uri_of("2.0"), "the highest that was not taken back"
        assert [str(one.uri) for one in pinned_versions(Lockfile(tmp_path))] == [uri_of()], "nothing is pinned"
        await agent.fetch(newer.uri)
        await agent.fetch(uri_of())
    assert [str(one.uri) for one in newest_pinned(pinned_versions(Lockfile(tmp_path)))] == [uri_of("2.0")]


async def test_each_change_is_accepted_by_its_name_alone(tmp_path: Path) -> None:
    registry = with_echo()
    before = await pinned_home(registry, tmp_path)
    registry.publish("2.0")
    registry.attach("2.0", signer=BOB)
    both: Any = {"publishers": (ALICE, BOB)}
    async with fetcher(registry, tmp_path, **both) as agent:
        upgrade = await find_upgrade(agent, pinned_versions(Lockfile(tmp_path))[0])
        assert upgrade is not None and {change for change, *_ in upgrade.changes} == {"publisher", "signer"}
        others: list[tuple[Change, ...]] = [(), ("signer",), ("handler",), ("signer", "handler")]
        for accept in others:
            with pytest.raises(VerificationFailed, match="--allow-publisher-change"):
                await agent.fetch(uri_of("2.0"), accept=accept)
            assert (tmp_path / "treaty.lock").read_bytes() == before
        assert (await agent.fetch(uri_of("2.0"), accept=["publisher"])).publisher == BOB.did


async def test_another_signer_needs_its_own_word(tmp_path: Path) -> None:
    registry = with_echo()
    lock = json.loads(await pinned_home(registry, tmp_path))
    lock["protocols"][LINE]["signer"]["identity"] = "https://github.com/alice/echo"
    (tmp_path / "treaty.lock").write_text(json.dumps(lock))
    before = (tmp_path / "treaty.lock").read_bytes()
    async with fetcher(registry, tmp_path) as agent:
        with pytest.raises(VerificationFailed, match="--allow-signer-change"):
            await agent.fetch(uri_of(), accept=["handler"])
        assert (tmp_path / "treaty.lock").read_bytes() == before
        assert (await agent.fetch(uri_of(), accept=["signer"])).signer.identity == ALICE.did


async def test_only_pinned_versions_are_unpinned(tmp_path: Path) -> None:
    registry = with_echo()
    before = await pinned_home(registry, tmp_path)
    lockfile = Lockfile(tmp_path)
    with pytest.raises(NotFound) as unknown:
        unpin(lockfile, [URI, parse_protocol_uri(uri_of("2.0"))])
    assert unknown.value.code == "memory.nothing" and (tmp_path / "treaty.lock").read_bytes() == before
    unpin(lockfile, [URI])
    assert lockfile.read() == {}


@pytest.mark.parametrize("minimal", ["candidate", "provisional", "consensus"])
async def test_a_document_below_the_minimal_state_is_refused(tmp_path: Path, minimal: str) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path, minimal_state=minimal) as agent:
        before = kept_in(tmp_path)
        with pytest.raises(VerificationFailed, match=f"not decided in {TOPIC}") as failure:
            await agent.fetch(uri_of())
    assert (failure.value.step, failure.value.code) == (Step.STATUS, "policy.refused")
    assert kept_in(tmp_path) == before


async def test_each_step_has_its_evidence(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of())
    steps = step_evidence(verified, Lockfile(tmp_path).read()[LINE])
    assert [each.step for each in steps] == list(Step)
    facts = {each.step: each.facts for each in steps}
    assert facts[Step.CHECKPOINT]["size"] == registry.size
    assert facts[Step.STATEMENTS]["statements"][-1]["index"] == verified.handler_index
    assert facts[Step.STATUS] == {"protocol": "active", "handler": "active", "topic": TOPIC, "election": None}
    assert facts[Step.LOCK]["pinned"]["wheel"] == facts[Step.WHEEL]["sha256"] == verified.package.digest
    json.dumps([each.facts for each in steps])
