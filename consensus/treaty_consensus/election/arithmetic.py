"""The arithmetic of the election: fractions as integers in units of 1 / ONE, which every platform computes alike.

    part(v, f)     = ⌊v · f / ONE⌋
    D(a)           = ONE / 2^q − ⌊ONE / 2^(q+1) · r / H⌋       with a = q·H + r, r < H;   0 from a = 8·H
    ρ(b)           = ONE − ⌊ONE / 2^(b+1)⌋

D is the decay of what was said a epochs ago: it halves every H epochs, in a straight line between. ρ is the conviction of a
ranking that did not change for b epochs: a half at first, and half of what lacks is made up each epoch.

Everything is unsigned and rounds down; there are no floats. Arrays are `numpy.uint64`, and no intermediate passes 2^64: factors
are at most ONE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

ONE: Final = 1 << 32
HALVINGS: Final = 8
"""After that many horizons nothing is left."""

Amounts: TypeAlias = NDArray[np.uint64]
"""Amounts in units of 1 / ONE, one per principal or edge."""


def part(value: int, factor: int) -> int:
    """⌊value · factor / ONE⌋ of non-negative integers."""
    return value * factor // ONE


def decay(age: int, horizon: int) -> int:
    """D(age), 0 … ONE, for an age of at least 0 and a horizon H of at least 1, both in epochs. Never increases; ONE at 0, half of
    it at each further horizon."""
    halvings, rest = divmod(age, horizon)
    if halvings >= HALVINGS:
        return 0
    return (ONE >> halvings) - (ONE >> (halvings + 1)) * rest // horizon


def conviction(unchanged: int) -> int:
    """ρ, ONE / 2 … ONE, of a ranking that has not changed for that many epochs (0: it is this epoch's). Never decreases."""
    return ONE - (ONE >> (unchanged + 1))


def table(function: Callable[[int], int], upto: int) -> Amounts:
    """The values of a function at 0 … `upto` - 1, to be indexed by an array. They lie in 0 … 2^64 - 1."""
    return np.array([function(argument) for argument in range(upto)], dtype=np.uint64)


def parts(values: Amounts, factors: Amounts) -> Amounts:
    """`part` of each pair; exact for values and factors of at most ONE."""
    shift = np.uint64(32)
    return np.where(factors == ONE, values, values * factors >> shift)  # only ONE · ONE would pass 2^64
