"""Use and votes: use that agrees renews a ballot, use that left it replaces it, and what it has faded by is said by use."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from treaty_consensus.election.arithmetic import ONE, conviction, decay, part
from treaty_consensus.election.ballot import Ballots, Implied, Votes, votes
from treaty_consensus.election.line import Tiers
from treaty_consensus.election.principals import PrincipalDirectory
from treaty_consensus.kinds import NONE

HORIZON = 13
ALPHA = "did:wba:alpha.example"


def counted(
    tiers: Tiers | None,
    cast: int,
    use: Implied | None,
    epoch: int,
    *,
    since: int | None = None,
    begun: dict[str, int] | None = None,
    horizon: int | None = HORIZON,
) -> Votes:
    """Return what counts of one principal that weighs ONE: a ballot cast in an epoch, and what its reports imply."""
    ballots = Ballots(PrincipalDirectory())
    if tiers is not None:
        ballots.cast(ALPHA, tiers, cast if since is None else since)
        ballots.cast(ALPHA, tiers, cast)
    return votes(ballots, {ALPHA: use} if use else {}, {ALPHA: ONE}, epoch, horizon, begun=begun or {})


def said(votes: Votes) -> dict[Tiers, int]:
    """Return ranking → its weight."""
    return {votes.rankings[n]: int(weight) for n, weight in zip(votes.ranking.tolist(), votes.weight, strict=True)}


A, B, AB = (("a",),), (("b",),), (("a",), ("b",))


def test_use_of_the_first_choice_keeps_a_ballot_up_for_ever() -> None:
    row = counted(AB, 0, Implied(("a",), 0, 200), 200)
    assert said(row) == {AB: part(ONE, conviction(200))}, "eight halvings ago it was cast"
    assert (row.age.tolist(), row.held.tolist(), row.implied) == ([0], [200], 0)


def test_a_ballot_is_no_firmer_than_the_use_that_renews_it() -> None:
    row = counted(A, 0, Implied(("a",), 25, 26), 26, since=0)
    assert (row.age.tolist(), row.held.tolist()) == ([0], [1])
    assert row.weight.tolist() == [part(ONE, conviction(1))]


def test_use_that_would_weaken_a_ballot_leaves_it_as_it_is() -> None:
    row = counted(A, 26, Implied(("a",), 26, 26), 26, since=0)
    assert (row.age.tolist(), row.held.tolist()) == ([0], [26])


def test_without_use_a_ballot_fades_to_nothing() -> None:
    assert said(counted(A, 0, None, HORIZON)) == {A: part(part(ONE, decay(HORIZON, HORIZON)), conviction(HORIZON))}
    assert said(counted(A, 0, None, 8 * HORIZON)) == {}


def test_what_a_ballot_has_faded_by_is_said_by_use() -> None:
    """The use is older than the ballot, so it does not contradict it: who wants another protocol than it must speak."""
    row = counted(A, 10, Implied(("b",), 4, 20), 23)
    left = decay(13, HORIZON)
    assert said(row) == {A: part(part(ONE, left), conviction(13)), B: part(ONE - left, conviction(19))}
    assert (row.implied, row.age.tolist(), row.held.tolist()) == (1, [13, 3], [13, 19])
    assert row.total <= ONE


def test_use_that_began_after_a_ballot_replaces_it() -> None:
    assert said(counted(A, 10, Implied(("b",), 11, 12), 12)) == {B: part(ONE, conviction(1))}
    assert A in said(counted(A, 11, Implied(("b",), 11, 12), 12)), "a ballot of the same epoch is not older"
    assert said(counted(((NONE,),), 10, Implied(("b",), 11, 12), 12)) == {B: part(ONE, conviction(1))}


def test_later_use_of_a_lower_choice_replaces_the_ballot() -> None:
    assert said(counted(AB, 10, Implied(("b",), 11, 12), 12)) == {B: part(ONE, conviction(1))}


def test_a_tied_first_choice_is_enough_to_agree() -> None:
    assert [*said(counted((("a", "b"),), 0, Implied(("b", "c"), 2, 30), 30))] == [(("a", "b"),)]


def test_a_withdrawn_ballot_leaves_the_use_alone() -> None:
    assert said(counted((), 3, Implied(("a",), 0, 5), 5)) == {A: part(ONE, conviction(5))}


def test_where_ballots_do_not_fade_use_still_replaces_them() -> None:
    assert said(counted(A, 0, Implied(("b",), 0, 40), 40, horizon=None)) == {A: ONE}
    assert said(counted(A, 0, Implied(("b",), 1, 40), 40, horizon=None)) == {B: ONE}


def test_a_ballot_of_an_earlier_tenure_does_not_count() -> None:
    assert said(counted(A, 4, None, 6, begun={ALPHA: 5})) == said(counted(A, 5, None, 6, begun={ALPHA: 5})) == {}
    assert [*said(counted(A, 6, None, 6, begun={ALPHA: 5}))] == [A]


def test_the_older_rule_lets_a_ballot_hide_use() -> None:
    ballots = Ballots(PrincipalDirectory())
    ballots.cast(ALPHA, A, 0)
    use = {ALPHA: Implied(("b",), 5, 80)}
    for epoch, ranking in ((80, A), (8 * HORIZON - 1, A), (8 * HORIZON, B)):
        assert [*said(votes(ballots, use, {ALPHA: ONE}, epoch, HORIZON))] == [ranking]


@pytest.mark.parametrize("age", [0, 1, 5, 13, 40, 103, 104])
@pytest.mark.parametrize("use", [Implied(("a",), 3, 100), Implied(("b",), 0, 60), Implied(("c",), 90, 104), None])
def test_nobody_counts_for_more_than_its_weight(age: int, use: Implied | None) -> None:
    ballots = Ballots(PrincipalDirectory())
    for did, tiers in ((ALPHA, A), (f"{ALPHA}:two", AB), (f"{ALPHA}:three", ())):
        ballots.cast(did, tiers, 104 - age)
    directory = ballots.directory
    assert directory.principal_of(ALPHA) == ALPHA
    counted_votes = votes(ballots, {ALPHA: use} if use else {}, {ALPHA: ONE}, 104, HORIZON, begun=MappingProxyType({}))
    assert counted_votes.total <= ONE
