"""Weigh the ballots of a topic and count them pairwise.

A ballot is a weak order over the candidates and NONE: a list of tiers, best first. A candidate is a line, named by its first
document (`line`). Choices that a ballot does not rank are tied last. NONE, unless it is ranked, is just below the ranked choices
and above the others. So `[[a], [b]]` reads a > b > NONE > the rest, and `[["none"]]` reads NONE > all candidates. Hashes that are
not candidates are skipped and change nothing for the others. A ballot without tiers is withdrawn.

The use of a principal is a ballot too. Of each counterparty the newest report that counts is read: two agents that moved to
another document no longer speak for the first. The *implied* ballot names the document with the most counterparties. When several
documents have as many, it names those that it named before, or all of them, tied, if it named none of them before. In an open
electorate only counterparties that the principal vouches for are counted: an open agent agrees with any stranger, so strangers
could otherwise vote for silent principals.

In an open electorate the k explicit ballots of a principal that weighs w in the topic, and its implied one, weigh

    explicit   ⌊w · D(a) · ρ(b)⌋ / k      a: epochs since it was cast or reaffirmed; b: since its ranking changed (`arithmetic`)
    implied    ⌊r · ρ(b)⌋                 r: w less the part ⌊w · D(a)⌋ / k of each explicit ballot

So a ballot fades unless it is reaffirmed, a ranking that just changed has half its weight, and use says the rest. Reaffirming
resets a, not b. Use that names a first choice of the ballot renews it: a is 0 then. Use that began after the ballot, and names
none, replaces it. A ballot that has faded to 0 counts as none. In a development electorate nothing fades or ripens.

Under the rule before, a ballot hides all use until it has faded to 0, use fades by D as well, and documents that all their
publishers withdrew (`Evidence.withdrawn`) are named only when no other is left.

Specification: `docs/specification/election.md`, sections 3 and 5. Ballots are stored in columns as they are logged, and
counted together at the end of an epoch.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..kinds import NONE
from .arithmetic import ONE, conviction, decay, parts, table
from .line import ALONE, Lines, Tiers
from .principals import PrincipalDirectory
from .report import Tally
from .trust import Graph

Weights: TypeAlias = NDArray[np.uint64]


class CastBallots(NamedTuple):
    """Hold ballots that were cast, one row each.

    `principal`: a place in a list of names. `ranking`: a place in `Ballots.rankings`. `age`, `held`: a and b.
    """

    principal: NDArray[np.int64]
    ranking: NDArray[np.int64]
    age: NDArray[np.int64]
    held: NDArray[np.int64]

    def where(self, mask: NDArray[np.bool_]) -> CastBallots:
        """Return the chosen rows."""
        return CastBallots(*(column[mask] for column in self))

    def strength(self, horizon: int | None) -> Weights:
        """Return D(a) · ρ(b) of each row."""
        return parts(_fading(self.age, horizon), _ripening(self.held, horizon))


class SavedBallots(msgspec.Struct, frozen=True, array_like=True):
    """Hold the contents of `Ballots`."""

    rankings: list[Tiers]
    columns: list[bytes]


@dataclass
class Ballots:
    """Store the newest ballot of each DID in a topic, in columns. Mutable: `cast` in the order of the leaves."""

    directory: PrincipalDirectory
    rankings: list[Tiers] = field(default_factory=list)
    _numbers: dict[Tiers, int] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)
    _voter: array[int] = field(default_factory=lambda: array("q"))
    _ranking: array[int] = field(default_factory=lambda: array("q"))
    _cast: array[int] = field(default_factory=lambda: array("q"))
    _since: array[int] = field(default_factory=lambda: array("q"))

    def saved(self) -> SavedBallots:
        """Return the contents."""
        return SavedBallots(self.rankings, [column.tobytes() for column in self._columns()])

    def restore(self, saved: SavedBallots) -> None:
        """Take over saved contents. The store must be new."""
        self.rankings, self._numbers = saved.rankings, {tiers: number for number, tiers in enumerate(saved.rankings)}
        for column, data in zip(self._columns(), saved.columns, strict=True):
            column.frombytes(data)
        self._rows = {voter: row for row, voter in enumerate(self._voter)}

    def _columns(self) -> tuple[array[int], ...]:
        return self._voter, self._ranking, self._cast, self._since

    def cast(self, did: str, tiers: Tiers, epoch: int) -> None:
        """Add an admitted ballot, logged in `epoch`. The order within a tier has no meaning."""
        # Equal rankings share a number, because many ballots have few distinct rankings.
        number, voter = self._number(tuple(tuple(sorted(tier)) for tier in tiers)), self.directory.number(did)
        row = self._rows.get(voter)
        if row is None:
            self._rows[voter] = len(self._rows)
            self._voter.append(voter)
            self._ranking.append(number)
            self._cast.append(epoch)
            self._since.append(epoch)
            return
        # A reaffirmed ranking keeps `since`: only a change restarts its conviction.
        self._cast[row] = epoch
        if self._ranking[row] != number:
            self._ranking[row] = number
            self._since[row] = epoch

    def of(self, principals: Sequence[str], epoch: int) -> CastBallots:
        """Return the ballots of some principals that are not withdrawn. `epoch`: the current one."""
        owner = self.owners(self.directory.places(principals), epoch, None)
        rows = np.flatnonzero(owner >= 0)
        age, held = epoch - self.column("cast")[rows], epoch - self.column("since")[rows]
        return CastBallots(owner[rows], self.column("ranking")[rows], age, held)

    def owners(self, places: NDArray[np.int64], epoch: int, horizon: int | None) -> NDArray[np.int64]:
        """Return for each row the place of its principal, or −1.

        −1 stands for a DID without a principal and for a withdrawn ballot; where ballots fade, also for one that has faded by
        `epoch`.

        `places`: from `PrincipalDirectory.places`.
        `horizon`: H, or None where ballots do not fade.
        """
        # The columns make one numpy expression out of a loop over millions of ballots.
        is_cast = np.array([bool(tiers) for tiers in self.rankings], dtype=bool)
        live = is_cast[self.column("ranking")] & (_fading(epoch - self.column("cast"), horizon) > 0)
        return np.where(live, places[self.directory.owners(self.column("voter"))], -1)

    def active(self, principals: Iterable[str], epoch: int) -> set[str]:
        """Return those of the principals that cast, reaffirmed or withdrew a ballot in `epoch`."""
        names, voters = sorted(principals), self.column("voter")[self.column("cast") == epoch]
        places = self.directory.places(names)[self.directory.owners(voters)]
        return {names[place] for place in np.flatnonzero(np.bincount(places[places >= 0])).tolist()}

    def column(self, name: str) -> NDArray[np.int64]:
        """Return a column: `voter` (the number of the DID), `ranking` (a place in `rankings`), `cast` or `since` (epochs)."""
        return np.array(getattr(self, f"_{name}"), dtype=np.int64)

    def _number(self, tiers: Tiers) -> int:
        number = self._numbers.get(tiers)
        if number is None:
            number = self._numbers[tiers] = len(self.rankings)
            self.rankings.append(tiers)
        return number


class Implied(NamedTuple):
    """Hold the ballot that a principal's reports imply.

    `favourites`: the documents, tied.
    `since`: the epoch in which this set of documents began.
    `reported`: the epoch of the newest report on one of them.
    """

    favourites: tuple[str, ...]
    since: int
    reported: int


class Approval(NamedTuple):
    """Hold the documents that equal ballots rank over NONE, and the weight of these ballots."""

    documents: frozenset[str]
    weight: int


@dataclass(frozen=True)
class Votes:
    """Hold the live ballots of a topic with their weights, one row a ballot.

    The last `implied` rows are implied ballots; the others are explicit.

    `principals`: all that weigh something in the topic, sorted; `principal` points into them.
    `rankings`: the distinct tiers; `ranking` points into them.
    `age`, `held`: a and b of each ballot.
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
        """Return W."""
        return int(self.weight.sum(dtype=np.uint64))

    def by_principal(self) -> Weights:
        """Return the sum of the ballot weights of each principal."""
        return _sums(self.weight, self.principal, len(self.principals))


