"""The Schulze method on margins, with all ties resolved and traced.

Choices are numbered; V[a][b] is the weight that ranks a over b.

    m[a][b] = V[a][b] - V[b][a]                                     the margin
    p[a][b] = max over paths from a to b of the least margin on it   the strength; 0 where no path has only positive margins
    a defeats b when p[a][b] > p[b][a]                              a strict partial order (Schulze 2011, §4.1)

The order is completed from the top: of the choices that none of the remaining ones defeats, the incumbent comes first, then the
lowest number. Numbers follow publication, NONE has the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Matrix: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Tie:
    """At `rank` (from 0) these `tied` choices were undefeated, and the order's own choice was made by the tie rule."""

    rank: int
    tied: tuple[int, ...]


@dataclass(frozen=True)
class Ranking:
    """All choices, best first, and the ties that had to be resolved on the way."""

    order: tuple[int, ...]
    ties: tuple[Tie, ...]


def margins(pairwise: Matrix) -> list[list[int]]:
    """m[a][b]; antisymmetric."""
    choices = range(len(pairwise))
    return [[pairwise[a][b] - pairwise[b][a] for b in choices] for a in choices]


def path_strengths(margins: Matrix) -> list[list[int]]:
    """p[a][b], by Floyd and Warshall with (max, min) for (min, +)."""
    strengths = [[max(margin, 0) for margin in row] for row in margins]
    for through, onward in enumerate(strengths):
        for row in strengths:
            reach = row[through]
            if reach:
                row[:] = [max(direct, min(reach, rest)) for direct, rest in zip(row, onward, strict=True)]
    for choice, row in enumerate(strengths):
        row[choice] = 0
    return strengths


def undefeated(strengths: Matrix, among: Iterable[int]) -> tuple[int, ...]:
    """Those of `among` that no other of them defeats; never empty unless `among` is."""
    choices = sorted(among)
    return tuple(a for a in choices if all(strengths[a][b] >= strengths[b][a] for b in choices))


def rank(pairwise: Matrix, incumbent: int | None = None) -> Ranking:
    """Rank all choices."""
    strengths = path_strengths(margins(pairwise))
    remaining = set(range(len(pairwise)))
    order: list[int] = []
    ties = []
    while remaining:
        best = undefeated(strengths, remaining)
        if len(best) > 1:
            ties.append(Tie(len(order), best))
        order.append(incumbent if incumbent is not None and incumbent in best else best[0])
        remaining.remove(order[-1])
    return Ranking(tuple(order), tuple(ties))


def beaten_by(margins: Matrix, choice: int) -> list[int]:
    """What keeps `choice` from being a weak Condorcet winner: whoever has a margin over it, or margin 0 and a lower number."""
    return [other for other, margin in enumerate(margins[choice]) if margin < 0 or (margin == 0 and other < choice)]
