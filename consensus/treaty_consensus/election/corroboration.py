"""Find the reports that corroborate claims: the first independent one of an epoch, in the order of the log (`credit`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from .credit_columns import ClaimColumns
from .report import Column

# Bollobás's bound C(2 + 2, 2) for sets of two: no search is longer, however many reports a fact has.
_MAX_FIRSTS: Final = 6


def corroborators(claims: ClaimColumns, new: ClaimColumns, cluster: Column, facts: int) -> Column:
    """Return for each claim the row of the first independent report on its fact in `new`, or −1.

    `new`: the claims of this epoch, by fact. `cluster`: of each principal, by number. `facts`: the number of facts.
    """
    ranks = _first_rows(new, cluster, facts)
    own = cluster[claims.first], cluster[claims.second]
    found = np.full(len(claims.fact), -1, dtype=np.int64)
    # At most six candidates are compared (`first_disjoint`), not every report of the epoch.
    for first in ranks:
        row = first[claims.fact]
        apart = (row >= 0) & (found < 0)
        for theirs in (cluster[new.first[row]], cluster[new.second[row]]):
            apart &= (theirs != own[0]) & (theirs != own[1])
        found[apart] = row[apart]
    return found


def _first_rows(new: ClaimColumns, cluster: Column, facts: int) -> Column:
    """Return the rows of `first_disjoint` in `new`, by rank and fact; −1 where there are fewer."""
    rows = np.full((_MAX_FIRSTS, facts), -1, dtype=np.int64)
    starts = np.flatnonzero(np.diff(new.fact, prepend=-1)).tolist()
    one, other = cluster[new.first].tolist(), cluster[new.second].tolist()
    for start, end in pairwise([*starts, len(one)]):
        firsts = first_disjoint(zip(one[start:end], other[start:end], strict=True))
        rows[: len(firsts), new.fact[start]] = np.array(firsts) + start
    return rows


def first_disjoint(sets: Iterable[tuple[int, int]]) -> list[int]:
    """Return the places of those sets of a sequence that are the first one disjoint from some set of at most two names.

    The first set of the sequence that is disjoint from a given set of at most two names is always among them. There are at
    most six of them, for any length of the sequence.

    `sets`: sets of at most two names, in their order. The two names of a set may be the same.

    Source: Bollobás, *On generalized graphs*, 1965; skew version: Frankl, 1982.
    """
    places: list[int] = []
    kept: list[set[int]] = []
    meeting: list[set[int]] = [set()]
    for place, (one, other) in enumerate(sets):
        # It is the first for each set that meets all kept ones and not this.
        if any(one not in names and other not in names for names in meeting):
            places.append(place)
            kept.append({one, other})
            meeting = _meeting(kept)
            # No later set can be the first for any.
            if not meeting:
                break
    return places


def _meeting(kept: Sequence[set[int]]) -> list[set[int]]:
    """Return sets of at most two names that meet every kept set. Each other such set has one of them in it."""
    found = []
    # Two names can only meet all kept sets if one of them is in the first; this tries each of its two.
    for name in kept[0]:
        rest = [names for names in kept if name not in names]
        found += [{name, other} for other in set.intersection(*rest)] if rest else [{name}]
    return found
