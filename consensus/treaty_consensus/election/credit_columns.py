"""Keep claims and credits in columns: one array of integers for each field. Facts and names are numbers.

A *fact* is a document in a topic. Names are those of principals and of clusters.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .report import Column

EMPTY: Final[Column] = np.zeros(0, dtype=np.int64)
# Two numbers of names, or of a fact and a name, make one key.
_NAME_BITS: Final = 32


class CreditColumns(NamedTuple):
    """Hold credits, a row each, as `EarnedCredit`. Facts and names are numbers.

    `elected`: 1 if the reason is `elected`.
    `settled`: 1 if the reason is `reported`, and the election of the document was paid too.
    """

    principal: Column = EMPTY
    amount: Column = EMPTY
    elected: Column = EMPTY
    fact: Column = EMPTY
    corroborator: Column = EMPTY
    leaf: Column = EMPTY
    epoch: Column = EMPTY
    shared: Column = EMPTY
    earlier: Column = EMPTY
    settled: Column = EMPTY


class ClaimColumns(NamedTuple):
    """Hold claims that may still earn, a row each, by fact; those of a fact in the order of the log.

    `first`, `second`: the pair, sorted by name. `earlier`: k.
    """

    fact: Column = EMPTY
    epoch: Column = EMPTY
    leaf: Column = EMPTY
    first: Column = EMPTY
    second: Column = EMPTY
    earlier: Column = EMPTY


class ReportingColumns(NamedTuple):
    """Hold the clusters that have reported each fact, a row for a fact and a cluster."""

    fact: Column = EMPTY
    cluster: Column = EMPTY


class SharedColumns(NamedTuple):
    """Hold how many credits each principal shared with each corroborator. `pair`: both numbers in one, sorted."""

    pair: Column = EMPTY
    credits: Column = EMPTY

    def of(self, pairs: Column) -> Column:
        """Return the number of each pair, 0 for an unknown one."""
        if not len(self.pair):
            return np.zeros(len(pairs), dtype=np.int64)
        place = np.minimum(np.searchsorted(self.pair, pairs), len(self.pair) - 1)
        return np.where(self.pair[place] == pairs, self.credits[place], 0)

    def updated(self, pairs: Column, credits: Column) -> SharedColumns:
        """Return the numbers with those of some pairs replaced. `pairs`: distinct."""
        some = credits > 0
        # Of equal pairs the first counts, which is the new one.
        pair, first = np.unique(np.concatenate([pairs[some], self.pair]), return_index=True)
        return SharedColumns(pair, np.concatenate([credits[some], self.credits])[first])


_Columns = TypeVar("_Columns", CreditColumns, ClaimColumns, ReportingColumns)


def paired(one: Column, other: Column) -> Column:
    """Return one number for both numbers of each row. They sort as the pairs do."""
    return one << _NAME_BITS | other


def split(pairs: Column) -> tuple[Column, Column]:
    """Return both numbers that `paired` made one."""
    return pairs >> _NAME_BITS, pairs & ((1 << _NAME_BITS) - 1)


def joined(one: _Columns, other: _Columns) -> _Columns:
    """Return the rows of both."""
    return type(one)(*(np.concatenate(both) for both in zip(one, other, strict=True)))


def chosen(columns: _Columns, rows: NDArray[np.bool_] | Column) -> _Columns:
    """Return these rows."""
    return type(columns)(*(column[rows] for column in columns))


def renumbered(columns: _Columns, places: Column) -> _Columns:
    """Return the columns with the new place of each fact."""
    return columns._replace(fact=places[columns.fact])
