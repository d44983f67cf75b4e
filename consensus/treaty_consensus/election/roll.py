"""The roll of an epoch: who counts in its decisions and for how much, and what each earned by reporting. One JCS blob, which
every decision of the epoch names.

    {"epoch", "electorate", "parameters": statement id, "cap": m*,
     "principals": [[principal, cluster, trust, weight, age, standing], …]   whoever weighs something, in order
     "credits": [{"principal", "amount", "reason", "topic", "document", "with": principal, "index": leaf, "shared", "earlier"}, …]
                                                                             of this epoch, in the order they were earned

The cap, trust, weights, standing and amounts are decimal strings (units of 1 / `arithmetic.ONE`), the age is in epochs. A
development electorate has no trust ("0") and no age (0). `credit` says what the reasons are, and what `shared` and `earlier`
count; with them each amount can be checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .. import canonical
from .credit import Earned
from .electorate import Electorate


def roll(
    epoch: int,
    parameters_id: str,
    electorate: Electorate,
    standings: Mapping[str, int],
    credits: Iterable[Earned],
) -> bytes:
    """The roll. `standings`: of every principal that has any at the end of the epoch; `credits`: those that were earned in it."""
    return canonical.dumps(
        {
            "epoch": epoch,
            "electorate": "development" if electorate.terms is None else "open",
            "parameters": parameters_id,
            "cap": str(electorate.cap),
            "principals": [
                [
                    principal,
                    electorate.clusters[principal],
                    str(electorate.trust.get(principal, 0)),
                    str(weight),
                    electorate.ages.get(principal, 0),
                    str(standings.get(principal, 0)),
                ]
                for principal, weight in sorted(electorate.weights.items())
            ],
            "credits": [credit.entry() for credit in credits],
        }
    )
