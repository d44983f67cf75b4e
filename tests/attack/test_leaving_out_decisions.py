"""A registry leaves a decision or a competitor out of its answers, or decides twice: an agent that saw the first stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fetching import fetcher, known_in
from lying import (
    indexes,
    leave_out,
    other_decision,
    seen,
    stops,
    topic_stops,
    voted,
    with_leaf,
)
from signers import signed
from simulated_registry import ALICE, BOB, OPERATOR, TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_client.protocols.verification.contradiction import LeftOut
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import kinds
from treaty_consensus.statement import Statement


@pytest.fixture
def decided() -> SimulatedRegistry:
    """A log with one epoch closed in two topics, and a competitor."""
    registry = with_echo()
    registry.publish(signer=BOB)
    voted(registry)
    return registry


@pytest.mark.threat(17)
async def test_another_decision_of_the_same_epoch_stops(decided: SimulatedRegistry, tmp_path: Path) -> None:
    await seen(decided, tmp_path)
    other_decision(decided)
    failure = await topic_stops(decided, tmp_path, "memory.contradicted")
    assert isinstance(failure, LeftOut) and failure.contradiction is not None and failure.contradiction.verify()
    await stops(decided, tmp_path, "memory.contradicted")


@pytest.mark.parametrize("lie", ["same epoch", "after the one before", "after none", "after another", "on an older log"])
async def test_a_decision_unlinked_to_the_seen_one_stops(decided: SimulatedRegistry, tmp_path: Path, lie: str) -> None:
    voted(decided)
    await seen(decided, tmp_path)
    newest = [
        statement
        for _, statement in decided.statements()
        if isinstance(statement.body, kinds.Decision) and statement.body.topic == TOPIC
    ][-1]
    assert isinstance(newest.body, kinds.Decision) and newest.body.previous is not None
    honest: dict[str, Any] = {"epoch": 2, "previous": newest.id, "input": kinds.Input(decided.size, decided.root().hex())}
    changes: dict[str, dict[str, Any]] = {
        "same epoch": {"epoch": 1},
        "after the one before": {"previous": newest.body.previous},
        "after none": {"previous": None},
        "after another": {"previous": "ab" * 32},
        "on an older log": {"input": newest.body.input},
    }
    index = other_decision(decided, TOPIC, **(honest | changes[lie]))
    failure = await topic_stops(decided, tmp_path, "memory.contradicted")
    assert isinstance(failure, LeftOut)
    assert failure.contradiction is None or failure.contradiction.verify() is (lie != "on an older log")
    decided.left_out.add(index)
    other_decision(decided, TOPIC, **honest | {"input": kinds.Input(decided.size, decided.root().hex())})
    await seen(decided, tmp_path)


async def followed(registry: SimulatedRegistry, home: Path, epochs: int) -> str:
    """An agent sees the newest decision of TOPIC and misses some epochs. The id of that decision."""
    await seen(registry, home)
    last = newest_decision(registry).id
    for _ in range(epochs):
        voted(registry)
    return last


def newest_decision(registry: SimulatedRegistry) -> Statement:
    return [
        statement
        for _, statement in registry.shown()
        if isinstance(statement.body, kinds.Decision) and statement.body.topic == TOPIC
    ][-1]


@pytest.mark.threat(17)
async def test_an_agent_that_missed_epochs_follows_the_decisions_back(decided: SimulatedRegistry, tmp_path: Path) -> None:
    last = await followed(decided, tmp_path, 3)
    decided.requests.clear()
    await seen(decided, tmp_path)
    fetched = [request.rpartition("/")[2] for request in decided.requests if request.startswith("GET /statements/")]
    assert len(fetched) == 2
    assert last not in fetched
    # Once: the newest decision is known now.
    decided.requests.clear()
    await seen(decided, tmp_path)
    assert not any("/statements/" in request for request in decided.requests)


@pytest.mark.threat(17)
@pytest.mark.parametrize("lie", ["another last epoch", "an epoch between follows another", "passed over", "endless"])
async def test_decisions_unlinked_to_the_seen_one_stop(decided: SimulatedRegistry, tmp_path: Path, lie: str) -> None:
    voted(decided)
    last = await followed(decided, tmp_path, 0)
    seen_body = newest_decision(decided).body
    assert isinstance(seen_body, kinds.Decision) and seen_body.epoch == 1
    lies: dict[str, dict[str, Any]] = {
        "another last epoch": {"epoch": 1},
        "an epoch between follows another": {"epoch": 2, "previous": "ab" * 32},
        "passed over": {"epoch": 0, "previous": None},
        "endless": {"epoch": 9, "previous": "cd" * 32},
    }
    hidden = other_decision(decided, TOPIC, **lies[lie])
    decision = newest_decision(decided)
    decided.left_out.add(hidden)
    other_decision(decided, TOPIC, epoch=3, previous=decision.id, input=kinds.Input(decided.size, decided.root().hex()))
    decided.left_out.remove(hidden)
    assert decision.id != last
    failure = await topic_stops(decided, tmp_path, "memory.contradicted")
    assert isinstance(failure, LeftOut) and failure.contradiction is not None
    # Whoever gets the file sees it too, except where the decision before has a later epoch: no rule of the log was broken by two.
    assert failure.contradiction.verify() is (lie != "endless")


@pytest.mark.threat(17)
async def test_a_decision_past_the_seen_one_convinces_others(decided: SimulatedRegistry, tmp_path: Path) -> None:
    """No two of the three leaves exclude each other: epochs without a vote have no decision."""
    first = newest_decision(decided)
    for epoch, previous in ((3, first.id), (1, "ab" * 32)):
        index = other_decision(decided, TOPIC, epoch=epoch, previous=previous, input=input_of(decided))
        if epoch == 3:
            await seen(decided, tmp_path)
    before = newest_decision(decided)
    decided.left_out.add(index)
    other_decision(decided, TOPIC, epoch=5, previous=before.id, input=input_of(decided))
    decided.left_out.remove(index)
    failure = await topic_stops(decided, tmp_path, "memory.contradicted")
    assert isinstance(failure, LeftOut) and failure.contradiction is not None
    assert failure.contradiction.verify()


@pytest.mark.threat(17)
@pytest.mark.parametrize("lie", ["other bytes", "another topic"])
async def test_what_is_shown_for_an_id_is_that_decision(decided: SimulatedRegistry, tmp_path: Path, lie: str) -> None:
    last = await followed(decided, tmp_path, 1)
    between = newest_decision(decided)
    if lie == "another topic":
        body = msgspec.structs.replace(between.body, topic="zzz", epoch=2, previous=last, input=input_of(decided))
        between = signed(body, OPERATOR, issued=decided.now)
        decided.force(between.leaf)
    else:
        # As a registry would that has two histories: each bundle is of one, and this is the other's.
        decided.tamper = lambda path, body: decided.leaves[honest] if path.startswith("/statements/") else body
        honest = other_decision(decided, TOPIC, epoch=2, previous=last, input=input_of(decided))
        decided.left_out.add(honest)
    other_decision(decided, TOPIC, epoch=5, previous=between.id, input=input_of(decided))
    await topic_stops(decided, tmp_path, "memory.contradicted")


def input_of(registry: SimulatedRegistry) -> kinds.Input:
    return kinds.Input(registry.size, registry.root().hex())


@pytest.mark.threat(17)
async def test_decisions_that_are_not_shown_stop(decided: SimulatedRegistry, tmp_path: Path) -> None:
    await followed(decided, tmp_path, 3)
    before = decided.left_out.copy()
    for index in indexes(decided, kinds.Decision, lambda statement: getattr(statement.body, "epoch", 0) in (1, 2)):
        decided.left_out.add(index)
    await topic_stops(decided, tmp_path, "memory.contradicted")
    decided.left_out = before
    await seen(decided, tmp_path)


@pytest.mark.threat(17)
async def test_an_older_decision_stops(decided: SimulatedRegistry, tmp_path: Path) -> None:
    voted(decided)
    await seen(decided, tmp_path)
    for index in indexes(decided, kinds.Decision, lambda statement: getattr(statement.body, "epoch", 0) == 1):
        decided.left_out.add(index)
    await topic_stops(decided, tmp_path, "memory.contradicted")
    await stops(decided, tmp_path, "memory.contradicted")


@pytest.mark.parametrize("learned_by", ["protocol", "topic"])
async def test_no_decision_where_there_was_one_stops(decided: SimulatedRegistry, tmp_path: Path, learned_by: str) -> None:
    async with fetcher(decided, tmp_path) as agent:
        await (agent.fetch(uri_of()) if learned_by == "protocol" else agent.topic(TOPIC))
    leave_out(decided, kinds.Decision)
    await topic_stops(decided, tmp_path, "memory.contradicted")
    await stops(decided, tmp_path, "memory.contradicted")


@pytest.mark.threat(19)
async def test_another_answer_replaces_no_decision(decided: SimulatedRegistry, tmp_path: Path) -> None:
    """A bundle may hold a decision of another topic, because it set the log's clock. It is no way to make an agent forget."""
    body = kinds.Publish(uri_of("4.0"), "zzz", decided.put(b"# Zzz\n"), decided.put(b'{"title":"Zzz"}'), "negotiated")
    decided.add(body, ALICE)
    await seen(decided, tmp_path)
    decided.left_out.add(other_decision(decided))
    decided.tamper = with_leaf(decided, decided.size - 1)
    before = known_in(tmp_path)
    async with fetcher(decided, tmp_path) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.document(uri_of("4.0"))
    assert (failure.value.step, failure.value.code) == (10, "memory.contradicted")
    assert known_in(tmp_path) == before


@pytest.mark.threat(16)
async def test_a_competitor_does_not_vanish_from_its_topic(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish(signer=BOB)
    await seen(registry, tmp_path)
    leave_out(registry, kinds.Publish, -1)
    failure = await topic_stops(registry, tmp_path, "memory.contradicted")
    assert uri_of(signer=BOB) in failure.message


async def test_what_a_protocols_answer_showed_belongs_into_its_topic(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish(signer=BOB)
    async with fetcher(registry, tmp_path) as agent:
        await agent.document(uri_of(signer=BOB))
    leave_out(registry, kinds.Publish, -1)
    await topic_stops(registry, tmp_path, "memory.contradicted")