@dataclass(frozen=True)
class Count:
    """Hold the counted votes of a topic.

    `choices`: the candidates in the order of their publication, then NONE; they name rows and columns.
    `pairwise`: `pairwise[a][b]` is the weight that ranks a over b.
    `above`, `below`: for each candidate c, cluster → the weight that ranks c over NONE, and NONE over c.
    `voters`: for each candidate, the number of principals with a ballot that counts and ranks it over NONE.
    """

    choices: tuple[str, ...]
    total: int
    pairwise: list[list[int]]
    above: list[dict[str, int]]
    below: list[dict[str, int]]
    voters: list[int] = field(default_factory=list)


def implied_ballots(
    tally: Tally,
    graph: Graph | None,
    before: Mapping[str, Implied],
    epoch: int,
    withdrawn: AbstractSet[str] = frozenset(),
    heirs: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Implied]:
    """Return the implied ballot of every principal with reports.

    `tally`: the reports that count.
    `graph`: the vouches for the counterparties that count; None where all count.
    `before`: the implied ballots at the end of the previous epoch.
    `withdrawn`: the documents that all their publishers deprecated or took back.
    `heirs`: document → the one that inherits from it. Both count together against others.
    """
    estate = sorted({heirs.get(document, document) for document in tally.documents})
    place_of = {document: place for place, document in enumerate(estate)}
    inherited = np.array([place_of[heirs.get(document, document)] for document in tally.documents], dtype=np.int64)
    is_withdrawn = np.array([document in withdrawn for document in tally.documents], dtype=bool)
    led = _leading(tally, graph, is_withdrawn, inherited)
    alone = [(document,) for document in tally.documents]
    ballots: dict[str, Implied] = {}
    starts = np.flatnonzero(np.diff(led.principal, prepend=-1)).tolist()
    places, documents, epochs, sizes = (column.tolist() for column in led)
    for start, end in zip(starts, [*starts[1:], len(places)], strict=False):
        principal = tally.principals[places[start]]
        earlier = before.get(principal)
        if end == start + 1:
            # A short way for nearly all principals: there is no choice.
            favourites, reported = alone[documents[start]], epochs[start]
        else:
            leading = {tally.documents[documents[row]]: (epochs[row], sizes[row]) for row in range(start, end)}
            favourites = _favourites(leading, earlier.favourites if earlier else (), heirs)
            reported = max(leading[document][0] for document in favourites)
        since = earlier.since if earlier is not None and earlier.favourites == favourites else epoch
        ballots[principal] = Implied(favourites, since, reported)
    return ballots


