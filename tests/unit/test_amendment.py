"""Amendments: when announced parameters hold, and how far they may change (`treaty_consensus.amendment`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from open_electorates import ANCHORS, parameters
from signers import NOW, ORIGIN, key_signer, signed
from witnesses import VKEYS, WITNESSES, witness_key

from treaty_consensus import statement
from treaty_consensus.admit import admit, reads
from treaty_consensus.amendment import ANCHOR_SHARE, BOUNDS, HORIZON, changes_between, constitution_of
from treaty_consensus.election.defaults import WEEK, development_parameters
from treaty_consensus.errors import TreatyError
from treaty_consensus.facts import CONSTITUTION, LOG, ConstitutionFact, Fact, LogFact, decode, encode
from treaty_consensus.kinds import Blob, Body, Credit, Decision, Input, Parameters, Reputation, Rule, Witnesses

OPERATOR = key_signer("operator")
DAY = 24 * 3600
BEFORE: Rule = "schulze-margins-v2"
AFTER: Rule = "schulze-margins-v3"


def bounded(epoch_seconds: int = WEEK, **changes: Any) -> Parameters:
    return replace(parameters(epoch_seconds), rule=AFTER, **changes)


BASE = bounded()


def free(epoch_seconds: int = WEEK, **changes: Any) -> Parameters:
    """Return parameters of the first rule, which bounds nothing."""
    return replace(parameters(epoch_seconds), rule=BEFORE, memory_horizons=None, **changes)


def with_terms(base: Parameters = BASE, **changes: Any) -> Parameters:
    assert base.reputation is not None
    return replace(base, reputation=replace(base.reputation, **changes))


class Chain:
    """A log of parameters and decisions, by admission alone. Every statement sees the facts that it `reads`, and no others."""

    def __init__(self, first: Parameters) -> None:
        self.facts: dict[str, Fact] = {LOG: LogFact(ORIGIN, OPERATOR.did, NOW, 0, opened=NOW)}
        self.size = 1
        self.announce(first)

    @property
    def log(self) -> LogFact:
        log = self.facts[LOG]
        assert isinstance(log, LogFact)
        return log

    @property
    def in_force(self) -> str | None:
        return self.log.parameters

    def announced(self) -> str | None:
        return self.log.announced

    def append(self, body: Body, issued: int | None = None) -> str:
        record = signed(body, OPERATOR, issued=self.log.time if issued is None else issued)
        facts = {key: self.facts[key] for key in reads(record) if key in self.facts}
        before = {key: encode(fact) for key, fact in self.facts.items()}
        try:
            changes = admit(facts, statement.verify(record, {OPERATOR.key_id: OPERATOR.public_key}), self.size)
        except TreatyError:
            assert {key: encode(fact) for key, fact in self.facts.items()} == before
            raise
        # As a database keeps them.
        self.facts |= {key: decode(encode(fact)) for key, fact in changes.items()}
        self.size += 1
        return record.id

    def announce(self, body: Parameters, issued: int | None = None) -> str:
        return self.append(body, issued)

    def refused(self, body: Body, issued: int | None = None) -> str:
        before = dict(self.facts)
        with pytest.raises(TreatyError) as refusal:
            self.append(body, issued)
        assert self.facts == before
        assert refusal.value.message.endswith(".")
        return str(refusal.value.code)

    def decision(self, **changes: Any) -> Decision:
        assert self.in_force is not None
        seen, blob = Input(self.size, "7" * 64), Blob("1" * 64, 9)
        topic = f"t{self.log.epoch:04}"
        decision = Decision(topic, self.log.epoch, AFTER, "open", self.in_force, seen, 0, blob, blob, ())
        return replace(decision, **changes)

    def close(self, at: int, **changes: Any) -> None:
        self.append(self.decision(**changes), at)

    def epochs(self, seconds: int) -> Iterator[int]:
        """Close epochs on time, and yield the time of each."""
        while True:
            at = self.log.opened + seconds
            self.close(at)
            yield at


def test_an_amendment_begins_after_the_current_horizon() -> None:
    chain = Chain(BASE)
    first, announced = chain.in_force, chain.announce(replace(BASE, epoch_seconds=WEEK // 2, horizon_epochs=26))
    for number, _ in zip(range(12), chain.epochs(WEEK), strict=False):
        assert (chain.in_force, chain.log.announced, chain.log.epoch) == (first, announced, number + 1)
    chain.close(NOW + 13 * WEEK)
    assert (chain.in_force, chain.log.announced) == (announced, None)
    # From now on by the new length.
    assert chain.refused(chain.decision(), NOW + 13 * WEEK + WEEK // 2 - 1) == "decision.early"
    chain.close(NOW + 13 * WEEK + WEEK // 2)


def test_notice_counts_from_the_announcement() -> None:
    chain = Chain(BASE)
    announced = chain.announce(replace(BASE, epoch_seconds=WEEK // 2), NOW + 1)
    chain.close(NOW + 13 * WEEK)
    assert chain.in_force != announced, "a second too early"
    chain.close(NOW + 14 * WEEK)
    assert chain.in_force == announced


def test_a_date_in_the_past_makes_no_notice_shorter() -> None:
    chain = Chain(BASE)
    chain.close(NOW + 5 * WEEK)
    announced = chain.announce(replace(BASE, epoch_seconds=WEEK // 2), NOW)
    chain.close(NOW + 17 * WEEK)
    assert chain.in_force != announced
    chain.close(NOW + 18 * WEEK)
    assert chain.in_force == announced


def test_a_newer_announcement_restarts_the_notice() -> None:
    chain = Chain(BASE)
    chain.announce(replace(BASE, quorum_share=5))
    assert chain.refused(replace(BASE, quorum_share=6)) == "parameters.amendment", "compared with those in force"
    chain.close(NOW + 12 * WEEK)
    first, second = chain.in_force, chain.announce(replace(BASE, cluster_share=4))
    chain.close(NOW + 24 * WEEK)
    assert (chain.in_force, chain.log.announced) == (first, second)
    chain.close(NOW + 25 * WEEK)
    assert chain.in_force == second
    # The bound refers to what is in force: the replaced announcement has left nothing.
    assert chain.refused(replace(BASE, quorum_share=6, cluster_share=4)) == "parameters.amendment"


def test_announcing_the_current_parameters_withdraws() -> None:
    chain = Chain(BASE)
    first = chain.in_force
    chain.announce(replace(BASE, quorum_share=5))
    chain.announce(BASE, NOW + 1)
    assert chain.announced() is None
    assert chain.facts[CONSTITUTION] == ConstitutionFact(BASE)
    chain.close(NOW + 20 * WEEK)
    assert chain.in_force == first
    # With nothing to take back they are announced as others are, and can be taken back themselves.
    again = chain.announce(BASE, NOW + 20 * WEEK + 1)
    assert (chain.in_force, chain.announced()) == (first, again)
    chain.announce(BASE, NOW + 20 * WEEK + 2)
    assert chain.announced() is None
    third = chain.announce(BASE, NOW + 20 * WEEK + 3)
    chain.close(NOW + 34 * WEEK)
    assert chain.in_force == third


def test_no_amendment_enters_or_takes_effect_within_a_closing() -> None:
    chain = Chain(BASE)
    first, announced = chain.in_force, chain.announce(replace(BASE, quorum_share=5))
    begun = chain.size
    chain.close(NOW + 13 * WEEK, topic="a", remaining=1)
    assert chain.refused(replace(BASE, quorum_share=3)) == "log.closing"
    assert chain.in_force == first
    # A crash here leaves the closing half logged: the rest still names the parameters of its epoch.
    follows = chain.decision(topic="b", epoch=0, input=Input(begun, "7" * 64))
    assert chain.refused(replace(follows, parameters=announced)) == "decision.rule"
    chain.append(follows)
    assert chain.in_force == announced


def test_many_amendments_take_one_notice_each() -> None:
    chain = Chain(BASE)
    seconds, horizons = WEEK, []
    while seconds > DAY:
        seconds = max(DAY, seconds // 2)
        horizon = max(13 * seconds, 28 * DAY)
        amendment = replace(BASE, epoch_seconds=seconds, horizon_epochs=-(-horizon // seconds))
        began, announced = chain.log.time, chain.announce(amendment)
        while chain.in_force != announced:
            chain.close(chain.log.opened + WEEK)
        horizons.append(chain.log.time - began)
    assert horizons[0] >= 13 * WEEK and all(notice >= 28 * DAY for notice in horizons)
    assert chain.refused(replace(amendment, epoch_seconds=DAY - 1)) == "parameters.amendment"
    assert chain.refused(replace(amendment, horizon_epochs=27)) == "parameters.amendment"


def test_replacing_the_anchors_takes_the_documented_time() -> None:
    """docs/specification/statements.md, "Amendments", has these days."""
    chain, body, days = Chain(BASE), BASE, []
    seconds, epochs = WEEK, 13
    for number in range(len(ANCHORS)):
        seconds = max(DAY, seconds // 2)
        epochs = max(min(2 * epochs, -(-28 * DAY // seconds)), -(-epochs * (body.epoch_seconds or 0) // (2 * seconds)))
        anchors = sorted([*ANCHORS[number + 1 :], *(f"own-{n:02}.example" for n in range(number + 1))])
        amendment = with_terms(replace(body, epoch_seconds=seconds, horizon_epochs=epochs), anchors=tuple(anchors))
        announced = chain.announce(amendment)
        while chain.in_force != announced:
            chain.close(chain.log.opened + (body.epoch_seconds or 0))
        body, seconds, epochs = amendment, amendment.epoch_seconds or 0, amendment.horizon_epochs
        days.append((chain.log.time - NOW) // DAY)
    assert (days[2], days[7], days[15]) == (164, 304, 528)


def test_a_development_electorate_amends_at_the_next_epoch() -> None:
    base = replace(development_parameters(), rule=AFTER)
    chain = Chain(base)
    announced = chain.announce(replace(base, quorum_share=50))
    chain.close(NOW, electorate="development")
    assert chain.in_force == announced
    opened = chain.announce(bounded(5))
    chain.close(NOW, electorate="development")
    assert chain.in_force == opened, "an electorate opens without bounds"
    assert chain.refused(base) == "parameters.amendment"


def test_the_first_rule_amends_at_the_next_epoch() -> None:
    chain = Chain(free(100))
    assert CONSTITUTION not in chain.facts, "the facts of old logs are those of earlier releases"
    announced = chain.announce(free(1, quorum_share=50))
    chain.close(NOW + 100, rule=BEFORE)
    assert chain.in_force == announced
    assert CONSTITUTION not in chain.facts
    # To a later rule, and not back.
    later = chain.announce(bounded(7))
    chain.close(NOW + 101, rule=BEFORE)
    assert chain.in_force == later
    assert chain.refused(free(7)) == "parameters.amendment"
    amended = chain.announce(bounded(14))
    chain.close(NOW + 101 + 12 * 7)
    assert chain.in_force == later
    chain.close(NOW + 101 + 13 * 7)
    assert chain.in_force == amended


def test_an_announced_change_of_the_rule_can_be_taken_back() -> None:
    chain = Chain(free(100))
    chain.announce(bounded(7))
    back = chain.announce(free(50))
    chain.close(NOW + 100, rule=BEFORE)
    assert chain.in_force == back
    again = chain.announce(free(1))
    chain.close(NOW + 150, rule=BEFORE)
    assert chain.in_force == again, "still the first rule"


def test_every_constant_has_a_bound() -> None:
    names = {bound.constant for bound in BOUNDS}
    nested = {"credit": Credit, "reputation": Reputation}
    constants = {name for name in Parameters.__struct_fields__ if name not in nested}
    constants |= {f"{name}.{field}" for name, kind in nested.items() for field in kind.__struct_fields__}
    # Checked apart, or, for a list that its public source changes each week, bound by notice alone.
    apart = {"rule", "electorate", "witnesses", "reputation.anchors", "reputation.suffix_list"}
    assert constants - names == apart
    assert names - constants == {HORIZON}


def moved(constant: str, value: Any, base: Parameters = BASE) -> Parameters:
    raw = msgspec.to_builtins(base)
    if constant == HORIZON:
        raw["horizon_epochs"] = value
    else:
        *outer, name = constant.split(".")
        (raw[outer[0]] if outer else raw)[name] = value
    return msgspec.convert(raw, Parameters)


EDGES = [
    ("epoch_seconds", WEEK // 2, 2 * WEEK, WEEK // 2 - 1, 2 * WEEK + 1),
    ("horizon_epochs", 7, 26, 6, 27),
    ("candidate_pairs", 2, 4, 1, 5),
    ("candidate_share", 10, 40, 9, 41),
    ("quorum_share", 3, 5, 2, 6),
    ("memory_horizons", 7, 9, 6, 10),
    ("over_none", [3, 2], [8, 3], [149, 100], [801, 300]),
    ("over_incumbent", [9, 8], [2, 1], [1124, 1000], [2001, 1000]),
    ("credit.epochs", 4, 16, 3, 17),
    ("reputation.cap_share", 2, 4, 5, 1024),
    ("reputation.mature_epochs", 1, 2, 3, 65_536),
]


@pytest.mark.parametrize(("constant", "least", "most", "less", "more"), EDGES)
def test_a_constant_moves_up_to_its_bound(constant: str, least: Any, most: Any, less: Any, more: Any) -> None:
    for value in (least, most):
        Chain(BASE).announce(moved(constant, value))
    for value in (less, more):
        chain = Chain(BASE)
        assert chain.refused(moved(constant, value)) == "parameters.amendment"


def test_a_floor_holds_for_changes_alone() -> None:
    # Tests and demonstrations begin with seconds: these may grow, and not shrink.
    chain = Chain(bounded(2))
    assert chain.refused(bounded(1)) == "parameters.amendment"
    assert chain.refused(bounded(2, horizon_epochs=12)) == "parameters.amendment"
    chain.announce(bounded(4))
    equal = bounded(over_none=(1, 1))
    assert Chain(equal).refused(replace(equal, over_none=(9, 10))) == "parameters.amendment"
    fewer = bounded(over_none=(1, 2))
    assert Chain(fewer).refused(replace(fewer, over_none=(49, 100))) == "parameters.amendment"
    Chain(fewer).announce(replace(fewer, over_none=(2, 3)))


def test_a_tenth_of_the_anchors_is_exchanged_at_most() -> None:
    def with_anchors(*anchors: str) -> Parameters:
        return with_terms(anchors=tuple(sorted(anchors)))

    Chain(BASE).announce(with_anchors(*ANCHORS[1:], "new.example"))
    Chain(BASE).announce(with_anchors(*ANCHORS, "new.example"))
    assert Chain(BASE).refused(with_anchors(*ANCHORS, "new.example", "newer.example")) == "parameters.amendment"
    assert Chain(BASE).refused(with_anchors(*ANCHORS[2:], "new.example", "newer.example")) == "parameters.amendment"
    many = [f"many-{number:03}.example" for number in range(5 * ANCHOR_SHARE)]
    Chain(with_anchors(*many)).announce(with_anchors(*many[5:], *ANCHORS[:5]))
    assert Chain(with_anchors(*many)).refused(with_anchors(*many[6:], *ANCHORS[:5])) == "parameters.amendment"
    assert Chain(with_anchors(*many)).refused(with_anchors(*many[5:], *ANCHORS[:6])) == "parameters.amendment"


def test_the_suffix_list_does_not_change_with_the_anchors() -> None:
    """A list that calls domains suffixes takes them out of the anchors."""
    other, anchors = Blob("5" * 64, 9), tuple(sorted([*ANCHORS[1:], "new.example"]))
    Chain(BASE).announce(with_terms(suffix_list=other))
    assert Chain(BASE).refused(with_terms(suffix_list=other, anchors=anchors)) == "parameters.amendment"


def test_an_operator_replaces_no_witnesses() -> None:
    stranger, other = (str(witness_key(name).verifier) for name in ("stranger.example", "other.example"))
    of_two = bounded(witnesses=Witnesses(VKEYS, 2))
    for witnesses in (
        Witnesses((stranger, *VKEYS[1:]), 2),
        Witnesses(VKEYS, 1),
        Witnesses(VKEYS[1:], 2),
        Witnesses(VKEYS[1:], 1),
        Witnesses((*VKEYS, stranger, other), 3),
    ):
        Chain(of_two).announce(replace(of_two, witnesses=witnesses))
    bent: tuple[Witnesses | None, ...] = (
        None,
        Witnesses(VKEYS[2:], 1),
        Witnesses((stranger, *VKEYS[1:]), 1),
        Witnesses((stranger, other, *VKEYS[1:]), 2),
        Witnesses((*VKEYS, stranger, other), 2),
    )
    for named in bent:
        assert Chain(of_two).refused(replace(of_two, witnesses=named)) == "parameters.amendment"
    # The last one goes only after another one came.
    of_one = bounded(witnesses=Witnesses(VKEYS[:1], 1))
    assert Chain(of_one).refused(replace(of_one, witnesses=Witnesses((stranger,), 1))) == "parameters.amendment"
    Chain(of_one).announce(replace(of_one, witnesses=Witnesses((VKEYS[0], stranger), 2)))
    # They may be named where there were none.
    Chain(BASE).announce(replace(BASE, witnesses=Witnesses(VKEYS, len(WITNESSES))))


def test_a_refusal_names_the_constant_its_bound_and_the_fix() -> None:
    with pytest.raises(TreatyError) as refusal:
        Chain(BASE).append(replace(BASE, quorum_share=8))
    assert "`quorum_share` changes by at most 1, so not from 4 to 8" in refusal.value.message
    assert "further one when it holds" in refusal.value.fix


def test_the_digest_of_a_constitution_is_of_its_content() -> None:
    assert constitution_of(BASE) == constitution_of(bounded()) != constitution_of(replace(BASE, quorum_share=5))
    first, later = Chain(BASE), Chain(BASE)
    assert first.announce(BASE, NOW + 1) != later.announce(BASE, NOW + 2), "as the statement's id is not"


def test_changes_name_what_differs() -> None:
    after = with_terms(replace(BASE, quorum_share=5), anchors=(*ANCHORS[1:], "zoo.example"))
    pairs = {change.constant: (change.before, change.after) for change in changes_between(BASE, after)}
    assert pairs == {"quorum_share": (4, 5), "reputation.anchors": ([ANCHORS[0]], ["zoo.example"])}
    assert changes_between(BASE, bounded()) == ()
    opened = {change.constant for change in changes_between(development_parameters(), BASE)}
    assert {"electorate", "epoch_seconds", "reputation.anchors"} <= opened
