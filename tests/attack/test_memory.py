"""What can be put into an agent's memory of a registry, and what cannot; and that an honest registry never contradicts it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fetching import fetcher, kept_in, known_in, refused_at
from lying import (
    indexes,
    leaf_value,
    leave_out,
    retell,
    rotate,
    seen,
    stops,
    voted,
)
from signers import Signer, key_signer, signed
from simulated_registry import ALICE, BOB, NAME, OPERATOR, TOPIC, uri_of, with_echo

from treaty_client.protocols.answers import contradictions
from treaty_client.protocols.verification.contradiction import Contradiction
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import kinds
from treaty_consensus.errors import TreatyError
from treaty_consensus.log.note import VerifierKey


@pytest.mark.threat(17)
async def test_evidence_is_kept_once_and_holds_without_the_agent(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    retell(registry, ALICE, document=b"# Another\n")
    failure = await stops(registry, tmp_path, "memory.contradicted")
    (file,) = contradictions(tmp_path / "evidence", NAME.origin)
    assert str(file) in failure.fix and "treaty trust explain" in failure.fix
    proof = Contradiction.parse(file.read_bytes())
    assert proof.verify() and proof.format() == file.read_bytes()
    assert {leaf.index for leaf in proof.seen} & set(indexes(registry.copy(), kinds.Publish))
    for damaged in (
        replace(proof, seen=(replace(proof.seen[0], index=proof.seen[0].index + 1), *proof.seen[1:])),
        replace(proof, shown=(replace(proof.shown[0], leaf=proof.seen[0].leaf), *proof.shown[1:])),
        replace(proof, key=second_vkey()),
    ):
        with pytest.raises(TreatyError):
            damaged.verify()


def second_vkey() -> VerifierKey:
    return replace(NAME.key, public=key_signer("another log").public_key)


async def test_evidence_against_a_registry_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_client.protocols.answers._MAX_CONTRADICTIONS", 2)
    registry = with_echo()
    await seen(registry, tmp_path)
    leave_out(registry, kinds.Handler)
    for number in range(4):
        del registry.facts[f"protocol/{uri_of()}"]
        registry.left_out |= set(indexes(registry, kinds.Publish))
        registry.publish(document=b"# %d\n" % number)
        registry.now += 7200
        assert (await refused_at(10, registry, tmp_path)).code == "memory.contradicted"
    assert len(contradictions(tmp_path / "evidence", NAME.origin)) == 2


async def test_evidence_against_a_longer_name_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_client.protocols.answers._MAX_CONTRADICTIONS", 1)
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    foreign = evidence / f"{NAME.origin.replace(':', '_')}-else.example-{'0' * 16}.contradiction.json"
    foreign.write_bytes(b"{}")
    registry = with_echo()
    await seen(registry, tmp_path)
    retell(registry, ALICE, document=b"# Another\n")
    failure = await stops(registry, tmp_path, "memory.contradicted")
    (file,) = contradictions(evidence, NAME.origin)
    assert file != foreign and str(file) in failure.fix


@pytest.mark.threat(20)
async def test_an_intermediary_puts_nothing_into_the_memory(tmp_path: Path) -> None:
    """A forged status fails step 3; a shortened answer stops; then the honest registry is believed as before."""
    registry = with_echo()
    await seen(registry, tmp_path)
    registry.add(kinds.Status(uri_of(), "deprecated"), ALICE)
    before = known_in(tmp_path)
    registry.now += 7200
    forged = registry.copy()
    index = forged.force(signed(kinds.Status(uri_of(), "revoked"), ALICE, issued=registry.now).leaf)
    value = leaf_value(forged, index)

    def tamper(path: str, body: bytes) -> bytes:
        bundle = json.loads(body)
        bundle["leaves"] = [*json.loads(body)["leaves"][:-1], {**value, "index": registry.size - 1}]
        return json.dumps(bundle).encode() if path.endswith(".bundle") else body

    registry.tamper = tamper
    assert (await refused_at(3, registry, tmp_path)).code == "log.inclusion"

    def shorten(path: str, body: bytes) -> bytes:
        bundle = json.loads(body)
        bundle["leaves"] = [leaf for leaf in bundle["leaves"] if leaf["index"] not in indexes(registry, kinds.Handler)]
        return json.dumps(bundle).encode() if path.endswith(".bundle") else body

    registry.tamper = shorten
    assert (await refused_at(10, registry, tmp_path)).code == "memory.contradicted"
    assert known_in(tmp_path) == before
    registry.tamper = lambda path, body: body
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(uri_of())).warnings


def damage(home: Path) -> None:
    for path in home.glob("seen.db-*"):
        path.unlink()
    (home / "seen.db").write_bytes(b"not a database" * 100)


async def test_a_damaged_memory_stops_rather_than_forgets(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    damage(tmp_path)
    registry.now += 7200
    async with fetcher(registry, tmp_path) as agent:
        before = kept_in(tmp_path)
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of())
        assert (failure.value.step, failure.value.code) == (10, "system.state")
        assert agent.cached(registry.document_of(uri_of()).sha256) is None
    assert kept_in(tmp_path) == before


async def test_trust_that_is_taken_back_forgets_and_starts_anew(tmp_path: Path) -> None:
    registry = with_echo()
    registry.attach(release="2")
    await seen(registry, tmp_path)
    registry.trusted_in(tmp_path).remove(NAME.origin)
    (tmp_path / "treaty.lock").unlink()
    leave_out(registry, kinds.Handler, -1)
    registry.now += 7200
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(uri_of())).package.version == "1"


# What is honest goes on


async def test_everything_that_may_change_may_change(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    wheel = next(
        statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Handler)
    ).wheel.sha256

    def logged(body: kinds.Body, signer: Signer = ALICE) -> Callable[[], object]:
        return lambda: registry.add(body, signer)

    card = next(statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Publish)).card
    parameters = next(statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Parameters))
    changes: list[Callable[[], object]] = [
        lambda: registry.attach(release="2"),
        logged(kinds.Status(uri_of(), "deprecated")),
        logged(kinds.Status(uri_of(), "active")),
        logged(kinds.Status(uri_of(), "yanked", wheel=wheel)),
        logged(kinds.Status(uri_of(), "active", wheel=wheel)),
        lambda: registry.publish("2.0"),
        lambda: registry.publish(signer=BOB),
        lambda: voted(registry),
        lambda: voted(registry),
        logged(msgspec.structs.replace(parameters, horizon_epochs=parameters.horizon_epochs + 1), OPERATOR),
        lambda: registry.withdrawn.add(card.sha256),
        lambda: rotate(registry),
    ]
    for change in changes:
        change()
        registry.now += 7200
        await seen(registry, tmp_path)


async def test_a_protocol_that_was_yanked_may_come_back(tmp_path: Path) -> None:
    registry = with_echo()
    registry.add(kinds.Status(uri_of(), "yanked"), ALICE)
    await refused_at(9, registry, tmp_path)
    registry.add(kinds.Status(uri_of(), "active"), ALICE)
    await seen(registry, tmp_path)


async def test_news_that_take_nothing_back_leave_the_cache(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of())
        registry.attach(release="2")
        registry.publish("2.0")
        registry.add(kinds.Status(uri_of(), "deprecated"), ALICE)
        voted(registry)
        await agent.topic(TOPIC)
        await agent.document(uri_of("2.0"))
        registry.requests.clear()
        assert agent.cached(verified.hash) is verified and registry.requests == []
    async with fetcher(registry, tmp_path) as another:
        assert another.cached(verified.hash) == verified and registry.requests == []


async def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    registry = with_echo()
    voted(registry)
    voted(registry)
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
        await agent.topic(TOPIC)
        version = agent.registries.memory.version()
        registry.now += 7200
        await agent.fetch(uri_of())
        await agent.topic(TOPIC)
        assert agent.registries.memory.version() == version
        assert known_in(tmp_path)[1]
