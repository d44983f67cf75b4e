"""Ballots: weak orders over the candidates and NONE, what each weighs, and how they are counted pairwise.

A ballot is a list of tiers, best first. What it does not rank is tied last; NONE, unless it is ranked, sits just below what is
ranked and above what is not. So `[[a], [b]]` reads a > b > NONE > the rest, and `[["none"]]` reads NONE > everybody. Hashes that
are not candidates are passed over, and change nothing for those that are. A ballot without tiers is withdrawn.

A principal that has no ballot is counted by what it did: its *implied* ballot names the document that it agreed on, in reports
that count, with the most counterparties. Of several with as many it names those that it named before, or all of them, tied, where
it named none of them. In an open electorate only counterparties that it vouches for are counted: an open agent agrees with any
stranger, so strangers would otherwise vote for everybody who is silent.

In an open electorate a ballot of a principal that weighs w in the topic, and has k of them, weighs

    ⌊w · D(a) · ρ(b)⌋ / k         a: epochs since it was cast or reaffirmed; since the newest report on it, for an implied one
                                  b: epochs since its ranking changed (`arithmetic`)

so that what nobody reaffirms fades, and what changed just now has half its weight: reaffirming resets a and not b. A ballot that
has faded away altogether is none. In a development electorate it weighs ⌊w / k⌋.

Ballots are kept in columns, taken in one by one as they are logged, and counted all at once at the end of an epoch.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..kinds import NONE
from .arithmetic import ONE, conviction, decay, parts, table
from .principals import Voices
from .report import Pair

Tiers: TypeAlias = tuple[tuple[str, ...], ...]
Ranks: TypeAlias = tuple[int, ...]
"""The rank of each choice in a ballot; smaller is better, equal is tied."""
Weights: TypeAlias = NDArray[np.uint64]


@dataclass
class Ballots:
    """The newest ballot of each DID in a topic, in columns. Mutable: `cast` in the order of the leaves."""

    voices: Voices
    rankings: list[Tiers] = field(default_factory=list)
    _numbers: dict[Tiers, int] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)
    _voter: array[int] = field(default_factory=lambda: array("q"))
    _ranking: array[int] = field(default_factory=lambda: array("q"))
    _cast: array[int] = field(default_factory=lambda: array("q"))
    _since: array[int] = field(default_factory=lambda: array("q"))

    def cast(self, did: str, tiers: Tiers, epoch: int) -> None:
        """Take in an admitted ballot, logged in `epoch`."""
        number, voter = self._number(tiers), self.voices.number(did)
        row = self._rows.get(voter)
        if row is None:
            self._rows[voter] = len(self._rows)
            self._voter.append(voter)
            self._ranking.append(number)
            self._cast.append(epoch)
            self._since.append(epoch)
            return
        self._cast[row] = epoch
        if self._ranking[row] != number:
            self._ranking[row] = number
            self._since[row] = epoch

    def owners(self, places: NDArray[np.int64], epoch: int, horizon: int | None) -> NDArray[np.int64]:
        """For each row the place of its principal, by `Voices.places`; −1 where it has none, and where the ballot is withdrawn
        or, where ballots fade, faded away by `epoch`."""
        speaks = np.array([bool(tiers) for tiers in self.rankings], dtype=bool)
        live = speaks[self.column("ranking")] & (_fading(epoch - self.column("cast"), horizon) > 0)
        return np.where(live, places[self.voices.owners(self.column("voter"))], -1)

    def column(self, name: str) -> NDArray[np.int64]:
        """`voter` (the number of its DID), `ranking` (a place in `rankings`), `cast` or `since` (epochs) of each row."""
        return np.array(getattr(self, f"_{name}"), dtype=np.int64)

    def _number(self, tiers: Tiers) -> int:
        number = self._numbers.get(tiers)
        if number is None:
            number = self._numbers[tiers] = len(self.rankings)
            self.rankings.append(tiers)
        return number


class Implied(NamedTuple):
    """What a principal's reports say it prefers: documents, the epoch in which they became so, and that of its newest report on
    one of them."""

    favourites: tuple[str, ...]
    since: int
    reported: int


@dataclass(frozen=True)
class Votes:
    """The live ballots of a topic, each with its weight; one row a ballot.

    `rankings`: the different tiers, which `ranking` points into. `principals`: everybody who weighs something in the topic, in
    order, which `principal` points into. The first rows are explicit, the last `implied` are not. `age` and `held`: the a and b
    of each.
    """

    principals: tuple[str, ...]
    rankings: Sequence[Tiers]
    ranking: NDArray[np.int64]
    principal: NDArray[np.int64]
    weight: Weights
    age: NDArray[np.int64]
    held: NDArray[np.int64]
    implied: int

    @property
    def total(self) -> int:
        """W."""
        return int(self.weight.sum(dtype=np.uint64))

    def by_principal(self) -> Weights:
        """What the ballots of each principal weigh together."""
        return _sums(self.weight, self.principal, len(self.principals))


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


def implied_ballots(
    pairs: Mapping[str, Mapping[Pair, int]],
    known: Mapping[str, AbstractSet[str]] | None,
    before: Mapping[str, Implied],
    epoch: int,
) -> dict[str, Implied]:
    """The implied ballot of everyone with reports, carried from the one at the end of the epoch before.

    `pairs`: document → who agreed on it → the epoch in which they last did; `known`: principal → whose agreement with it counts,
    None for everybody's.
    """
    met: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for document, epochs in pairs.items():
        for pair, when in epochs.items():
            for principal, other in (pair, pair[::-1]):
                if known is None or other in known.get(principal, ()):
                    met[principal][document].append(when)
    ballots = {}
    for principal, documents in met.items():
        most = max(map(len, documents.values()))
        foremost = tuple(sorted(document for document, epochs in documents.items() if len(epochs) == most))
        earlier = before.get(principal)
        loyal = tuple(document for document in foremost if earlier is not None and document in earlier.favourites)
        favourites = loyal or foremost
        since = earlier.since if earlier is not None and earlier.favourites == favourites else epoch
        ballots[principal] = Implied(favourites, since, max(max(documents[document]) for document in favourites))
    return ballots


def approvals(votes: Votes) -> dict[str, int]:
    """For each document that any vote ranks over NONE: what those votes weigh."""
    weights: defaultdict[str, int] = defaultdict(int)
    used, alike = np.unique(votes.ranking, return_inverse=True)
    for number, weight in zip(used.tolist(), _sums(votes.weight, alike, len(used)).tolist(), strict=True):
        for tier in votes.rankings[number]:
            if NONE in tier:
                break
            for document in tier:
                weights[document] += weight
    return dict(weights)


def votes(
    ballots: Ballots,
    implied: Mapping[str, Implied],
    weights: Mapping[str, int],
    epoch: int,
    horizon: int | None,
) -> Votes:
    """What is counted in a topic at the end of `epoch`; whoever weighs nothing is left out.

    `weights`: principal → weight in the topic. `horizon`: H; None where ballots neither fade nor ripen.
    """
    principals = tuple(sorted(weights))
    owner = ballots.owners(ballots.voices.places(principals), epoch, horizon)
    live = np.flatnonzero(owner >= 0)
    spoken = np.zeros(len(principals), dtype=bool)
    spoken[owner[live]] = True
    silent = [place for place, name in enumerate(principals) if not spoken[place] and name in implied]
    guesses = [implied[principals[place]] for place in silent]

    def column(explicit: NDArray[np.int64], guessed: list[int]) -> NDArray[np.int64]:
        return np.concatenate([explicit[live], np.array(guessed, dtype=np.int64)])

    principal = column(owner, silent)
    age = column(epoch - ballots.column("cast"), [epoch - guess.reported for guess in guesses])
    held = column(epoch - ballots.column("since"), [epoch - guess.since for guess in guesses])
    whole = np.array([weights[name] for name in principals], dtype=np.uint64)[principal]
    ripe = parts(parts(whole, _fading(age, horizon)), _ripening(held, horizon))
    return Votes(
        principals=principals,
        rankings=[*ballots.rankings, *((guess.favourites,) for guess in guesses)],
        ranking=column(ballots.column("ranking"), [len(ballots.rankings) + number for number in range(len(guesses))]),
        principal=principal,
        weight=ripe // np.bincount(principal, minlength=len(principals)).astype(np.uint64)[principal],
        age=age,
        held=held,
        implied=len(guesses),
    )


def ranks(tiers: Tiers, choices: Sequence[str]) -> Ranks:
    """How a ballot ranks `choices`, the last of which is NONE."""
    ranked = {choice: rank for rank, tier in enumerate(tiers) for choice in tier}
    ranked.setdefault(NONE, len(tiers))
    return tuple(ranked.get(choice, len(tiers) + 1) for choice in choices)


def count(votes: Votes, candidates: Sequence[str], clusters: Mapping[str, str]) -> Count:
    """Count votes over the candidates, which are in the order of their publication. `clusters`: of every principal.

    Everything is a sum over ballots, so the counts of parts of them add up to the count of all.
    """
    choices = (*candidates, NONE)
    names = sorted({clusters[principal] for principal in votes.principals})
    place = {name: number for number, name in enumerate(names)}
    cluster = np.array([place[clusters[principal]] for principal in votes.principals], dtype=np.int64)[votes.principal]
    # Many ballots, few different ones in each cluster: from here on there is one row for each of those.
    cells, cell = np.unique(votes.ranking * max(len(names), 1) + cluster, return_inverse=True)
    weight = _sums(votes.weight, cell, len(cells))
    used, alike = np.unique(cells // max(len(names), 1), return_inverse=True)
    belongs = cells % max(len(names), 1)
    ranking = np.array([ranks(votes.rankings[number], choices) for number in used.tolist()], dtype=np.int64)
    ranking = ranking.reshape(len(used), len(choices))

    def by_cluster(chosen: NDArray[np.bool_]) -> dict[str, int]:
        rows = chosen[alike]
        sums = _sums(weight[rows], belongs[rows], len(names))
        return {names[number]: int(sums[number]) for number in np.flatnonzero(sums).tolist()}

    none = ranking[:, -1]
    return Count(
        choices,
        votes.total,
        pairwise(ranking, _sums(weight, alike, len(used))),
        [by_cluster(ranking[:, candidate] < none) for candidate in range(len(candidates))],
        [by_cluster(ranking[:, candidate] > none) for candidate in range(len(candidates))],
    )


def pairwise(ranking: NDArray[np.int64], weight: Weights) -> list[list[int]]:
    """V[a][b], the weight of the ballots that rank a strictly over b. `ranking`: the ranks of every choice, one row a ballot."""
    return [
        np.where(ranking[:, choice, None] < ranking, weight[:, None], np.uint64(0)).sum(axis=0, dtype=np.uint64).tolist()
        for choice in range(ranking.shape[1])
    ]


def _sums(weight: Weights, group: NDArray[np.int64], groups: int) -> Weights:
    sums = np.zeros(groups, dtype=np.uint64)
    np.add.at(sums, group, weight)
    return sums


def _fading(age: NDArray[np.int64], horizon: int | None) -> Weights:
    if horizon is None:
        return np.full(len(age), ONE, dtype=np.uint64)
    return table(lambda epochs: decay(epochs, horizon), int(age.max(initial=0)) + 1)[age]


def _ripening(held: NDArray[np.int64], horizon: int | None) -> Weights:
    if horizon is None:
        return np.full(len(held), ONE, dtype=np.uint64)
    return table(conviction, int(held.max(initial=0)) + 1)[held]
