"""Provide the arithmetic of the election: fractions as integers in units of 1 / ONE.

    part(v, f)     = ⌊v · f / ONE⌋
    D(a)           = ONE / 2^q − ⌊ONE / 2^(q+1) · r / H⌋       with a = q·H + r, r < H;   0 from a = 8·H
    ρ(b)           = ONE − ⌊ONE / 2^(b+1)⌋

D is the decay of a statement that is a epochs old: it halves every H epochs, linearly in between. ρ is the conviction of a
ranking that did not change for b epochs: one half at first; each epoch adds half of the missing part.

All values are unsigned and rounded down. There are no floats, so every platform computes the same. Arrays are `numpy.uint64`.
Factors are at most ONE, so no intermediate value exceeds 2^64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

# A power of two: the product of two amounts below ONE fits 64 bits.
ONE: Final = 1 << 32
# After 2^-8 a statement counts as forgotten, so that stores can drop it.
HALVINGS: Final = 8

# Amounts in units of 1 / ONE, one per principal or edge.
Amounts: TypeAlias = NDArray[np.uint64]


def part(value: int, factor: int) -> int:
    """Return ⌊value · factor / ONE⌋ of non-negative integers."""
    return value * factor // ONE


def decay(age: int, horizon: int) -> int:
    """Return D(age), 0 … ONE. It never increases.

    `age`: epochs, at least 0.
    `horizon`: H, epochs, at least 1.
    """
    halvings, rest = divmod(age, horizon)
    if halvings >= HALVINGS:
        return 0
    return (ONE >> halvings) - (ONE >> (halvings + 1)) * rest // horizon


def conviction(unchanged: int) -> int:
    """Return ρ, ONE / 2 … ONE, of a ranking that has not changed for `unchanged` epochs. It never decreases."""
    return ONE - (ONE >> (unchanged + 1))


def table(function: Callable[[int], int], upto: int) -> Amounts:
    """Return the values of a function at 0 … `upto` - 1, for use as a lookup table. The values lie in 0 … 2^64 - 1."""
    return np.array([function(argument) for argument in range(upto)], dtype=np.uint64)


def parts(values: Amounts, factors: Amounts) -> Amounts:
    """Return `part` of each pair. Exact for values and factors of at most ONE."""
    shift = np.uint64(32)
    # Only ONE · ONE exceeds 64 bits, so that factor is handled apart.
    return np.where(factors == ONE, values, values * factors >> shift)
