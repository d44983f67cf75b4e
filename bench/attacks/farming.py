"""Report farming: domains of the adversary agree with honest open endpoints on documents that they invented.

Every domain has the trust of a full voice (`bribery` says what that costs), is in a cluster of its own, and meets another honest
endpoint each time, so these are upper bounds. In each epoch so many documents are invented; two domains report each of them,
with honest endpoints of two further clusters, so each report corroborates the other. The product's own ledger pays.

    standing/DOMAINS, DOCUMENTS   the standing of a domain after a year, in full credits, by the number of domains and of
                                  documents invented in an epoch
    honest/DOMAINS, DOCUMENTS     the same of the honest endpoint that gained most
    endpoints/eligible            how many endpoints one domain must meet until its document meets the conditions of candidacy
    endpoints/whole weight        how many it must meet until it has all its weight in the topic
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, count, cycle

import numpy as np

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.credit import Credits
from treaty_consensus.election.report import AgreedReport, AgreedReports, Pair

from .laboratory import Laboratory, Row
from .ours import PARAMETERS, terms

YEAR = terms().mature_epochs
DOMAINS = (1, 2, 4, 8)
INVENTED = (1, 10, 100)


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What reports alone give."""
    size = lab.world.size
    for domains in DOMAINS:
        for invented in INVENTED:
            standings = farmed(lab, domains, invented)
            owned = [standings.get(_domain(number), 0.0) for number in range(domains)]
            others = [standing for name, standing in standings.items() if not name.startswith("domain")]
            detail = f"{domains} domains, {invented} documents"
            yield Row("farming", size, "standing", detail=detail), sum(owned) / domains
            yield Row("farming", size, "honest", detail=detail), max(others, default=0.0)
    yield Row("farming", size, "endpoints", detail="eligible"), _eligible(lab)
    yield Row("farming", size, "endpoints", detail="whole weight"), float(terms().counterparties)


def farmed(lab: Laboratory, domains: int, invented: int) -> dict[str, float]:
    """Return the standings after a year of farming."""
    clusters = _clusters(lab)
    endpoints = sorted(clusters)
    clusters |= {_domain(number): f"own-{number}" for number in range(domains)}
    pairs = cycle(combinations(range(domains), 2))
    leaf, met = count(), cycle(endpoints)
    credits = Credits()
    for epoch in range(YEAR):
        reports = []
        for number in range(invented if domains > 1 else 0):
            one, other = next(pairs)
            first = next(met)
            # The counterparties must be of different clusters, or neither report corroborates the other.
            second = next(name for name in met if clusters[name] != clusters[first])
            for domain, endpoint in ((one, first), (other, second)):
                pair = Pair.of(_domain(domain), endpoint)
                reports.append(AgreedReport(next(leaf), pair, "farm", f"{epoch}/{number}"))
        if domains == 1:  # both reports are its own, so neither is independent of the other
            for number, name in zip(range(2 * invented), met, strict=False):
                reports.append(AgreedReport(next(leaf), Pair.of(_domain(0), name), "farm", f"{epoch}/{number // 2}"))
        credits, _ = credits.close(epoch, clusters, AgreedReports.of(reports), PARAMETERS.credit, PARAMETERS.horizon_epochs, {})
    standings = credits.standings(YEAR - 1, PARAMETERS.horizon_epochs)
    return {name: standing / ONE for name, standing in standings.items()}


def _eligible(lab: Laboratory) -> float | None:
    """Meet those with most weight first."""
    weights = np.sort(lab.weighed(0, (0, "kept")).weights)[::-1].astype(np.float64) / ONE
    needed = (float(weights.sum()) + 1) / PARAMETERS.candidate_share
    reporters = 1 + np.cumsum(weights)
    return float(max(int(np.argmax(reporters >= needed)) + 1, PARAMETERS.candidate_pairs))


def _clusters(lab: Laboratory) -> dict[str, str]:
    weighed = lab.weighed(0, (0, "kept"))
    names = weighed.attacked.graph.principals
    return {name: weighed.labels[place] for name, place in zip(names, weighed.clusters.tolist(), strict=True) if place >= 0}


def _domain(number: int) -> str:
    return f"domain-{number}"
