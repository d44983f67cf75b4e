"""Ballots: weak orders over the candidates and NONE, and how they are counted pairwise.

A ballot is a list of tiers, best first. What it does not rank is tied last; NONE, unless it is ranked, sits just below what is
ranked and above what is not. So `[[a], [b]]` reads a > b > NONE > the rest, and `[["none"]]` reads NONE > everybody. Hashes that
are not candidates are passed over, and change nothing for those that are. A ballot without tiers is withdrawn.

A principal that has no ballot is counted by what it did: its *implied* ballot ranks the documents of its reports that count,
those agreed on with more counterparties before those with fewer. The ballots of one principal share its weight equally.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..did import parse_did
from ..kinds import NONE
from .weight import principal_of

Tiers: TypeAlias = tuple[tuple[str, ...], ...]
Ranks: TypeAlias = tuple[int, ...]
"""The rank of each choice in a ballot; smaller is better, equal is tied."""


@dataclass(frozen=True)
class Cast:
    """A live ballot and its weight. `implied`: nobody cast it, it follows from reports."""

    principal: str
    weight: int
    tiers: Tiers
    implied: bool


@dataclass(frozen=True)
class Count:
    """The votes of a topic. `choices`: the candidates in the order of their publication, then NONE; they name rows and columns.

    `pairwise[a][b]` is the weight that ranks a over b. `above[c]` and `below[c]`: of the weight that ranks c over NONE, and NONE
    over c, each cluster's part.
    """

    choices: tuple[str, ...]
    total: int
    pairwise: list[list[int]]
    above: list[dict[str, int]]
    below: list[dict[str, int]]


def implied_tiers(counterparties: Mapping[str, int]) -> Tiers:
    """The tiers of a principal that agreed on each document with so many others."""
    numbers = sorted(set(counterparties.values()), reverse=True)
    return tuple(tuple(sorted(document for document, n in counterparties.items() if n == number)) for number in numbers)


def live_ballots(
    ballots: Mapping[str, Tiers], reported: Mapping[str, Mapping[str, int]], weights: Mapping[str, int]
) -> list[Cast]:
    """All that is counted in a topic, in the order of the principals.

    `ballots`: DID → the tiers of its newest ballot; `reported`: principal → document → counterparties. Whoever weighs nothing is
    left out.
    """
    by_principal: defaultdict[str, list[Tiers]] = defaultdict(list)
    for did, tiers in sorted(ballots.items()):
        principal = principal_of(parse_did(did))
        if principal is not None and tiers:
            by_principal[principal].append(tiers)
    cast = []
    for principal in sorted(by_principal.keys() | reported.keys()):
        weight = weights.get(principal, 0)
        explicit = by_principal.get(principal, [])
        if weight and explicit:
            cast += [Cast(principal, weight // len(explicit), tiers, implied=False) for tiers in explicit]
        elif weight:
            cast.append(Cast(principal, weight, implied_tiers(reported[principal]), implied=True))
    return cast


def ranks(tiers: Tiers, choices: Sequence[str]) -> Ranks:
    """How a ballot ranks `choices`, the last of which is NONE."""
    ranked = {choice: rank for rank, tier in enumerate(tiers) for choice in tier}
    ranked.setdefault(NONE, len(tiers))
    return tuple(ranked.get(choice, len(tiers) + 1) for choice in choices)


def count(cast: Iterable[Cast], candidates: Sequence[str], clusters: Mapping[str, str]) -> Count:
    """Count ballots over the candidates, which are in the order of their publication."""
    choices = (*candidates, NONE)
    none = len(candidates)
    above: list[defaultdict[str, int]] = [defaultdict(int) for _ in candidates]
    below: list[defaultdict[str, int]] = [defaultdict(int) for _ in candidates]
    alike: defaultdict[Ranks, int] = defaultdict(int)  # many ballots, few different ones: compare each pair once
    for ballot in cast:
        ranking = ranks(ballot.tiers, choices)
        alike[ranking] += ballot.weight
        cluster = clusters[ballot.principal]
        for candidate in range(none):
            if ranking[candidate] < ranking[none]:
                above[candidate][cluster] += ballot.weight
            elif ranking[candidate] > ranking[none]:
                below[candidate][cluster] += ballot.weight
    return Count(choices, sum(alike.values()), pairwise(alike, len(choices)), [*map(dict, above)], [*map(dict, below)])


def pairwise(ballots: Mapping[Ranks, int], choices: int) -> list[list[int]]:
    """V[a][b], the weight of the ballots that rank a strictly over b."""
    matrix = [[0] * choices for _ in range(choices)]
    for ranking, weight in ballots.items():
        for a, row in enumerate(matrix):
            for b in range(choices):
                if ranking[a] < ranking[b]:
                    row[b] += weight
    return matrix
