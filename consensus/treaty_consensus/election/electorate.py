"""The electorate: who counts at the end of an epoch, for how much, and which principals count as one voice.

*Development*: every DID with a domain that the log has an identity of is one principal, weighs ONE, and is a cluster of its own.

*Open*: a principal is a registrable domain (`principals`). Trust starts from the anchors and flows along vouches (`vouch`,
`trust`); what a principal weighs is its trust, capped so that no few of them outweigh the rest, times its age (`reputation`);
whose trust comes from the same side is one cluster (`provenance`). In a topic a principal weighs the more of that, the more
counterparties it has there, those with next to no trust not counted.

Whoever equivocated weighs nothing for `horizon_epochs` (`report`), in both.
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
from .principals import Voices
from .report import Tally
from .reputation import audible, base_weight, in_topic, settle
from .trust import graph, seed


@dataclass(frozen=True)
class Electorate:
    """Who counts in an epoch.

    `identities_root`: SHA-256 of the JCS of the sorted [[DID, identity statement id], …], hexadecimal. `weights`: principal →
    weight, 1 … ONE, in the order of the names; `clusters`: the cluster of each of them. Of an open electorate also its
    `anchors`; `trust`, in units of 1 / ONE of all of it; `ages`, in epochs; `cap`, what a principal's trust counts for at
    most; `audible`: whom it counts in a topic to have met; `vouches`: principal → for whom it stands. Empty, 0 or None in a
    development electorate.
    """

    voices: Voices
    identities_root: str
    weights: Mapping[str, int]
    clusters: Mapping[str, str]
    anchors: Sequence[str] = ()
    trust: Mapping[str, int] = field(default_factory=dict)
    ages: Mapping[str, int] = field(default_factory=dict)
    cap: int = 0
    audible: AbstractSet[str] = frozenset()
    vouches: Mapping[str, AbstractSet[str]] | None = None
    terms: Reputation | None = None

    @property
    def heard(self) -> AbstractSet[str]:
        """Who opens a topic by reporting or voting there: whoever is `audible`, in a development electorate everybody."""
        return self.weights.keys() if self.terms is None else self.weights.keys() & self.audible

    def in_topic(self, tally: Tally) -> Mapping[str, int]:
        """What each principal weighs in a topic with these reports; whoever weighs nothing there is left out."""
        if self.terms is None:
            return self.weights
        enough, audible = self.terms.counterparties, self.audible
        met: defaultdict[str, set[str]] = defaultdict(set)
        for pairs in tally.pairs.values():
            for one, other in pairs:
                if other in audible and len(met[one]) < enough:
                    met[one].add(other)
                if one in audible and len(met[other]) < enough:
                    met[other].add(one)
        weights = {principal: in_topic(self.weights[principal], len(others), enough) for principal, others in sorted(met.items())}
        return {principal: weight for principal, weight in weights.items() if weight}


def electorate_of(evidence: Evidence, epoch: int, parameters: Parameters, anchors: Sequence[str] | None = None) -> Electorate:
    """Who counts at the end of `epoch`. `anchors`: in place of those of the parameters. `evidence.voices` reads domains as the
    parameters say already."""
    voices, horizon = evidence.voices, parameters.horizon_epochs
    identities_root = digest_of(sorted(evidence.identities.items()))
    ages = _ages(evidence, epoch)
    barred = evidence.reports.barred(epoch, horizon, voices)
    terms = parameters.reputation
    if terms is None:
        weights = {principal: ONE for principal in ages if principal not in barred}
        return Electorate(voices, identities_root, weights, {principal: principal for principal in weights})
    chosen = terms.anchors if anchors is None else anchors
    edges = evidence.vouches.edges(epoch, voices, evidence.reports.acquainted(voices), terms, horizon)
    known: defaultdict[str, set[str]] = defaultdict(set)
    for one, other in edges:
        known[one].add(other)
    vouched = graph(ages, {(one, other): strength for (one, other), strength in edges.items() if one in ages and other in ages})
    trusted, flows, most = settle(
        vouched,
        seed(vouched, chosen),
        rounds=terms.rounds,
        least=terms.least_vouches,
        cap_share=terms.cap_share,
        loan_share=terms.loan_share,
    )
    weighed = base_weight(trusted, most, np.array(list(ages.values()), dtype=np.int64), terms.mature_epochs)
    clusters = provenance.clusters(vouched, flows, chosen)
    weights = {
        principal: weight
        for principal, weight in zip(vouched.principals, weighed.tolist(), strict=True)
        if weight and principal in clusters and principal not in barred
    }
    heard = audible(trusted, most, terms.counterparty_share)
    return Electorate(
        voices,
        identities_root,
        weights,
        {principal: clusters[principal] for principal in weights},
        tuple(sorted(chosen)),
        dict(zip(vouched.principals, trusted.tolist(), strict=True)),
        ages,
        most,
        frozenset(principal for principal, loud in zip(vouched.principals, heard.tolist(), strict=True) if loud),
        known,
        terms,
    )


def _ages(evidence: Evidence, epoch: int) -> dict[str, int]:
    """The principals that the log has an identity of, in order, and in how many epochs they were there, this one among them."""
    first: dict[str, int] = {}
    for did, appeared in evidence.appeared.items():
        principal = evidence.voices.principal_of(did)
        if principal is not None:
            first[principal] = min(appeared, first.get(principal, appeared))
    return {principal: epoch - first[principal] + 1 for principal in sorted(first)}


def digest_of(entries: Iterable[object]) -> str:
    """SHA-256 of the JCS of a list, in hexadecimal."""
    return canonical.hex_digest(canonical.dumps(list(entries)))