def _favourites(leading: Mapping[str, tuple[int, int]], before: Sequence[str], heirs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the documents that an implied ballot names, sorted.

    `leading`: the documents with most counterparties, each together with its heir → the epoch of the newest report, and the
    number of its own counterparties; sorted.
    `before`: the documents that it named before. A tie keeps them, so that equal reports restart no conviction.
    """
    if not heirs:
        # A short way: each document is counted alone.
        return tuple(document for document in leading if document in before) or tuple(leading)
    of = {document: heirs.get(document, document) for document in (*leading, *before)}
    retained = {of[document] for document in before}.intersection(of[document] for document in leading)
    named: list[str] = []
    for heir in {of[document] for document in leading if not retained or of[document] in retained}:
        members = {document: size for document, (_, size) in leading.items() if of[document] == heir}
        most = [document for document, size in members.items() if size == max(members.values())]
        named += [document for document in most if document in before] or most
    return tuple(sorted(named))


class _Leading(NamedTuple):
    """Hold each principal's documents with the most counterparties, sorted.

    `epoch`: of the newest of these reports. `size`: the number of counterparties.
    """

    principal: NDArray[np.int64]
    document: NDArray[np.int64]
    epoch: NDArray[np.int64]
    size: NDArray[np.int64]


def _leading(tally: Tally, graph: Graph | None, is_withdrawn: NDArray[np.bool_], inherited: NDArray[np.int64]) -> _Leading:
    """Return the documents with most counterparties. `inherited`: one number for a document and its heir."""
    pairs, width = tally.agreed, max(len(tally.principals), 1)
    # Of each pair the newest report. It has one that counts in each epoch, so the epochs of its documents differ.
    pair = pairs.first * width + pairs.second
    order = np.argsort(pair, kind="stable")
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
    newest = np.maximum.reduceat((pairs.epoch * len(tally.documents) + pairs.document)[order], starts)
    first, second = pair[order[starts]] // width, pair[order[starts]] % width
    principal, other = np.concatenate([first, second]), np.concatenate([second, first])
    document, epoch = np.tile(newest % len(tally.documents), 2), np.tile(newest // len(tally.documents), 2)
    if graph is not None:
        places = graph.places(tally.principals)
        counts = graph.has(places[principal], places[other])
        principal, document, epoch = principal[counts], document[counts], epoch[counts]
    # One row for each document of a principal: the number of its counterparties, and their newest epoch.
    order = np.lexsort((-epoch, document, principal))
    principal, document, epoch = principal[order], document[order], epoch[order]
    starts = np.flatnonzero((np.diff(principal, prepend=-1) != 0) | (np.diff(document, prepend=-1) != 0))
    size = np.diff(starts, append=len(principal))
    principal, document, epoch = principal[starts], document[starts], epoch[starts]
    # Who still speaks a withdrawn document, and nothing else, keeps it: a publisher alone ends no consensus.
    has_other = np.zeros(width, dtype=bool)
    has_other[principal[~is_withdrawn[document]]] = True
    size = np.where(is_withdrawn[document] & has_other[principal], 0, size)
    estates = int(inherited.max(initial=0)) + 1
    key = principal * estates + inherited[document]
    sums = np.zeros(width * estates, dtype=np.int64)
    np.add.at(sums, key, size)
    together = sums[key]
    most = np.zeros(width, dtype=np.int64)
    np.maximum.at(most, principal, together)
    leads = together == most[principal]
    return _Leading(principal[leads], document[leads], epoch[leads], size[leads])


def approvals(votes: Votes) -> list[Approval]:
    """Return the distinct rankings of the votes that rank documents over NONE, as approvals."""
    rows = []
    weights = _sums(votes.weight, votes.ranking, len(votes.rankings))
    for number in np.flatnonzero(weights).tolist():
        if documents := _over_none(votes.rankings[number]):
            rows.append(Approval(documents, int(weights[number])))
    return rows


def _over_none(tiers: Tiers) -> frozenset[str]:
    return frozenset(document for tier in takewhile(lambda tier: NONE not in tier, tiers) for document in tier)


def approved(approvals: Iterable[Approval]) -> dict[str, int]:
    """Return document → the weight of the votes that rank it over NONE."""
    weights: defaultdict[str, int] = defaultdict(int)
    for approval in approvals:
        for document in approval.documents:
            weights[document] += approval.weight
    return dict(weights)


def votes(
    ballots: Ballots,
    implied: Mapping[str, Implied],
    weights: Mapping[str, int],
    epoch: int,
    horizon: int | None,
    lines: Lines = ALONE,
    begun: Mapping[str, int] | None = None,
) -> Votes:
    """Return the ballots that count in a topic at the end of `epoch`. Principals without weight are left out.

    `implied`: of lines.
    `weights`: principal → weight in the topic.
    `horizon`: H; None where ballots neither fade nor ripen.
    `begun`: principal → the epoch in which its present tenure began; None under the rule before, which lets no use renew a vote.
    """
    principals = tuple(sorted(weights))
    whole = np.array([weights[name] for name in principals], dtype=np.uint64)
    rankings = [lines.read(tiers) for tiers in ballots.rankings]
    cast = ballots.of(principals, epoch)
    if begun is not None:
        started = np.array([begun.get(name, -1) for name in principals], dtype=np.int64)
        cast = cast.where(epoch - cast.age > started[cast.principal])
        cast = _after_use(cast, rankings, principals, implied, epoch, horizon)
    cast = cast.where(_fading(cast.age, horizon) > 0)
    fresh = parts(whole[cast.principal], _fading(cast.age, horizon))
    # A principal with several DIDs splits its weight, so more DIDs give no more votes.
    number = np.bincount(cast.principal, minlength=len(principals))
    share = number.astype(np.uint64)[cast.principal]
    # What its ballots have faded by, a principal says by its use.
    rest = whole - _sums(fresh // share, cast.principal, len(principals))
    speaks = (rest > 0) if begun is not None else number == 0
    silent = np.array([place for place, name in enumerate(principals) if speaks[place] and name in implied], dtype=np.int64)
    inferred = [implied[principals[place]] for place in silent.tolist()]
    favourites = {named: number for number, named in enumerate(sorted({ballot.favourites for ballot in inferred}))}
    age = np.array([epoch - ballot.reported for ballot in inferred], dtype=np.int64)
    held = np.array([epoch - ballot.since for ballot in inferred], dtype=np.int64)
    # Use does not fade: where agents seldom meet, its newest report is old. It counts until it is forgotten.
    spoken = rest[silent] if begun is not None else parts(rest[silent], _fading(age, horizon))
    spoken_parts = parts(spoken, _ripening(held, horizon))
    return Votes(
        principals=principals,
        rankings=[*rankings, *(lines.read((named,)) for named in favourites)],
        ranking=np.concatenate([cast.ranking, len(rankings) + _numbers(favourites[ballot.favourites] for ballot in inferred)]),
        principal=np.concatenate([cast.principal, silent]),
        weight=np.concatenate([parts(fresh, _ripening(cast.held, horizon)) // share, spoken_parts]),
        age=np.concatenate([cast.age, age]),
        held=np.concatenate([cast.held, held]),
        implied=len(inferred),
    )


def _after_use(
    cast: CastBallots,
    rankings: Sequence[Tiers],
    principals: Sequence[str],
    implied: Mapping[str, Implied],
    epoch: int,
    horizon: int | None,
) -> CastBallots:
    """Return ballots as the use of their principals leaves them: renewed, as they are, or left out."""
    named = [implied.get(name) for name in principals]
    favourites = sorted({ballot.favourites for ballot in named if ballot})
    place = {lines: number for number, lines in enumerate(favourites)}
    use = np.array([place[ballot.favourites] if ballot else -1 for ballot in named], dtype=np.int64)[cast.principal]
    since = np.array([ballot.since if ballot else -1 for ballot in named], dtype=np.int64)[cast.principal]
    best = {tiers[0]: number for number, tiers in enumerate(rankings) if tiers}
    lead = _numbers(best[tiers[0]] if tiers else -1 for tiers in rankings)[cast.ranking]
    # Many ballots begin alike, so each kind of first tier and use is compared once. One integer names a kind: −1 is 0 there.
    width = len(favourites) + 1
    kinds, alike = np.unique(lead * width + use + 1, return_inverse=True)
    agrees = np.array([_agrees(rankings[kind // width], favourites, kind % width - 1) for kind in kinds.tolist()], dtype=bool)
    agrees = agrees[alike]
    # A ballot is no firmer than the use that keeps it up, so use alone may be worth less than the ballot.
    by_use = cast._replace(age=np.zeros_like(cast.age), held=np.minimum(cast.held, epoch - since))
    renews = agrees & (by_use.strength(horizon) > cast.strength(horizon))
    age, held = np.where(renews, by_use.age, cast.age), np.where(renews, by_use.held, cast.held)
    # Use that began after the ballot, on another line, is the newer word of the two.
    return cast._replace(age=age, held=held).where(agrees | (since <= epoch - cast.age))


def _agrees(tiers: Tiers, favourites: Sequence[tuple[str, ...]], number: int) -> bool:
    """Tell whether a use has a choice of the first tier of a ballot. `number`: of the use; −1 for none."""
    return number >= 0 and not {*tiers[0]}.isdisjoint(favourites[number])


def ranks(rankings: Sequence[Tiers], choices: Sequence[str]) -> NDArray[np.int64]:
    """Return the rank of each of `choices` in each ranking, a row a ranking. Smaller is better, equal is tied.

    `choices`: the last one is NONE.
    """
    lengths = _numbers(len(tiers) for tiers in rankings)
    table = np.repeat(lengths + 1, len(choices))
    table[len(choices) - 1 :: len(choices)] = lengths
    column, width = {choice: number for number, choice in enumerate(choices)}, len(choices)
    ranked = {
        row * width + column[choice]: rank
        for row, tiers in enumerate(rankings)
        for rank, tier in enumerate(tiers)
        for choice in tier
        if choice in column
    }
    table[_numbers(ranked)] = _numbers(ranked.values())
    return table.reshape(len(rankings), width)


def count(votes: Votes, candidates: Sequence[str], clusters: Mapping[str, str]) -> Count:
    """Count votes over the candidates.

    A count is a sum over ballots, so the counts of disjoint parts add up to the count of all, all but its `voters`.

    `candidates`: in the order of their publication.
    `clusters`: principal → its cluster.
    """
    choices = (*candidates, NONE)
    names = sorted({clusters[principal] for principal in votes.principals})
    place = {name: number for number, name in enumerate(names)}
    cluster = np.array([place[clusters[principal]] for principal in votes.principals], dtype=np.int64)[votes.principal]
    # Many ballots are equal. From here on there is one row for each distinct ranking in each cluster.
    cells, cell = np.unique(votes.ranking * max(len(names), 1) + cluster, return_inverse=True)
    weight = _sums(votes.weight, cell, len(cells))
    used, alike = np.unique(cells // max(len(names), 1), return_inverse=True)
    belongs = cells % max(len(names), 1)
    ranking = ranks([votes.rankings[number] for number in used.tolist()], choices)

    def by_cluster(mask: NDArray[np.bool_]) -> dict[str, int]:
        rows = mask[alike]
        sums = _sums(weight[rows], belongs[rows], len(names))
        return {names[number]: int(sums[number]) for number in np.flatnonzero(sums).tolist()}

    counts = votes.weight > 0
    voter, row = votes.principal[counts], alike[cell[counts]]

    def voters(approves: NDArray[np.bool_]) -> int:
        is_voter = np.zeros(len(votes.principals), dtype=bool)
        is_voter[voter[approves[row]]] = True
        return int(np.count_nonzero(is_voter))

    none = ranking[:, -1]
    return Count(
        choices,
        votes.total,
        pairwise(ranking, _sums(weight, alike, len(used))),
        [by_cluster(ranking[:, candidate] < none) for candidate in range(len(candidates))],
        [by_cluster(ranking[:, candidate] > none) for candidate in range(len(candidates))],
        [voters(ranking[:, candidate] < none) for candidate in range(len(candidates))],
    )


def pairwise(ranking: NDArray[np.int64], weight: Weights) -> list[list[int]]:
    """Return V[a][b], the weight of the ballots that rank a strictly over b.

    `ranking`: the rank of every choice, one row a ballot.
    """
    return [
        np.where(ranking[:, choice, None] < ranking, weight[:, None], np.uint64(0)).sum(axis=0, dtype=np.uint64).tolist()
        for choice in range(ranking.shape[1])
    ]


def _numbers(numbers: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(numbers, dtype=np.int64)


def _sums(weight: Weights, group: NDArray[np.int64], groups: int) -> Weights:
    # `np.add.at` stays in unsigned integers; `np.bincount` with weights would use floats.
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
