"""Admission of parameters and decisions: where in a log they may stand."""

from __future__ import annotations

import msgspec
import pytest
from signers import NOW, ORIGIN, key_signer, signed

from treaty_consensus import statement
from treaty_consensus.admit import admit
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import TreatyError
from treaty_consensus.facts import LOG, Fact, LogFact, ParametersFact, TopicFact
from treaty_consensus.kinds import RULE, Blob, Body, Decision, Input, Status

OPERATOR = key_signer("operator")
IN_FORCE, ANNOUNCED = "a" * 64, "b" * 64
OPEN = LogFact(ORIGIN, OPERATOR.did, NOW, 0, parameters=IN_FORCE, epoch=4, closed_at=50, closed_topic="zoo")
CLOSING = msgspec.structs.replace(OPEN, epoch=5, opened=NOW, closed_at=100, closed_topic="m", remaining=2)
DECISION = Decision("m", 4, RULE, "development", IN_FORCE, Input(100, "0" * 64), 0, Blob("1" * 64, 9), Blob("2" * 64, 9), ())


def after(log: LogFact, body: Body, index: int = 100, *, facts: dict[str, Fact] | None = None) -> LogFact:
    record = signed(body, OPERATOR)
    verified = statement.verify(record, {OPERATOR.key_id: OPERATOR.public_key})
    base = {f"parameters/{id_}": ParametersFact() for id_ in (IN_FORCE, ANNOUNCED)}
    changed = admit({LOG: log, **base, **(facts or {})}, verified, index)[LOG]
    assert isinstance(changed, LogFact)
    return changed


def refusal(log: LogFact, body: Body, index: int = 100) -> str:
    with pytest.raises(TreatyError) as refused:
        after(log, body, index)
    return refused.value.code


def test_an_epoch_is_closed_by_one_decision_or_by_several() -> None:
    alone = after(OPEN, DECISION)
    assert (alone.epoch, alone.closed_at, alone.closed_topic, alone.remaining) == (5, 100, "m", 0)
    first = after(OPEN, msgspec.structs.replace(DECISION, remaining=2))
    assert first == CLOSING
    second = after(first, msgspec.structs.replace(DECISION, topic="n", remaining=1), 101)
    third = after(second, msgspec.structs.replace(DECISION, topic="o"), 102)
    assert (third.epoch, third.closed_at, third.closed_topic, third.remaining) == (5, 100, "o", 0)


@pytest.mark.parametrize(
    "changes",
    [{"epoch": 3}, {"epoch": 5}, {"input": Input(99, "0" * 64)}, {"input": Input(101, "0" * 64)}],
    ids=str,
)
def test_the_first_decision_closes_its_epoch_at_its_own_leaf(changes: dict[str, object]) -> None:
    assert refusal(OPEN, msgspec.structs.replace(DECISION, **changes)) == "decision.rule"


@pytest.mark.parametrize(
    "changes",
    [
        {"remaining": 0},
        {"remaining": 2},
        {"topic": "l"},
        {"topic": "m"},
        {"epoch": 5},
        {"input": Input(101, "0" * 64)},
    ],
    ids=str,
)
def test_the_others_follow_in_order_with_the_same_input(changes: dict[str, object]) -> None:
    follows = msgspec.structs.replace(DECISION, topic="n", remaining=1)
    assert after(CLOSING, follows, 101).remaining == 1
    assert refusal(CLOSING, msgspec.structs.replace(follows, **changes), 101) == "decision.rule"


def test_while_an_epoch_is_being_closed_others_wait() -> None:
    for body in (development_parameters(), Status(f"https://{ORIGIN}/protocols/a.example/b/1", "active")):
        assert refusal(CLOSING, body) == "log.closing"


def test_a_decision_names_the_topics_newest() -> None:
    assert refusal(OPEN, msgspec.structs.replace(DECISION, previous="c" * 64)) == "statement.previous"
    before: dict[str, Fact] = {"topic/m": TopicFact("c" * 64, 60)}
    assert after(OPEN, msgspec.structs.replace(DECISION, previous="c" * 64), facts=before).epoch == 5


def test_parameters_hold_at_once_or_from_the_next_epoch() -> None:
    body = development_parameters()
    first = after(msgspec.structs.replace(OPEN, parameters=None), body, 1)
    assert first.parameters == signed(body, OPERATOR).id and first.announced is None
    later = after(OPEN, body)
    assert (later.parameters, later.announced) == (IN_FORCE, first.parameters)


def test_announced_parameters_begin_as_the_epoch_closes() -> None:
    announced = msgspec.structs.replace(OPEN, announced=ANNOUNCED)
    assert refusal(announced, msgspec.structs.replace(DECISION, parameters=ANNOUNCED)) == "decision.rule"
    closing = after(announced, msgspec.structs.replace(DECISION, remaining=1))
    assert (closing.parameters, closing.announced) == (IN_FORCE, ANNOUNCED)
    closed = after(closing, msgspec.structs.replace(DECISION, topic="n"), 101)
    assert (closed.parameters, closed.announced) == (ANNOUNCED, None)


def scheduled(issued: int, opened: int = NOW, remaining: int = 0) -> LogFact:
    """Close an epoch of 100 seconds that opened at `opened`."""
    record = signed(msgspec.structs.replace(DECISION, remaining=remaining), OPERATOR, issued=issued)
    facts: dict[str, Fact] = {
        LOG: msgspec.structs.replace(OPEN, opened=opened, time=opened),
        f"parameters/{IN_FORCE}": ParametersFact(epoch_seconds=100),
    }
    changed = admit(facts, statement.verify(record, {OPERATOR.key_id: OPERATOR.public_key}), 100)[LOG]
    assert isinstance(changed, LogFact)
    return changed


def test_an_epoch_closes_by_the_schedule_and_not_before() -> None:
    with pytest.raises(TreatyError) as early:
        scheduled(NOW + 99)
    assert early.value.code == "decision.early" and "another 1 seconds" in early.value.message
    assert scheduled(NOW + 100).opened == NOW + 100


def test_the_schedule_neither_drifts_nor_catches_up() -> None:
    assert scheduled(NOW + 130).opened == NOW + 100, "closed late: the next one is as long as the schedule says"
    assert scheduled(NOW + 399).opened == NOW + 300, "away for two epochs: on with the one that it wakes up in"


def test_an_epoch_by_hand_opens_when_the_one_before_closed() -> None:
    assert after(OPEN, DECISION).opened == NOW
