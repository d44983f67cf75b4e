"""Build the roll of an epoch: the principals that count in its decisions, with weights, and the credits earned in it.

The roll is one JCS blob. Every decision of the epoch names it.

    {"epoch", "electorate", "parameters": statement id, "cap": m*,
     "principals": [[principal, cluster, trust, weight, age, standing], …]   those with weight, sorted by name
     "credits": [{"principal", "amount", "reason", "topic", "document", "with": principal, "index": leaf, "shared", "earlier"}, …]
                                                                             of this epoch, in the order they were earned
     "omitted": {"principals", "credits"}}                                   the numbers of entries that did not fit

The cap, trust, weights, standing and amounts are decimal strings (units of 1 / `arithmetic.ONE`), the age is in epochs. A
development electorate has no trust ("0") and no age (0). `credit` explains the reasons, `shared` and `earlier`; with them, a
reader can check each amount.

A roll is no larger than `kinds.MAX_ROLL`, so that every epoch can be closed. It lists as many principals as fit into
`PRINCIPALS_SIZE` bytes, the heaviest first, ties by name; and as many credits as fit into `CREDITS_SIZE` bytes, in their
order. Omitted entries count too, and a replay recomputes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from .. import canonical
from .arithmetic import part
from .credit import EarnedCredit
from .electorate import Electorate

# Both sizes and the head together stay below `kinds.MAX_ROLL` (128 MiB).
PRINCIPALS_SIZE: Final = 96 * 1024 * 1024
CREDITS_SIZE: Final = 31 * 1024 * 1024
# No entry has more bytes: two DIDs, a topic, a digest and a few numbers. Below this bound nothing has to be measured.
_WIDEST: Final = 1024

_T = TypeVar("_T")


def roll(
    epoch: int,
    parameters_id: str,
    electorate: Electorate,
    standings: Mapping[str, int],
    credits: Iterable[EarnedCredit],
) -> bytes:
    """Return the bytes of the roll.

    `standings`: principal → the sum of its faded credits at the end of the epoch.
    `credits`: those earned in the epoch.
    """
    principals = [
        [
            principal,
            electorate.clusters[principal],
            str(electorate.trust.get(principal, 0)),
            str(weight),
            electorate.ages.get(principal, 0),
            # Amounts do not depend on trust. Without this factor a principal with dust would have the quotas of a full voice.
            str(part(standings.get(principal, 0), electorate.trust_share(principal))),
        ]
        # If the list has to be cut, the lightest principals are omitted. The name makes the cut the same everywhere.
        for principal, weight in sorted(electorate.weights.items(), key=lambda item: (-item[1], item[0]))
    ]
    earned = [credit.entry() for credit in credits]
    listed, listed_credits = _fitting(principals, PRINCIPALS_SIZE), _fitting(earned, CREDITS_SIZE)
    omitted = {"principals": len(principals) - len(listed), "credits": len(earned) - len(listed_credits)}
    return canonical.dumps(
        {
            "epoch": epoch,
            "electorate": "development" if electorate.terms is None else "open",
            "parameters": parameters_id,
            "cap": str(electorate.cap),
            "principals": sorted(listed),
            "credits": listed_credits,
        }
        | ({"omitted": omitted} if any(omitted.values()) else {})
    )


def _fitting(entries: list[_T], size: int) -> list[_T]:
    """Return the first entries that fit into `size` bytes of a JSON array."""
    return entries if len(entries) * _WIDEST <= size else list(_taken(entries, size))


def _taken(entries: list[_T], size: int) -> Iterator[_T]:
    for entry in entries:
        size -= len(canonical.dumps(entry)) + 1
        if size < 0:
            return
        yield entry
