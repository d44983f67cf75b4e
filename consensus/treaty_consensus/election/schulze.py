"""Rank choices by the Schulze method on margins, and record every tie.

Choices are numbered; V[a][b] is the weight that ranks a over b.

    m[a][b] = V[a][b] - V[b][a]                                     the margin
    p[a][b] = max over paths from a to b of the least margin on it   the strength; 0 where no path has only positive margins
    a defeats b when p[a][b] > p[b][a]                              a strict partial order (Schulze 2011, §4.1)

The order is completed from the top: among the undefeated remaining choices the incumbent comes first, then the lowest number.
Numbers follow publication; NONE has the last number.

Source: M. Schulze, Social Choice and Welfare 36, 2011. Specification: `docs/specification/election.md`, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Matrix: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Tie:
    """Record a tie: at `rank` (from 0) the choices in `tied` were undefeated, and the tie rule chose one of them."""

    rank: int
    tied: tuple[int, ...]


@dataclass(frozen=True)
class Ranking:
    """Hold all choices, best first, and the ties that were resolved."""

    order: tuple[int, ...]
    ties: tuple[Tie, ...]


def margins(pairwise: Matrix) -> list[list[int]]:
    """Return m[a][b]. It is antisymmetric."""
    choices = range(len(pairwise))
    return [[pairwise[a][b] - pairwise[b][a] for b in choices] for a in choices]


def path_strengths(margins: Matrix) -> list[list[int]]:
    """Return p[a][b], by the algorithm of Floyd and Warshall with (max, min) in place of (min, +)."""
    strengths = [[max(margin, 0) for margin in row] for row in margins]
    for through, onward in enumerate(strengths):
        for row in strengths:
            reach = row[through]
            # A strength of 0 improves no path; skipping it saves most of the work on sparse matrices.
            if reach:
                row[:] = [max(direct, min(reach, rest)) for direct, rest in zip(row, onward, strict=True)]
    for choice, row in enumerate(strengths):
        row[choice] = 0
    return strengths


def undefeated(strengths: Matrix, among: Iterable[int]) -> tuple[int, ...]:
    """Return those of `among` that no other choice of `among` defeats. It is empty only if `among` is empty."""
    choices = sorted(among)
    return tuple(a for a in choices if all(strengths[a][b] >= strengths[b][a] for b in choices))


def rank(pairwise: Matrix, incumbent: int | None = None) -> Ranking:
    """Rank all choices. `pairwise`: V."""
    strengths = path_strengths(margins(pairwise))
    remaining = set(range(len(pairwise)))
    order: list[int] = []
    ties = []
    while remaining:
        best = undefeated(strengths, remaining)
        if len(best) > 1:
            ties.append(Tie(len(order), best))
        # The incumbent wins a tie, because a change costs every agent an update; then the earlier publication wins.
        order.append(incumbent if incumbent is not None and incumbent in best else best[0])
        remaining.remove(order[-1])
    return Ranking(tuple(order), tuple(ties))


def beaten_by(margins: Matrix, choice: int) -> list[int]:
    """List the choices that prevent `choice` from being a weak Condorcet winner.

    These have a margin over it, or margin 0 and a lower number.
    """
    return [other for other, margin in enumerate(margins[choice]) if margin < 0 or (margin == 0 and other < choice)]
