"""Build the roll of an epoch: the principals that count in its decisions, with weights, and the credits earned in it.

The roll is one JCS blob. Every decision of the epoch names it.

    {"epoch", "electorate", "parameters": statement id, "cap": m*,
     "principals": [[principal, cluster, trust, weight, age, standing], …]   those with weight, sorted by name
     "credits": [{"principal", "amount", "reason", "topic", "document", "with": principal, "index": leaf, "shared", "earlier"}, …]
                                                                             of this epoch, in the order they were earned
     "reach": {"able", "pairs"},             sums of w · w' over pairs in a topic: that speak its consensus, and of all
     "omitted": {"principals", "credits"}}                                   the numbers of entries that did not fit

The cap, trust, weights, standing and amounts are decimal strings (units of 1 / `arithmetic.ONE`), the age is in epochs. A
development electorate has no trust ("0") and no age (0). `credit` explains the reasons, `shared` and `earlier`; with them, a
reader can check each amount.

A roll is no larger than `kinds.MAX_ROLL`, so that every epoch can be closed. It lists as many principals as fit into
`PRINCIPALS_SIZE` bytes, the heaviest first, ties by name; and as many credits as fit into `CREDITS_SIZE` bytes, in their
order. Omitted entries count too, and a replay recomputes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from .. import canonical
from .arithmetic import part
from .credit import EarnedCredits
from .electorate import Electorate

# Both sizes and the head together stay below `kinds.MAX_ROLL` (128 MiB).
PRINCIPALS_SIZE: Final = 96 * 1024 * 1024
CREDITS_SIZE: Final = 31 * 1024 * 1024


def roll(
    epoch: int,
    parameters_id: str,
    electorate: Electorate,
    standings: Mapping[str, int],
    credits: EarnedCredits,
    reach: tuple[int, int] | None = None,
) -> bytes:
    """Return the bytes of the roll.

    `standings`: principal → the sum of its faded credits at the end of the epoch.
    `credits`: those earned in the epoch.
    `reach`: the sums of w · w' of the pairs that speak a consensus, and of all; None under the rule before.
    """
    # If the list has to be cut, the lightest principals are omitted. The name makes the cut the same everywhere.
    heaviest = sorted(electorate.weights.items(), key=lambda item: (-item[1], item[0]))
    # Amounts do not depend on trust. Without this factor a principal with dust would have the quotas of a full voice.
    share = electorate.trust_share
    principals = (
        [
            principal,
            electorate.clusters[principal],
            str(electorate.trust.get(principal, 0)),
            str(weight),
            electorate.ages.get(principal, 0),
            str(part(standings.get(principal, 0), share(principal))),
        ]
        for principal, weight in heaviest
    )
    listed = _fitting(principals, PRINCIPALS_SIZE)
    earned = _fitting((credit.entry() for credit in credits), CREDITS_SIZE)
    by_name = [entry for _, entry in sorted(zip((principal for principal, _ in heaviest), listed, strict=False))]
    omitted = {"principals": len(heaviest) - len(listed), "credits": len(credits) - len(earned)}
    values: dict[str, object] = {
        "epoch": epoch,
        "electorate": "development" if electorate.terms is None else "open",
        "parameters": parameters_id,
        "cap": str(electorate.cap),
    } | ({"omitted": omitted} if any(omitted.values()) else {})
    if reach is not None:
        values["reach"] = {"able": str(reach[0]), "pairs": str(reach[1])}
    encoded = {name: canonical.dumps(value) for name, value in values.items()}
    lists = {"principals": canonical.join_array(by_name), "credits": canonical.join_array(earned)}
    return canonical.join_object(encoded | lists)


def _fitting(entries: Iterable[object], size: int) -> list[bytes]:
    """Return the first entries, encoded, that fit into `size` bytes of a JSON array, with a comma for each."""
    fitting = []
    for entry in entries:
        encoded = canonical.dumps(entry)
        size -= len(encoded) + 1
        if size < 0:
            break
        fitting.append(encoded)
    return fitting
