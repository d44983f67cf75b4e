"""Build elections for tests: numbered choices and weighted ballots, counted by the product's own code for decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from treaty_consensus.election.ballot import Ballots, Count, count
from treaty_consensus.election.ballot import votes as live_votes
from treaty_consensus.election.line import Tiers
from treaty_consensus.election.principals import PrincipalDirectory
from treaty_consensus.kinds import NONE

Tiered: TypeAlias = tuple[tuple[int, ...], ...]
"""The ranking of a ballot, best first. Candidates are numbered from 0 in the order of publication; NONE is their number."""
Vote: TypeAlias = tuple[Tiered, int]
"""A ballot and its weight."""


def name(choice: int, candidates: int) -> str:
    """Return the name of a numbered choice in a ballot."""
    return NONE if choice == candidates else f"{choice:064x}"


def voter(number: int) -> str:
    """Return the DID, which is also the principal, that casts vote `number`."""
    return f"did:wba:voter-{number:04}.example"


def count_of(votes: Sequence[tuple[Tiers, int]], candidates: Sequence[str], clusters: Mapping[int, str] | None = None) -> Count:
    """Count ballots and their weights over the candidates.

    `votes`: the tiers and the weight of each ballot.
    `clusters`: number of a vote → cluster of its principal; by default a cluster of its own.
    """
    ballots = Ballots(PrincipalDirectory())
    for number, (tiers, _) in enumerate(votes):
        ballots.cast(voter(number), tiers, 0)
    weights = {voter(number): weight for number, (_, weight) in enumerate(votes)}
    belongs = {voter(number): (clusters or {}).get(number, voter(number)) for number in range(len(votes))}
    return count(live_votes(ballots, {}, weights, 0, None), candidates, belongs)


def counted(
    votes: Sequence[Vote], candidates: int, clusters: Mapping[int, str] | None = None, field: Sequence[int] | None = None
) -> Count:
    """Count ballots of numbered choices, as `count_of` does. `field`: the candidates that are counted; by default all."""
    named = [(tuple(tuple(name(choice, candidates) for choice in tier) for tier in tiers), weight) for tiers, weight in votes]
    indexes = range(candidates) if field is None else field
    return count_of(named, [name(number, candidates) for number in indexes], clusters)


def tiered(ranks: Sequence[int]) -> Tiered:
    """Return the ballot that gives every choice its rank. A smaller rank is better; equal ranks are tied."""
    return tuple(tuple(c for c, r in enumerate(ranks) if r == rank) for rank in sorted(set(ranks)))


def ranks_of(tiers: Tiered, candidates: int) -> list[int]:
    """Return the rank of every choice on a ballot, computed as the specification says."""
    ranks = {choice: rank for rank, tier in enumerate(tiers) for choice in tier}
    ranks.setdefault(candidates, len(tiers))
    return [ranks.get(choice, len(tiers) + 1) for choice in range(candidates + 1)]
