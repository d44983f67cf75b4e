"""Determine the electorate of an epoch: the principals that count, their weights and their clusters.

*Development*: every DID with a domain and a logged identity is one principal, weighs ONE, and is a cluster of its own.

*Open*: a principal is a registrable domain (`principals`). Trust starts from the anchors and flows along vouches (`vouch`,
`trust`). The weight of a principal is its trust, capped so that a few principals do not outweigh the rest, times its age
(`reputation`). Principals whose trust comes from the same side form one cluster (`provenance`). In a topic, the weight grows
with the number of counterparties there. Counterparties with almost no trust do not count.

In both, a principal that equivocated weighs nothing for `horizon_epochs` (`report`).

Specification: `docs/specification/election.md`, sections 1 and 2.
"""

from __future__ import annotations

from collections import defaultdict
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
from .report import Tally
from .reputation import base_weight, bounded_trust, eligible_counterparties, in_topic
from .trust import graph, seed


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
    `vouches`: principal → the principals that it vouches for.
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
    vouches: Mapping[str, AbstractSet[str]] | None = None
    terms: Reputation | None = None

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
        enough, counterparties = self.terms.counterparties, self.eligible_counterparties
        met: defaultdict[str, set[str]] = defaultdict(set)
        for pairs in tally.pairs.values():
            for one, other in pairs:
                # More counterparties than `enough` change nothing, so the sets stay small.
                if other in counterparties and len(met[one]) < enough:
                    met[one].add(other)
                if one in counterparties and len(met[other]) < enough:
                    met[other].add(one)
        weights = {principal: in_topic(self.weights[principal], len(others), enough) for principal, others in sorted(met.items())}
        return {principal: weight for principal, weight in weights.items() if weight}


def electorate_of(evidence: Evidence, epoch: int, parameters: Parameters, anchors: Sequence[str] | None = None) -> Electorate:
    """Return the electorate at the end of `epoch`.

    `evidence`: its directory already reads domains by the suffix list of the parameters.
    `anchors`: replaces the anchors of the parameters.
    """
    directory, horizon = evidence.directory, parameters.horizon_epochs
    # Binds the decision to the identities that it counted, without listing them.
    identities_root = digest_of(sorted(evidence.identities.items()))
    ages = _ages(evidence, epoch)
    barred = evidence.reports.barred(epoch, horizon, directory)
    terms = parameters.reputation
    if terms is None:
        weights = {principal: ONE for principal in ages if principal not in barred}
        return Electorate(directory, identities_root, weights, {principal: principal for principal in weights})
    chosen = terms.anchors if anchors is None else anchors
    edges = evidence.vouches.edges(epoch, directory, evidence.reports.acquainted(directory), terms, horizon)
    known: defaultdict[str, set[str]] = defaultdict(set)
    for one, other in edges:
        known[one].add(other)
    # A principal without a logged identity has no age, so it can neither lend nor receive trust.
    vouched = graph(ages, {(one, other): strength for (one, other), strength in edges.items() if one in ages and other in ages})
    trusted, flows, trust_cap = bounded_trust(
        vouched,
        seed(vouched, chosen),
        rounds=terms.rounds,
        least=terms.least_vouches,
        cap_share=terms.cap_share,
        loan_share=terms.loan_share,
    )
    weighed = base_weight(trusted, trust_cap, np.array(list(ages.values()), dtype=np.int64), terms.mature_epochs)
    clusters = provenance.clusters(vouched, flows, chosen)
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
        tuple(sorted(chosen)),
        dict(zip(vouched.principals, trusted.tolist(), strict=True)),
        ages,
        trust_cap,
        frozenset(principal for principal, counted in zip(vouched.principals, counts.tolist(), strict=True) if counted),
        known,
        terms,
    )


def _ages(evidence: Evidence, epoch: int) -> dict[str, int]:
    """Return principal → age for all principals with a logged identity, sorted by name. The current epoch counts."""
    first: dict[str, int] = {}
    for did, appeared in evidence.appeared.items():
        principal = evidence.directory.principal_of(did)
        if principal is not None:
            first[principal] = min(appeared, first.get(principal, appeared))
    return {principal: epoch - first[principal] + 1 for principal in sorted(first)}


def digest_of(entries: Iterable[object]) -> str:
    """Return SHA-256 of the JCS of a list, in hexadecimal."""
    return canonical.hex_digest(canonical.dumps(list(entries)))
