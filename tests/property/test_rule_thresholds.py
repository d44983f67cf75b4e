"""The thresholds of the rule, each for itself: more support never lacks more, a stricter constant never less, and no few clusters
make a quorum."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from elections import Vote, counted, name, ranks_of, tiered
from hypothesis import given
from hypothesis import strategies as st

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.election.rule import DocumentState, Poll, Shortfall
from treaty_consensus.kinds import Parameters

CANDIDATES = 3
CHOSEN = name(1, CANDIDATES)
INCUMBENT = name(0, CANDIDATES)
PARAMETERS = development_parameters()

ballots = st.lists(st.integers(0, 3), min_size=CANDIDATES + 1, max_size=CANDIDATES + 1).map(tiered)
votes = st.lists(st.tuples(ballots, st.integers(1, 50) | st.integers(1, ONE)), min_size=1, max_size=12)
clusters = st.lists(st.sampled_from(["one", "two", "three", "four"]), min_size=12, max_size=12).map(
    lambda made: dict(enumerate(made))
)
states = st.fixed_dictionaries(
    {
        CHOSEN: st.builds(DocumentState, st.just("provisional"), st.integers(1, 3), st.integers(0, 3)),
        INCUMBENT: st.sampled_from([DocumentState("consensus"), DocumentState("candidate")]),
    }
)


def poll_of(
    cast: list[Vote], belongs: dict[int, str], before: Mapping[str, DocumentState], parameters: Parameters = PARAMETERS
) -> Poll:
    return Poll(parameters, counted(cast, CANDIDATES, belongs), before)


def lacking(poll: Poll, document: str) -> list[Shortfall]:
    """All that a document lacks, but for its place in the order, which has axioms of its own."""
    shortfalls = poll.provisional_shortfalls(document) + poll.consensus_shortfalls(document, poll.before[document])
    return [shortfall for shortfall in shortfalls if shortfall.condition != "schulze-place"]


def conditions(shortfalls: list[Shortfall]) -> set[tuple[str, str | None]]:
    return {(shortfall.condition, shortfall.against) for shortfall in shortfalls}


@given(votes, clusters, states, st.data())
def test_more_support_never_lacks_more(
    cast: list[Vote], belongs: dict[int, str], before: dict[str, DocumentState], data: st.DataObject
) -> None:
    which = data.draw(st.integers(0, len(cast) - 1))
    raised = data.draw(st.sampled_from([0, 1]))
    ranks = [2 * rank for rank in ranks_of(cast[which][0], CANDIDATES)]
    ranks[raised] -= data.draw(st.integers(1, 8))
    more = [*cast[:which], (tiered(ranks), cast[which][1]), *cast[which + 1 :]]
    less, after = poll_of(cast, belongs, before), poll_of(more, belongs, before)
    if raised == 1:
        assert conditions(lacking(after, CHOSEN)) <= conditions(lacking(less, CHOSEN))
        assert after.leads_incumbent(CHOSEN) or not less.leads_incumbent(CHOSEN)
    else:
        assert conditions(after.kept_shortfalls(INCUMBENT)) <= conditions(less.kept_shortfalls(INCUMBENT))
        assert less.is_rejected(INCUMBENT) or not after.is_rejected(INCUMBENT)
        assert less.leads_incumbent(CHOSEN) or not after.leads_incumbent(CHOSEN)


@pytest.mark.parametrize(
    "stricter",
    [
        {"quorum_share": 3},
        {"quorum_share": 2},
        {"provisional_share": 1},
        {"over_none": (5, 2)},
        {"over_incumbent": (2, 1)},
        {"sustain_epochs": 3},
    ],
    ids=str,
)
@given(cast=votes, belongs=clusters, before=states)
def test_a_stricter_constant_never_lacks_less(
    stricter: dict[str, object], cast: list[Vote], belongs: dict[int, str], before: dict[str, DocumentState]
) -> None:
    now = poll_of(cast, belongs, before)
    then = poll_of(cast, belongs, before, msgspec.structs.replace(PARAMETERS, **stricter))
    assert conditions(lacking(now, CHOSEN)) <= conditions(lacking(then, CHOSEN))
    assert conditions(now.kept_shortfalls(INCUMBENT)) <= conditions(then.kept_shortfalls(INCUMBENT))
    assert now.is_rejected(INCUMBENT) or not then.is_rejected(INCUMBENT) or "quorum_share" not in stricter


@given(votes, clusters, states)
def test_what_is_short_has_less_than_it_needs(
    cast: list[Vote], belongs: dict[int, str], before: dict[str, DocumentState]
) -> None:
    poll = poll_of(cast, belongs, before)
    assert all(shortfall.has < shortfall.needs for shortfall in lacking(poll, CHOSEN) + poll.kept_shortfalls(INCUMBENT))


@given(votes, clusters, states, st.integers(1, 4))
def test_a_quorum_takes_as_many_clusters_as_the_share_says(
    cast: list[Vote], belongs: dict[int, str], before: dict[str, DocumentState], share: int
) -> None:
    poll = poll_of(cast, belongs, before, msgspec.structs.replace(PARAMETERS, cluster_share=share))
    for document in poll.candidates:
        number = poll.candidates.index(document)
        if poll.support(document) >= poll.quorum(document):
            assert len(poll.count.above[number]) >= share
        if poll.opposition(document) >= poll.opposing_quorum(document):
            assert len(poll.count.below[number]) >= share
