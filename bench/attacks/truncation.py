"""Insincere ballots: a bloc that ranks fewer documents than it accepts, or ranks them in another order.

Three documents and all principals are points in a square, and principals prefer what is nearer; they accept all three, so an
honest ballot ranks all of them over NONE. The bloc is those principals that are nearest to one document, a given share of all
weight; all of them cast the same ballot. It tries every ballot there is: *truncated* ones, which begin as the honest one and
leave out the end, and *any*. It gains if a document that it prefers becomes the consensus, and prefers every document to none.
The product's own count and states decide, in as many epochs as an election takes; all ballots are ripe.

    gains/SHARE truncated   the share of the elections in which a bloc of that share of the weight gains by it, %
    gains/SHARE any         the same with any ballot
    blocks/SHARE truncated  the share of the elections in which it leaves the network without a consensus that it had
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from treaty_consensus.election.ballot import Count, Votes, count
from treaty_consensus.election.line import Tiers
from treaty_consensus.election.rule import DocumentState, Poll, advance, incumbent_of

from .adversaries import Coalition, attacked
from .laboratory import Laboratory, Row
from .ours import PARAMETERS, Electors, electors

SHARES = (0.1, 0.2, 0.3, 0.4)
ELECTIONS = 100
DOCUMENTS = tuple(f"{number:064x}" for number in range(3))
EPOCHS = 4
"""An election takes three; one more lets a tie of conditions settle."""
BALLOTS: tuple[Tiers, ...] = tuple(
    tuple((document,) for document in order[:ranked]) for ranked in (1, 2, 3) for order in permutations(DOCUMENTS)
)
"""All strict orders over some of the documents. The ones that rank two leave the third tied with nothing, below NONE."""


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """How often insincerity pays."""
    size = lab.world.size
    for share in SHARES:
        gains, any_gains, blocks = 0, 0, 0
        for drawn in _elections(lab, share):
            outcomes = {ballot: drawn.outcome(ballot) for ballot in BALLOTS}
            honest, place = outcomes[drawn.honest], drawn.place
            truncated = [outcomes[drawn.honest[:ranked]] for ranked in (1, 2)]
            gains += min(map(place, truncated)) < place(honest)
            any_gains += min(map(place, outcomes.values())) < place(honest)
            blocks += honest is not None and None in truncated
        for detail, number in (("truncated", gains), ("any", any_gains)):
            yield Row("truncation", size, "gains", detail=f"{share:g} {detail}"), number / ELECTIONS
        yield Row("truncation", size, "blocks", detail=f"{share:g} truncated"), blocks / ELECTIONS


@dataclass(frozen=True)
class Election:
    """The votes of all but a bloc, and the bloc with its honest ballot."""

    rest: Votes
    bloc: Votes
    honest: Tiers
    clusters: dict[str, str]

    def place(self, outcome: str | None) -> int:
        """Return the place of an outcome in the order of the bloc; no consensus is the last."""
        return len(self.honest) if outcome is None else self.honest.index((outcome,))

    def outcome(self, ballot: Tiers) -> str | None:
        """Return the consensus if the bloc casts this ballot."""
        bloc = Votes(**{**vars(self.bloc), "rankings": [ballot]})
        counted = _sum(count(self.rest, DOCUMENTS, self.clusters), count(bloc, DOCUMENTS, self.clusters))
        states: dict[str, DocumentState] = {}
        for _ in range(EPOCHS):
            states = advance(Poll(PARAMETERS, counted, states))
        return incumbent_of(states)


def _elections(lab: Laboratory, share: float) -> Iterator[Election]:
    weighed = electors(attacked(lab.world, Coalition()))
    draw = np.random.default_rng(random.Random(f"opinions/{lab.world.seed}").randrange(2**32))
    for _ in range(ELECTIONS):
        documents, voters = draw.random((len(DOCUMENTS), 2)), draw.random((lab.world.size, 2))
        yield _election(weighed, np.linalg.norm(voters[:, None] - documents[None], axis=2), share)


def _election(electors: Electors, distances: NDArray[np.float64], share: float) -> Election:
    weights, names = electors.weights, electors.attacked.graph.principals
    # The bloc gathers around a document at random: the first, as documents are points drawn alike.
    nearest = np.argsort(distances[:, 0])
    within = np.cumsum(weights[nearest]) <= share * int(weights.sum())
    bloc = np.zeros(len(weights), dtype=np.bool_)
    bloc[nearest[within]] = True
    orders: list[Tiers] = [tuple((DOCUMENTS[number],) for number in order) for order in np.argsort(distances, axis=1).tolist()]
    clusters = {name: electors.labels[place] for name, place in zip(names, electors.clusters.tolist(), strict=True) if place >= 0}
    # What most of the bloc prefers is the honest ballot of all of it.
    voices: dict[Tiers, int] = {}
    for number in np.flatnonzero(bloc).tolist():
        voices[orders[number]] = voices.get(orders[number], 0) + int(weights[number])
    honest = max(voices, key=lambda order: voices[order])
    heard = weights > 0
    return Election(
        _votes(electors, np.flatnonzero(heard & ~bloc), orders),
        _votes(electors, np.flatnonzero(heard & bloc), [honest] * len(weights), one=True),
        honest,
        clusters,
    )


def _votes(electors: Electors, rows: NDArray[np.int64], orders: list[Tiers], *, one: bool = False) -> Votes:
    names = tuple(electors.attacked.graph.principals[row] for row in rows.tolist())
    rankings = [orders[0]] if one else [orders[row] for row in rows.tolist()]
    place = np.arange(len(rows))
    return Votes(names, rankings, place * 0 if one else place, place, electors.weights[rows], place * 0, place * 0, 0)


def _sum(one: Count, other: Count) -> Count:
    """Counts of disjoint votes add up."""
    return Count(
        one.choices,
        one.total + other.total,
        [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(one.pairwise, other.pairwise, strict=True)],
        [_merged(a, b) for a, b in zip(one.above, other.above, strict=True)],
        [_merged(a, b) for a, b in zip(one.below, other.below, strict=True)],
    )


def _merged(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}
