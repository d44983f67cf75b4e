"""The least of a resource that flips a decision, by bisection: whoever flips it with some flips it with more."""

from __future__ import annotations

from collections.abc import Callable


def least(flips: Callable[[int], bool], upto: int, guess: int | None = None) -> int | None:
    """The least number, 0 … `upto`, that flips; None where not even `upto` does.

    Whatever the `guess`, the answer n flips and n - 1 does not. A good one spares questions: they begin there, and go away from
    it in growing steps.
    """
    low, high, step = -1, upto + 1, 1
    point = upto // 2 if guess is None else min(guess, upto)
    while high - low > 1:
        if flips(point):
            high = point
        else:
            low = point
        if guess is None or (low >= 0 and high <= upto):
            point = (low + high) // 2
        else:
            point = max(high - step, low + 1) if low < 0 else min(low + step, high - 1)
            step *= 2
    return high if high <= upto else None
