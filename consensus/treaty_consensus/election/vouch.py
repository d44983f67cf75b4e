"""Select the vouches that count, and compute their strength.

Trust flows along vouches only. A co-signed report is evidence, not trust: an open agent negotiates with any stranger, so
reports cost almost nothing. A vouch is a principal's own statement for another principal, and it is scarce:

- Of all vouches of principal p for principal q, by any DID of p, the newest counts. It may withdraw the vouch.
- Of the principals that p vouches for, the `max_vouches` with the newest vouches are kept.
- p → q counts once p and q agreed, in reports, in `acquainted_epochs` different epochs.
- Its strength is D(age of the vouch), so a vouch fades unless it is renewed (`arithmetic.decay`).

Specification: `docs/specification/election.md`, section 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..kinds import Reputation, Vouch
from .arithmetic import HALVINGS, decay
from .principals import PrincipalDirectory
from .report import Pair


class _Vouched(NamedTuple):
    place: int
    epoch: int
    withdrawn: bool


@dataclass
class Vouches:
    """Store all vouches of a log. Mutable: `add` in the order of the leaves."""

    _newest: defaultdict[str, dict[str, _Vouched]] = field(default_factory=lambda: defaultdict(dict))
    _count: int = 0

    def add(self, author: str, vouch: Vouch, epoch: int) -> None:
        """Add an admitted vouch by the DID `author`, logged in `epoch`."""
        self._newest[author][vouch.to] = _Vouched(self._count, epoch, vouch.withdrawn)
        self._count += 1

    def edges(
        self, epoch: int, directory: PrincipalDirectory, acquainted: Mapping[Pair, int], terms: Reputation, horizon: int
    ) -> dict[tuple[str, str], int]:
        """Return the strength of each vouch that counts at the end of `epoch`: (voucher, vouched) → 1 … ONE.

        `acquainted`: pair → the number of epochs in which the two principals agreed.
        """
        # One table for all vouches: there are at most HALVINGS · H different ages.
        strengths = [decay(age, horizon) for age in range(HALVINGS * horizon + 1)]
        edges = {}
        for principal, vouches in self._by_principal(directory).items():
            kept = [(other, vouch) for other, vouch in vouches.items() if not vouch.withdrawn]
            # The newest vouches stay. Their place in the log orders them, not their epoch, so that there are no ties.
            if len(kept) > terms.max_vouches:
                kept.sort(key=lambda item: item[1].place, reverse=True)
                del kept[terms.max_vouches :]
            for other, vouch in kept:
                strength = strengths[min(epoch - vouch.epoch, HALVINGS * horizon)]
                if strength and acquainted.get(Pair.of(principal, other), 0) >= terms.acquainted_epochs:
                    edges[principal, other] = strength
        return edges

    def _by_principal(self, directory: PrincipalDirectory) -> dict[str, dict[str, _Vouched]]:
        """Return for each principal its newest vouch for every other principal."""
        newest: defaultdict[str, dict[str, _Vouched]] = defaultdict(dict)
        for author, vouches in self._newest.items():
            principal = directory.principal_of(author)
            if principal is None:
                continue
            for did, vouch in vouches.items():
                other = directory.principal_of(did)
                if other is None or other == principal:
                    continue
                # Several DIDs may act for one principal; the newest vouch in the log replaces the others.
                known = newest[principal].get(other)
                if known is None or known.place < vouch.place:
                    newest[principal][other] = vouch
        return dict(newest)
