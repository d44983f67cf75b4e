"""Determine the electorate of an epoch: the principals that count, their weights and their clusters.

*Development*: every DID with a domain and a logged identity is one principal, weighs ONE, and is a cluster of its own.

*Open*: a principal is a registrable domain (`principals`). Trust starts from the anchors and flows along vouches (`vouch`,
`trust`). The weight of a principal is its trust, capped so that a few principals do not outweigh the rest, times its age
(`reputation`). Principals whose trust comes from the same side form one cluster (`provenance`). In a topic, the weight grows
with the number of counterparties there. Counterparties with almost no trust do not count.

In both, a principal that equivocated weighs nothing for `horizon_epochs` (`report`), and one whose root DID begins a new tenure
begins anew: what it did and got before does not count.

Specification: `docs/specification/election.md`, sections 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from .. import canonical
from ..kinds import Parameters, Reputation
from . import provenance
from .arithmetic import ONE
from .evidence import Evidence
from .principals import PrincipalDirectory
from .report import Tally, distinct
from .reputation import base_weight, bounded_trust, eligible_counterparties, in_topic
from .trust import Graph, graph_of, seed


@dataclass(frozen=True)
class Electorate:
    """Hold the electorate of an epoch.

    The fields after `clusters` describe an open electorate; in a development electorate they are empty, 0 or None.

    `identities_root`: SHA-256 of the JCS of the sorted [[DID, identity statement id], …], hexadecimal.
    `weights`: principal → weight, 1 … ONE, sorted by name.
    `clusters`: principal → its cluster.
    `trust`: principal → trust in units of 1 / ONE of the total.
    `ages`: principal → age in epochs.
    `cap`: the trust that gives full weight.
    `eligible_counterparties`: the principals that count as counterparties in a topic.
    `vouches`: those that count.
    `begun`: principal → the epoch in which its present tenure began; absent for a first tenure. Nothing that it did or got before
    counts. Empty under the rule before.
    """

    directory: PrincipalDirectory
    identities_root: str
    weights: Mapping[str, int]
    clusters: Mapping[str, str]
    anchors: Sequence[str] = ()
    trust: Mapping[str, int] = field(default_factory=dict)
    ages: Mapping[str, int] = field(default_factory=dict)
    cap: int = 0
    eligible_counterparties: AbstractSet[str] = frozenset()
    vouches: Graph | None = None
    terms: Reputation | None = None
    begun: Mapping[str, int] = field(default_factory=dict)

    @property
    def eligible(self) -> AbstractSet[str]:
        """Return the principals that open a topic by reporting or voting there.

        In an open electorate these are the eligible counterparties that weigh something; in a development electorate, all
        principals.
        """
        return self.weights.keys() if self.terms is None else self.weights.keys() & self.eligible_counterparties

    def trust_share(self, principal: str) -> int:
        """Return the trust of a principal as a part of the cap, 0 … ONE; ONE in a development electorate."""
        if self.terms is None:
            return ONE
        return min(self.trust.get(principal, 0), self.cap) * ONE // self.cap if self.cap else 0

    def in_topic(self, tally: Tally) -> Mapping[str, int]:
        """Return principal → weight in a topic with these reports. Principals without weight there are left out."""
        if self.terms is None:
            return self.weights
        enough, names, pairs = self.terms.counterparties, tally.principals, tally.agreed
        # Each pair once: it may have agreed on several documents.
        keys = distinct(pairs.first * len(names) + pairs.second)
        one, other = keys // max(len(names), 1), keys % max(len(names), 1)
        counts = np.array([name in self.eligible_counterparties for name in names], dtype=bool)
        met = np.bincount(one[counts[other]], minlength=len(names)) + np.bincount(other[counts[one]], minlength=len(names))
        weights = {name: in_topic(self.weights[name], number, enough) for name, number in zip(names, met.tolist(), strict=True)}
        return {principal: weight for principal, weight in weights.items() if weight}


def electorate_of(
    evidence: Evidence, epoch: int, parameters: Parameters, named: int = 0, anchors: Sequence[str] | None = None
) -> Electorate:
    """Return the electorate at the end of `epoch`.

    `evidence`: its directory already reads domains by the suffix list of the parameters.
    `named`: the epoch in which the parameters were logged.
    `anchors`: replaces the anchors of the parameters.
    """
    directory, horizon = evidence.directory, parameters.horizon_epochs
    # Binds the decision to the identities that it counted, without listing them.
    identities_root = digest_of(sorted(evidence.identities.items()))
    begun = {} if parameters.is_v2 else _tenures(evidence)
    ages = _ages(evidence, epoch, None if parameters.is_v2 else begun)
    barred = evidence.reports.barred(epoch, horizon)
    terms = parameters.reputation
    if terms is None:
        weights = {principal: ONE for principal in ages if principal not in barred}
        clusters = {principal: principal for principal in weights}
        return Electorate(directory, identities_root, weights, clusters, begun=begun)
    anchors_in_force = terms.anchors if anchors is None else anchors
    # Who named an anchor meant its owner of then. The share of a lapsed one is dropped, as that of an absent one is.
    lapsed = {anchor for anchor in anchors_in_force if anchors is None and begun.get(anchor, -1) > named}
    vouched = _vouches(evidence, epoch, tuple(ages), terms, horizon, begun)
    seeds = seed(vouched, anchors_in_force)
    seeds[[place for place in vouched.places([*lapsed]).tolist() if place >= 0]] = 0
    trusted, flows, trust_cap = bounded_trust(
        vouched,
        seeds,
        rounds=terms.rounds,
        least=terms.least_vouches,
        cap_share=terms.cap_share,
        loan_share=terms.loan_share,
        rule=parameters.rule,
    )
    weighed = base_weight(trusted, trust_cap, np.array(list(ages.values()), dtype=np.int64), terms.mature_epochs)
    clusters = provenance.clusters(vouched, flows, [anchor for anchor in anchors_in_force if anchor not in lapsed])
    weights = {
        principal: weight
        for principal, weight in zip(vouched.principals, weighed.tolist(), strict=True)
        # An equivocator keeps its trust and its age: it is barred for a time, and its vouches still count.
        if weight and principal in clusters and principal not in barred
    }
    counts = eligible_counterparties(trusted, trust_cap, terms.counterparty_share)
    return Electorate(
        directory,
        identities_root,
        weights,
        {principal: clusters[principal] for principal in weights},
        tuple(sorted(anchors_in_force)),
        dict(zip(vouched.principals, trusted.tolist(), strict=True)),
        ages,
        trust_cap,
        frozenset(principal for principal, counted in zip(vouched.principals, counts.tolist(), strict=True) if counted),
        vouched,
        terms,
        begun,
    )


def _vouches(
    evidence: Evidence, epoch: int, principals: tuple[str, ...], terms: Reputation, horizon: int, begun: Mapping[str, int]
) -> Graph:
    """Return the vouches that count between these principals, those with a logged identity.

    A principal without one has no age, so it can neither lend nor receive trust.
    """
    counted = evidence.vouches.counted(epoch, evidence.reports.acquainted(), terms, horizon, begun)
    places = evidence.directory.places(principals)
    return graph_of(principals, places[counted.voucher], places[counted.vouched], counted.strength)


def _tenures(evidence: Evidence) -> dict[str, int]:
    """Return principal → the epoch in which the newest tenure of one of its root DIDs began, where that is not the first."""
    begun: dict[str, int] = {}
    for did, epoch in evidence.restarted.items():
        principal = evidence.directory.principal_of(did)
        if principal is not None and _is_root(did, principal):
            begun[principal] = max(epoch, begun.get(principal, epoch))
    return begun


def _ages(evidence: Evidence, epoch: int, begun: Mapping[str, int] | None) -> dict[str, int]:
    """Return principal → age for all principals with a logged identity, sorted by name. The current epoch counts.

    `begun`: principal → the epoch in which its tenure began. With None, the age of a DID with a grant counts too.
    """
    first: dict[str, int] = {}
    for did, appeared in evidence.appeared.items():
        principal = evidence.directory.principal_of(did)
        # A grant makes no domain older: who buys one could grant it to an old DID.
        if principal is not None and (begun is None or _is_root(did, principal)):
            first[principal] = min(appeared, first.get(principal, appeared))
    first |= {principal: begun[principal] for principal in first.keys() & (begun or {}).keys() if begun}
    return {principal: epoch - first[principal] + 1 for principal in sorted(first)}


def _is_root(did: str, principal: str) -> bool:
    """Tell whether a DID is its principal itself, and not one that speaks by a grant."""
    return did == principal or (did[8:] == principal and did.startswith(("did:wba:", "did:web:")))


def digest_of(entries: Iterable[object]) -> str:
    """Return SHA-256 of the JCS of a list, in hexadecimal."""
    return canonical.hex_digest(canonical.dumps(list(entries)))
