"""Vouches: the only edges that trust flows along.

A co-signed report is evidence and not trust: an open agent negotiates with any stranger, so reports are nearly free. A vouch is a
principal's own word for another one, and it is scarce:

- of the vouches of a principal p for a principal q, by whichever of p's DIDs, the newest counts, and it may say that p no longer
  stands for q;
- of the principals that p stands for, the `max_vouches` with the newest vouches are kept;
- p → q counts once p and q agreed, in reports, in `acquainted_epochs` different epochs;
- its strength is D(age of the vouch), so a vouch that nobody renews fades (`arithmetic.decay`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..kinds import Reputation, Vouch
from .arithmetic import HALVINGS, decay
from .principals import Voices
from .report import Pair


class _Word(NamedTuple):
    place: int
    epoch: int
    withdrawn: bool


@dataclass
class Vouches:
    """All vouches of a log. Mutable: `add` in the order of the leaves."""

    _words: defaultdict[str, dict[str, _Word]] = field(default_factory=lambda: defaultdict(dict))
    _count: int = 0

    def add(self, author: str, vouch: Vouch, epoch: int) -> None:
        """Take in an admitted vouch by the DID `author`, logged in `epoch`."""
        self._words[author][vouch.to] = _Word(self._count, epoch, vouch.withdrawn)
        self._count += 1

    def edges(
        self, epoch: int, voices: Voices, acquainted: Mapping[Pair, int], terms: Reputation, horizon: int
    ) -> dict[tuple[str, str], int]:
        """The strength of each vouch that counts at the end of `epoch`: (who vouches, for whom) → 1 … ONE.

        `acquainted`: in how many epochs two principals agreed.
        """
        strengths = [decay(age, horizon) for age in range(HALVINGS * horizon + 1)]
        edges = {}
        for principal, words in self._by_principal(voices).items():
            kept = [(other, word) for other, word in words.items() if not word.withdrawn]
            if len(kept) > terms.max_vouches:
                kept.sort(key=lambda item: item[1].place, reverse=True)
                del kept[terms.max_vouches :]
            for other, word in kept:
                strength = strengths[min(epoch - word.epoch, HALVINGS * horizon)]
                if strength and acquainted.get(Pair.of(principal, other), 0) >= terms.acquainted_epochs:
                    edges[principal, other] = strength
        return edges

    def _by_principal(self, voices: Voices) -> dict[str, dict[str, _Word]]:
        """For each principal, the newest word about every other one."""
        newest: defaultdict[str, dict[str, _Word]] = defaultdict(dict)
        for author, words in self._words.items():
            principal = voices.principal_of(author)
            if principal is None:
                continue
            for did, word in words.items():
                other = voices.principal_of(did)
                if other is None or other == principal:
                    continue
                known = newest[principal].get(other)
                if known is None or known.place < word.place:
                    newest[principal][other] = word
        return dict(newest)
