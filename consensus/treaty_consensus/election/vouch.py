"""Select the vouches that count, and compute their strength.

Trust flows along vouches only. A co-signed report is evidence, not trust: an open agent negotiates with any stranger, so
reports cost almost nothing. A vouch is a principal's own statement for another principal, and it is scarce:

- Of all vouches of principal p for principal q, by any DID of p, the newest counts. It may withdraw the vouch.
- Of the principals that p vouches for, the `max_vouches` with the newest vouches are kept.
- p → q counts once p and q agreed, in reports, in `acquainted_epochs` different epochs.
- Its strength is D(age of the vouch), so a vouch fades unless it is renewed (`arithmetic.decay`).

Specification: `docs/specification/election.md`, section 2. Vouches are stored in columns as they are logged, and selected
together at the end of an epoch.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..kinds import Reputation, Vouch
from .arithmetic import HALVINGS, Amounts, decay, table
from .principals import PrincipalDirectory
from .report import Acquaintance, Column


class CountedVouches(NamedTuple):
    """Hold the vouches that count, one row each. `voucher`, `vouched`: numbers of principals in the directory. `strength`: 1 …
    ONE."""

    voucher: Column
    vouched: Column
    strength: Amounts


class SavedVouches(msgspec.Struct, frozen=True, array_like=True):
    """Hold the contents of `Vouches`, its columns as bytes."""

    count: int
    columns: list[bytes]
    withdrawn: bytes


@dataclass
class Vouches:
    """Store the newest vouch of each DID for each other one, in columns. Mutable: `add` in the order of the leaves."""

    directory: PrincipalDirectory
    _count: int = 0
    _rows: dict[int, int] = field(default_factory=dict)
    _author: array[int] = field(default_factory=lambda: array("q"))
    _to: array[int] = field(default_factory=lambda: array("q"))
    _place: array[int] = field(default_factory=lambda: array("q"))
    _epoch: array[int] = field(default_factory=lambda: array("q"))
    _withdrawn: bytearray = field(default_factory=bytearray)

    def add(self, author: str, vouch: Vouch, epoch: int) -> None:
        """Add an admitted vouch by the DID `author`, logged in `epoch`."""
        one, other = self.directory.number(author), self.directory.number(vouch.to)
        # One integer for both: a million tuples would need a hundred megabytes more.
        row = self._rows.setdefault(one << 32 | other, len(self._place))
        if row == len(self._place):
            self._author.append(one)
            self._to.append(other)
            self._place.append(self._count)
            self._epoch.append(epoch)
            self._withdrawn.append(vouch.withdrawn)
        else:
            self._place[row], self._epoch[row], self._withdrawn[row] = self._count, epoch, vouch.withdrawn
        self._count += 1

    def saved(self) -> SavedVouches:
        """Return the contents."""
        return SavedVouches(self._count, [column.tobytes() for column in self._columns()], bytes(self._withdrawn))

    def restore(self, saved: SavedVouches) -> None:
        """Take over saved contents. The store must be new."""
        self._count, self._withdrawn = saved.count, bytearray(saved.withdrawn)
        for column, data in zip(self._columns(), saved.columns, strict=True):
            column.frombytes(data)
        self._rows = {one << 32 | other: row for row, (one, other) in enumerate(zip(self._author, self._to, strict=True))}

    def _columns(self) -> tuple[array[int], ...]:
        return self._author, self._to, self._place, self._epoch

    def counted(
        self,
        epoch: int,
        acquainted: Acquaintance,
        terms: Reputation,
        horizon: int,
        begun: Mapping[str, int] = MappingProxyType({}),
    ) -> CountedVouches:
        """Return the vouches that count at the end of `epoch`.

        `begun`: principal → the epoch in which its tenure began; earlier vouches by it and for it do not count.
        """
        place, logged = np.array(self._place, dtype=np.int64), np.array(self._epoch, dtype=np.int64)
        voucher = self.directory.owners(np.array(self._author, dtype=np.int64))
        vouched = self.directory.owners(np.array(self._to, dtype=np.int64))
        rows = np.flatnonzero((voucher >= 0) & (vouched >= 0) & (voucher != vouched))
        # Several DIDs may act for one principal; the newest vouch in the log replaces the others.
        pair = voucher * self.directory.size + vouched
        rows = rows[np.lexsort((-place[rows], pair[rows]))]
        rows = rows[_differs(pair[rows])]
        rows = rows[np.array(self._withdrawn, dtype=np.uint8)[rows] == 0]
        if begun:
            # The last element of `places` stands for a DID without a principal.
            started = np.array([*begun.values(), -1], dtype=np.int64)[self.directory.places([*begun])]
            rows = rows[np.maximum(started[voucher[rows]], started[vouched[rows]]) < logged[rows]]
        # The newest vouches stay. Their place in the log orders them, not their epoch, so that there are no ties.
        rows = rows[np.lexsort((-place[rows], voucher[rows]))]
        starts = np.flatnonzero(_differs(voucher[rows]))
        earlier = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
        rows = rows[earlier < terms.max_vouches]
        # One table for all vouches: there are at most HALVINGS · H different ages.
        strengths = table(lambda age: decay(age, horizon), HALVINGS * horizon + 1)
        strength = strengths[np.minimum(epoch - logged[rows], HALVINGS * horizon)]
        counts = (strength > 0) & (acquainted.between(voucher[rows], vouched[rows]) >= terms.acquainted_epochs)
        return CountedVouches(voucher[rows[counts]], vouched[rows[counts]], strength[counts])


def _differs(column: Column) -> NDArray[np.bool_]:
    """Tell of each row whether it differs from the row before."""
    differs: NDArray[np.bool_] = np.diff(column, prepend=-1) != 0
    return differs
