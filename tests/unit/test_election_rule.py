"""The states of a document: every transition, every threshold on both sides, every counter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec
import pytest
from elections import count_of
from hypothesis import given
from hypothesis import strategies as st
from signers import key_signer, signed

from treaty_consensus.election.ballot import Approval
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.election.line import Tiers
from treaty_consensus.election.rule import (
    DocumentState,
    Poll,
    Shortfall,
    Support,
    advance,
    beats,
    candidacy_shortfalls,
    eligible_of,
    field_of,
    in_order,
    incumbent_of,
    shared_support,
    strength,
    take_back,
)
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import NONE, Parameters, State

Votes: TypeAlias = list[tuple[int, str]]

PARAMETERS = development_parameters()
UNIT = 12


def tiers(text: str) -> Tiers:
    """`a>bc` ranks a over b and c, `a>-` ranks a over NONE."""
    return tuple(tuple(NONE if choice == "-" else choice for choice in tier) for tier in text.split(">"))


@dataclass
class Topic:
    """A topic from epoch to epoch. Each vote `(n, order)` is cast by n principals of weight UNIT."""

    states: dict[str, DocumentState] = field(default_factory=dict)
    parameters: Parameters = PARAMETERS

    def poll(self, votes: Votes, candidates: str = "a", cluster: str | None = None, warned: str = "") -> Poll:
        cast = [(tiers(order), UNIT) for number, order in votes for _ in range(number)]
        clusters = dict.fromkeys(range(len(cast)), cluster) if cluster else None
        return Poll(self.parameters, count_of(cast, tuple(candidates), clusters), self.states, frozenset(warned))

    def close(self, votes: Votes, candidates: str = "a", warned: str = "") -> dict[str, State]:
        self.states = advance(self.poll(votes, candidates, warned=warned))
        return {document: current.state for document, current in self.states.items()}

    def elect(self, document: str = "a", votes: Votes | None = None, candidates: str = "a") -> None:
        """Bring a document to consensus."""
        for _ in range(3):
            self.close(votes or [(6, document)], candidates)
        assert self.states[document] == DocumentState("consensus")


def missing(poll: Poll, document: str, current: DocumentState) -> set[str]:
    shortfalls = poll.provisional_shortfalls(document) + poll.consensus_shortfalls(document, current)
    return {shortfall.condition for shortfall in shortfalls}


READY = DocumentState("provisional", provisional=2, ahead=2)


def test_one_transition_an_epoch_from_candidate_to_consensus() -> None:
    topic = Topic()
    assert topic.close([(6, "a")]) == {"a": "candidate"}
    assert topic.close([(6, "a")]) == {"a": "provisional"}
    assert topic.states["a"].provisional == 1
    assert topic.close([(6, "a")]) == {"a": "consensus"}
    assert topic.close([(6, "a")]) == {"a": "consensus"}


def test_no_state_is_skipped_even_where_nothing_has_to_last() -> None:
    topic = Topic(parameters=msgspec.structs.replace(PARAMETERS, sustain_epochs=1))
    assert [topic.close([(6, "a")])["a"] for _ in range(3)] == ["candidate", "provisional", "consensus"]


def test_nobody_votes_and_nothing_moves_on() -> None:
    topic = Topic()
    for _ in range(4):
        assert topic.close([]) == {"a": "candidate"}


# --- candidate


def test_a_candidate_needs_everything() -> None:
    enough = Support(index=7, pairs=3, clusters=2, weight=30)
    assert candidacy_shortfalls(enough, 600, PARAMETERS) == []
    for changed, condition, has, needs in [
        (replace(enough, index=None), "published", 0, 1),
        (replace(enough, pairs=2), "pairs", 2, 3),
        (replace(enough, clusters=1), "clusters", 1, 2),
        (replace(enough, weight=29), "reporter-weight", 29, 30),
    ]:
        (shortfall,) = candidacy_shortfalls(changed, 600, PARAMETERS)
        assert (shortfall.condition, shortfall.has, shortfall.needs, shortfall.against) == (condition, has, needs, None)
    assert candidacy_shortfalls(enough, 601, PARAMETERS)[0].needs == 31, "a twentieth, rounded up"


def test_the_field_keeps_the_strongest_in_publication_order() -> None:
    small = msgspec.structs.replace(PARAMETERS, max_candidates=2)
    supports = {
        "late": Support(30, 9, 9, 90),
        "early": Support(10, 9, 9, 90),
        "pairs": Support(20, 10, 9, 90),
        "light": Support(5, 99, 9, 80),
        "lacking": Support(1, 2, 9, 900),
    }

    def field(supports: dict[str, Support], parameters: Parameters, state: State = "published") -> tuple[str, ...]:
        states = {"lacking": DocumentState(state)}
        approvals = [Approval(frozenset((name,)), support.approval) for name, support in supports.items()]
        eligible = eligible_of(supports, states, 0, parameters)
        order = in_order(eligible, supports, approvals, parameters.max_candidates)
        return field_of(order, supports, incumbent_of(states), parameters)

    assert field(supports, small) == ("early", "pairs")
    assert field(supports, PARAMETERS) == ("light", "early", "pairs", "late")
    assert field(supports, small, "consensus") == ("lacking", "pairs"), "the incumbent stays"
    assert field(supports, small, "dormant") == ("early", "pairs")
    liked = supports | {"light": replace(supports["light"], approval=1)}
    assert field(liked, small) == ("light", "pairs"), "votes go before reports"


def test_clones_share_the_approval_of_their_voters() -> None:
    """Sequential proportional approval: a ballot counts a half, a third, … as more of its documents have places."""
    names = [f"clone-{number}" for number in range(6)]
    supports = {name: Support(number, 3, 2, 9, 60) for number, name in enumerate([*names, "other", "late"])}
    supports |= {"other": replace(supports["other"], approval=25), "late": replace(supports["late"], approval=21)}
    approvals = [Approval(frozenset(names), 60), Approval(frozenset(("other",)), 25), Approval(frozenset(("late",)), 21)]
    # 60, 30, 25, 21, 20, 15, 12
    order = in_order(supports.keys(), supports, approvals, 4)
    assert order[:6] == ["clone-0", "clone-1", "other", "late", "clone-2", "clone-3"] and set(order) == supports.keys()
    by_votes = sorted(supports, key=lambda name: strength(supports[name], name))
    assert in_order(supports.keys(), supports, approvals, 8) == by_votes, "there are places for all"


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcdefgh")), st.integers(0, 1000)), max_size=12), st.integers(1, 5))
def test_the_order_is_that_of_a_plain_recount_in_every_round(ballots: list[tuple[set[str], int]], places: int) -> None:
    supports = {name: Support(number, 3, 2, 9) for number, name in enumerate("abcdefgh")}
    alike = Counter[frozenset[str]]()
    for liked, weight in ballots:
        alike[frozenset(liked)] += weight
    order: list[str] = []
    while len(order) < 2 * places and len(order) < len(supports):
        score = {
            name: sum(weight // (len(liked.intersection(order)) + 1) for liked, weight in alike.items() if name in liked)
            for name in supports
            if name not in order
        }
        order.append(max(score, key=lambda name: score[name]))
    approvals = [Approval(frozenset(liked), weight) for liked, weight in ballots]
    assert in_order(supports.keys(), supports, approvals, places)[: len(order)] == order


@pytest.mark.parametrize("state", ["candidate", "provisional"])
def test_what_leaves_the_field_is_merely_published_again(state: State) -> None:
    topic = Topic({"a": DocumentState(state, provisional=1)})
    assert topic.close([(6, "b")], "b") == {"b": "candidate"}
    assert topic.close([(6, "a")], "a") == {"a": "candidate"}, "and starts over"


# --- provisional


def test_provisional_needs_a_quorum_of_others() -> None:
    topic = Topic({"a": DocumentState("candidate")})
    indifferent = "a-"  # ranks neither over the other
    poll = topic.poll([(3, "a"), (9, indifferent)])
    assert (poll.support("a"), poll.quorum("a")) == (36, 36)
    assert missing(poll, "a", READY) == set()
    assert missing(topic.poll([(3, "a"), (10, indifferent)]), "a", READY) == {"quorum"}
    assert topic.close([(3, "a"), (10, indifferent)]) == {"a": "candidate"}
    assert topic.close([(3, "a"), (9, indifferent)]) == {"a": "provisional"}


def test_provisional_needs_twice_the_votes_of_none() -> None:
    topic = Topic({"a": DocumentState("candidate")})
    assert topic.close([(7, "a"), (4, "-")]) == {"a": "candidate"}
    assert topic.close([(8, "a"), (4, "-")]) == {"a": "provisional"}
    (shortfall,) = Topic().poll([(7, "a"), (4, "-")]).provisional_shortfalls("a")
    assert (shortfall.condition, shortfall.has, shortfall.needs, shortfall.against) == ("ratio-over-none", 84, 96, NONE)


def test_the_first_of_the_acceptable_is_elected() -> None:
    topic = Topic({"a": DocumentState("candidate"), "b": DocumentState("candidate")})
    assert topic.close([(6, "a>b"), (5, "b>a")], "ab") == {"a": "provisional", "b": "provisional"}
    (shortfall,) = [
        shortfall
        for shortfall in topic.poll([(6, "a>b"), (5, "b>a")], "ab").consensus_shortfalls("b", READY)
        if shortfall.condition == "schulze-place"
    ]
    assert (shortfall.has, shortfall.needs, shortfall.against) == (2, 1, "a")
    # Whoever leads in the later epoch: to change sides keeps nobody from being elected.
    assert topic.close([(5, "a>b"), (6, "b>a")], "ab") == {"a": "provisional", "b": "consensus"}


def test_an_interrupted_run_starts_over() -> None:
    topic = Topic()
    for votes, state in [
        ([(6, "a")], "candidate"),
        ([(6, "a")], "provisional"),
        ([(6, "-")], "candidate"),
        ([(6, "a")], "provisional"),
        ([(6, "a")], "consensus"),
    ]:
        assert topic.close(votes) == {"a": state}


# --- consensus


@pytest.mark.parametrize(
    ("weights", "support"),
    [((), 0), ((9,), 0), ((9, 9), 0), ((1, 1, 1), 3), ((9, 9, 1), 3), ((9, 9, 9, 9), 36), ((10, 4, 4), 12), ((10, 10, 4, 4), 24)],
)
def test_support_is_what_three_equal_clusters_make_up(weights: tuple[int, ...], support: int) -> None:
    assert shared_support({str(n): weight for n, weight in enumerate(weights)}, 3) == support
    poll = Poll(PARAMETERS, count_of([((("a",),), weight) for weight in weights], ("a",)))
    # Nobody votes otherwise, so any support is a quorum; silence is none.
    assert (poll.support("a"), poll.quorum("a")) == (support, 1)


@given(st.lists(st.integers(0, 40), max_size=7), st.integers(1, 4))
def test_support_is_the_largest_share_of_equal_clusters(weights: list[int], share: int) -> None:
    by_cluster = {str(number): weight for number, weight in enumerate(weights)}
    levels = [k for k in range(sum(weights) + 1) if sum(min(weight, k) for weight in weights) >= share * k]
    assert shared_support(by_cluster, share) == share * max(levels)
    for cluster in by_cluster:
        assert shared_support(by_cluster | {cluster: by_cluster[cluster] + 1}, share) >= share * max(levels), "no vote more harms"


VOTES_OF_TWO = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "a>b", "b>a", "ab", "-", "a>-", "-a", "->b", "b>-"]), st.integers(0, 4), st.integers(1, 9)
    ),
    max_size=9,
)


@given(VOTES_OF_TWO, st.integers(0, 4), st.integers(1, 30), st.sampled_from([None, "a", "b"]))
def test_a_vote_more_for_a_document_never_costs_it_anything(
    cast: list[tuple[str, int, int]], cluster: int, weight: int, incumbent: str | None
) -> None:
    """Participation of new voters: who ranks only a document over NONE makes no condition of it fail that held before."""

    def poll(cast: list[tuple[str, int, int]]) -> Poll:
        clusters = {number: str(cluster) for number, (_, cluster, _) in enumerate(cast)}
        votes = [(tiers(order), weight) for order, _, weight in cast]
        states = {incumbent: DocumentState("consensus")} if incumbent else {}
        return Poll(PARAMETERS, count_of(votes, ("a", "b"), clusters), states)

    before, after = poll(cast), poll([*cast, ("a", cluster, weight)])
    assert missing(after, "a", READY) <= missing(before, "a", READY)
    conditions = [{shortfall.condition for shortfall in each.kept_shortfalls("a")} for each in (before, after)]
    assert conditions[1] <= conditions[0]
    assert before.is_rejected("a") or not after.is_rejected("a")
    support = Support(3, 9, 9, weight=7, approval=before.count.pairwise[0][2])
    more = replace(support, approval=after.count.pairwise[0][2])
    lacks = [candidacy_shortfalls(each, polled.count.total, PARAMETERS) for each, polled in ((support, before), (more, after))]
    assert not lacks[1] or lacks[0]


def test_the_rest_of_the_conditions_waits_for_two_epochs() -> None:
    topic = Topic({"a": DocumentState("candidate")})
    for _ in range(3):
        assert topic.close([(8, "a"), (5, "-")]) == {"a": "candidate"}
    assert topic.close([(8, "a"), (4, "-")]) == {"a": "provisional"}
    assert topic.close([(8, "a"), (4, "-")]) == {"a": "consensus"}


def test_no_consensus_rests_on_breaking_a_cycle() -> None:
    cycle: Votes = [(4, "a>b>c"), (3, "b>c>a"), (3, "c>a>b")]
    topic = Topic()
    for _ in range(5):
        states = topic.close(cycle, "abc")
    assert states["a"] == "provisional" and incumbent_of(topic.states) is None
    poll = topic.poll(cycle, "abc")
    assert poll.ranking.order[0] == 0
    (shortfall,) = poll.consensus_shortfalls("a", READY)
    assert (shortfall.condition, shortfall.against) == ("unbeaten", "c")
    assert (shortfall.has, shortfall.needs) == (4 * UNIT, 6 * UNIT)


def test_being_level_counts_only_with_what_was_published_later() -> None:
    level: Votes = [(4, "a>b"), (4, "b>a")]
    assert missing(Topic().poll(level, "ab"), "a", READY) == set()
    place, shortfall = Topic().poll(level, "ab").consensus_shortfalls("b", READY)
    assert (place.condition, place.has) == ("schulze-place", 2)
    assert (shortfall.condition, shortfall.has, shortfall.needs, shortfall.against) == ("unbeaten", 48, 49, "a")


# --- against an incumbent


def test_a_successor_leads_three_to_two_for_two_epochs() -> None:
    topic = Topic()
    topic.elect("a")
    assert topic.close([(6, "b>a"), (5, "a>b")], "ab") == {"a": "consensus", "b": "candidate"}
    for n in (1, 2, 3):
        assert topic.close([(6, "b>a"), (5, "a>b")], "ab") == {"a": "consensus", "b": "provisional"}
        assert topic.states["b"] == DocumentState("provisional", provisional=n, ahead=0)
    assert topic.close([(6, "b>a"), (4, "a>b")], "ab")["b"] == "provisional"
    assert topic.states["b"].ahead == 1
    assert topic.close([(6, "b>a"), (5, "a>b")], "ab")["b"] == "provisional"
    assert topic.states["b"].ahead == 0, "the lead starts over"
    assert topic.close([(6, "b>a"), (4, "a>b")], "ab")["b"] == "provisional"
    assert topic.close([(6, "b>a"), (4, "a>b")], "ab") == {"a": "superseded", "b": "consensus"}


def test_a_challenger_is_told_how_far_ahead_it_must_be() -> None:
    topic = Topic({"a": DocumentState("consensus"), "b": READY})
    shortfalls = {
        s.condition: s for s in topic.poll([(7, "b>a"), (5, "a>b")], "ab").consensus_shortfalls("b", replace(READY, ahead=1))
    }
    assert shortfalls == {
        "ratio-over-incumbent": Shortfall("ratio-over-incumbent", 7 * UNIT, 90, "a"),  # 3 : 2 of 5 · 12
        "ahead-epochs": Shortfall("ahead-epochs", 1, 2, "a"),
    }
    assert topic.poll([(8, "b>a"), (5, "a>b")], "ab").consensus_shortfalls("b", READY) == []


def test_the_lead_is_counted_from_the_first_epoch_on() -> None:
    topic = Topic()
    topic.elect("a")
    votes: Votes = [(6, "b>a"), (4, "a>b")]
    for current in (DocumentState("candidate", ahead=1), DocumentState("provisional", 1, 2), DocumentState("consensus")):
        topic.close(votes, "ab")
        assert topic.states["b"] == current
    assert topic.states["a"] == DocumentState("superseded")


def test_a_lead_over_the_last_incumbent_is_none_over_the_next() -> None:
    topic = Topic(
        {"a": DocumentState("consensus"), "b": DocumentState("provisional", 1, 1), "c": DocumentState("candidate", ahead=5)}
    )
    topic.close([(6, "b>c>a")], "abc")
    assert topic.states == {
        "a": DocumentState("superseded"),
        "b": DocumentState("consensus"),
        "c": DocumentState("provisional", 1),
    }


def test_the_incumbent_wins_ties() -> None:
    topic = Topic({"b": DocumentState("consensus"), "a": DocumentState("candidate")})
    assert topic.poll([(4, "a>b"), (4, "b>a")], "ab").ranking.order[0] == 1
    assert topic.close([(4, "a>b"), (4, "b>a")], "ab") == {"a": "provisional", "b": "consensus"}


def test_the_superseded_may_return_but_by_the_whole_way() -> None:
    topic = Topic({"a": DocumentState("superseded"), "b": DocumentState("consensus")})
    votes: Votes = [(6, "a>b"), (4, "b>a")]
    assert topic.close(votes, "ab") == {"a": "provisional", "b": "consensus"}
    assert topic.close(votes, "ab") == {"a": "consensus", "b": "superseded"}


# --- kept, dormant, repealed


def test_the_incumbent_sleeps_after_four_failing_epochs() -> None:
    topic = Topic()
    topic.elect("a")
    failing: Votes = [(3, "a"), (4, "-")]
    for n in (1, 2, 3):
        assert topic.close(failing) == {"a": "consensus"}
        assert topic.states["a"].failing == n
    assert topic.close(failing) == {"a": "dormant"}
    assert topic.close([(6, "a")]) == {"a": "provisional"}


def test_one_good_epoch_keeps_the_incumbent_awake() -> None:
    topic = Topic()
    topic.elect("a")
    for _ in range(3):
        topic.close([(3, "a"), (4, "-")])
    assert topic.close([(4, "a"), (4, "-")]) == {"a": "consensus"}, "level with NONE is enough to be kept"
    assert topic.states["a"].failing == 0
    for _ in range(3):
        assert topic.close([(3, "a"), (4, "-")]) == {"a": "consensus"}


def test_the_incumbent_needs_half_a_quorum() -> None:
    topic = Topic({"a": DocumentState("consensus")})
    topic.close([(3, "a"), (18, "a-")])
    assert topic.states["a"].failing == 0
    topic.close([(3, "a"), (19, "a-")])
    assert topic.states["a"].failing == 1


def test_what_its_publishers_took_back_is_repealed_at_once() -> None:
    before = {"a": DocumentState("consensus", suspect=1), "b": DocumentState("provisional", 1), "c": DocumentState("dormant")}
    assert take_back(before) == {"a": DocumentState("repealed"), "c": DocumentState("dormant")}


def test_without_votes_the_incumbent_is_kept() -> None:
    topic = Topic({"a": DocumentState("consensus")})
    for _ in range(6):
        topic.close([])
    assert topic.states == {"a": DocumentState("consensus")}


def test_repeal_takes_two_epochs_of_two_to_one_with_a_quorum() -> None:
    topic = Topic()
    topic.elect("a")
    rejecting: Votes = [(3, "a"), (6, "-")]
    assert topic.close(rejecting) == {"a": "consensus"}
    assert topic.states["a"] == DocumentState("consensus", failing=1, repealing=1, suspect=2)
    assert topic.close([(3, "a"), (5, "-")]) == {"a": "consensus"}
    assert topic.states["a"] == DocumentState("consensus", failing=2, repealing=0, suspect=1)
    topic.close(rejecting)
    assert topic.close(rejecting) == {"a": "repealed"}
    assert incumbent_of(topic.states) is None


def test_repeal_needs_a_quorum_of_clusters() -> None:
    few: Votes = [(2, "-"), (9, "a-")]
    many: Votes = [(3, "-"), (9, "a-")]
    topic = Topic({"a": DocumentState("consensus")})
    topic.close(few)
    assert topic.states["a"].repealing == 0
    topic.close(many)
    assert topic.states["a"].repealing == 1


def test_being_superseded_goes_before_being_repealed() -> None:
    topic = Topic({"a": DocumentState("consensus", repealing=1), "b": DocumentState("provisional", 1, 1)})
    assert topic.close([(6, "b>->a")], "ab") == {"a": "superseded", "b": "consensus"}


def test_the_repealed_may_be_elected_again() -> None:
    topic = Topic({"a": DocumentState("repealed")})
    assert topic.close([(6, "-")]) == {"a": "repealed"}
    assert topic.close([(6, "a")]) == {"a": "provisional"}
    assert topic.close([(6, "-")]) == {"a": "candidate"}


@pytest.mark.parametrize("state", ["dormant", "superseded", "repealed"])
def test_counters_outside_the_field_are_not_kept(state: State) -> None:
    topic = Topic({"a": DocumentState(state, ahead=3)})
    assert topic.close([(6, "b")], "b") == {"a": state, "b": "candidate"}
    assert topic.states["a"] == DocumentState(state)


# --- suspect


def suspicion(topic: Topic) -> dict[str, int]:
    return {document: current.suspect for document, current in topic.states.items()}


def test_a_rejected_consensus_is_suspect_for_two_epochs() -> None:
    topic = Topic()
    topic.elect("a")
    assert topic.close([(3, "a"), (6, "-")]) == {"a": "consensus"}
    assert suspicion(topic) == {"a": 2}
    for left in (1, 0, 0):
        assert topic.close([(6, "a")]) == {"a": "consensus"}
        assert suspicion(topic) == {"a": left}


def test_what_falls_short_of_a_repeal_makes_nobody_suspect() -> None:
    topic = Topic()
    topic.elect("a")
    topic.close([(3, "a"), (5, "-")])  # not twice as many
    assert suspicion(topic) == {"a": 0}
    topic.close([(2, "-"), (9, "a-")])  # no quorum
    assert suspicion(topic) == {"a": 0}


def test_only_the_consensus_is_suspect_for_being_rejected() -> None:
    topic = Topic()
    assert topic.close([(6, "-")]) == {"a": "candidate"}
    assert suspicion(topic) == {"a": 0}


def test_a_warning_of_reports_changes_no_state() -> None:
    warned, calm = Topic(), Topic()
    for epoch in range(6):
        flagged = "ab" if epoch in (0, 3) else ""
        votes: Votes = [(6, "a>b")]
        assert warned.close(votes, "ab", warned=flagged) == calm.close(votes, "ab")
        assert suspicion(warned) == dict.fromkeys("ab", (2, 1, 0, 2, 1, 0)[epoch])
        assert {d: replace(s, suspect=0) for d, s in warned.states.items()} == calm.states


def test_a_second_warning_starts_the_count_anew() -> None:
    topic = Topic()
    topic.close([], warned="a")
    topic.close([], warned="a")
    assert suspicion(topic) == {"a": 2}


def test_a_warning_ends_outside_the_field_and_none_begins_there() -> None:
    topic = Topic({"a": DocumentState("dormant", suspect=2)})
    topic.close([], "b", warned="ac")
    assert topic.states == {"a": DocumentState("dormant"), "b": DocumentState("candidate")}


def test_what_is_repealed_is_suspect_still() -> None:
    topic = Topic({"a": DocumentState("consensus", repealing=1, suspect=1)})
    assert topic.close([(6, "-")]) == {"a": "repealed"}
    assert suspicion(topic) == {"a": 2}


def test_how_long_a_warning_stands_is_a_parameter() -> None:
    topic = Topic(parameters=msgspec.structs.replace(PARAMETERS, suspect_epochs=3))
    topic.close([], warned="a")
    assert suspicion(topic) == {"a": 3}


# --- the parts


def test_beating_takes_a_ratio_and_at_least_one_vote() -> None:
    assert beats(3, 2, (3, 2)) and not beats(4, 3, (3, 2))
    assert beats(2, 1, (2, 1)) and not beats(3, 2, (2, 1))
    assert beats(1, 0, (2, 1)) and not beats(0, 0, (2, 1))


def test_the_development_parameters_are_those_of_the_text() -> None:
    p = PARAMETERS
    assert (p.rule, p.electorate, p.horizon_epochs) == ("schulze-margins-v3", "development", 13)
    assert (p.candidate_pairs, p.candidate_clusters, p.candidate_share, p.max_candidates) == (3, 2, 20, 32)
    assert (p.quorum_share, p.cluster_share, p.provisional_share) == (4, 3, 2)
    assert (p.over_none, p.over_incumbent) == ((2, 1), (3, 2))
    assert (p.sustain_epochs, p.dormant_epochs, p.suspect_epochs) == (2, 4, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"electorate": "everybody"},
        {"quorum_share": 0},
        {"cluster_share": 0},
        {"sustain_epochs": 0},
        {"max_candidates": 33},
        {"over_none": (2, 0)},
    ],
    ids=str,
)
def test_parameters_without_meaning_are_no_statement(change: dict[str, object]) -> None:
    with pytest.raises(Malformed) as refusal:
        signed(msgspec.structs.replace(PARAMETERS, **change), key_signer("operator"))
    # A later release may have another electorate.
    assert refusal.value.code == ("registry.newer" if "electorate" in change else "statement.form")


def test_parameters_of_another_rule_are_for_a_newer_release() -> None:
    with pytest.raises(Malformed) as refusal:
        signed(msgspec.structs.replace(PARAMETERS, rule="plurality"), key_signer("operator"))
    assert refusal.value.code == "registry.newer"
