"""The roll of an epoch: who counts in its decisions and for how much, and what each earned by reporting. One JCS blob, which
every decision of the epoch names.

    {"epoch", "electorate", "parameters": statement id, "cap": m*,
     "principals": [[principal, cluster, trust, weight, age, standing], …]   whoever weighs something, in order
     "credits": [{"principal", "amount", "reason", "topic", "document", "with": principal, "index": leaf, "shared", "earlier"}, …]
                                                                             of this epoch, in the order they were earned
     "omitted": {"principals", "credits"}}                                   how many, where there is no room for all

The cap, trust, weights, standing and amounts are decimal strings (units of 1 / `arithmetic.ONE`), the age is in epochs. A
development electorate has no trust ("0") and no age (0). `credit` says what the reasons are, and what `shared` and `earlier`
count; with them each amount can be checked.

A roll is no larger than `kinds.MAX_ROLL`, so that every epoch can be closed: it lists as many principals as `PRINCIPALS_SIZE`
bytes hold, the heaviest, of equal ones the first by name, and as many credits as `CREDITS_SIZE` bytes hold, the first. All of
them count nevertheless, and a replay gives the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from .. import canonical
from .credit import Earned
from .electorate import Electorate

PRINCIPALS_SIZE: Final = 96 * 1024 * 1024
CREDITS_SIZE: Final = 31 * 1024 * 1024
_WIDEST: Final = 1024
"""No entry has more bytes than that: two DIDs, a topic, a digest and a few numbers."""

_T = TypeVar("_T")


def roll(
    epoch: int,
    parameters_id: str,
    electorate: Electorate,
    standings: Mapping[str, int],
    credits: Iterable[Earned],
) -> bytes:
    """The roll. `standings`: of every principal that has any at the end of the epoch; `credits`: those that were earned in it."""
    principals = [
        [
            principal,
            electorate.clusters[principal],
            str(electorate.trust.get(principal, 0)),
            str(weight),
            electorate.ages.get(principal, 0),
            str(standings.get(principal, 0)),
        ]
        for principal, weight in sorted(electorate.weights.items(), key=lambda item: (-item[1], item[0]))
    ]
    earned = [credit.entry() for credit in credits]
    listed, told = _fitting(principals, PRINCIPALS_SIZE), _fitting(earned, CREDITS_SIZE)
    omitted = {"principals": len(principals) - len(listed), "credits": len(earned) - len(told)}
    return canonical.dumps(
        {
            "epoch": epoch,
            "electorate": "development" if electorate.terms is None else "open",
            "parameters": parameters_id,
            "cap": str(electorate.cap),
            "principals": sorted(listed),
            "credits": told,
        }
        | ({"omitted": omitted} if any(omitted.values()) else {})
    )


def _fitting(entries: list[_T], size: int) -> list[_T]:
    """The first of the entries, as many as `size` bytes of a JSON array hold."""
    return entries if len(entries) * _WIDEST <= size else list(_taken(entries, size))


def _taken(entries: list[_T], size: int) -> Iterator[_T]:
    for entry in entries:
        size -= len(canonical.dumps(entry)) + 1
        if size < 0:
            return
        yield entry
