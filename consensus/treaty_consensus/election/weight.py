"""Whose word weighs how much, and which principals count as one voice.

Weights are integers in units of 1 / ONE. This is the *development* electorate: every DID with a domain is one principal, weighs
ONE and is a cluster of its own. A did:key, an IP address and a host of a single label stand for nobody: they weigh nothing.
Whoever equivocates weighs nothing for `horizon_epochs` (see `report`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from ..did import Did, parse_did

ONE = 1 << 32


def principal_of(did: Did) -> str | None:
    """The principal that a DID speaks for, or None when it speaks for nobody."""
    return did.principal(lambda _host: did.text)


def weights(identities: Iterable[str], barred: AbstractSet[str]) -> dict[str, int]:
    """The weight of each principal behind the DIDs that the log knows, in the order of their names; whoever is `barred` has
    none."""
    principals = {principal_of(parse_did(text)) for text in identities}
    return {principal: ONE for principal in sorted(p for p in principals if p is not None) if principal not in barred}


def clusters(weights: Mapping[str, int]) -> dict[str, str]:
    """The cluster of each principal that weighs something."""
    return {principal: principal for principal in weights}


def total(principals: AbstractSet[str], weights: Mapping[str, int]) -> int:
    """The sum of their weights."""
    return sum(weights.get(principal, 0) for principal in principals)
