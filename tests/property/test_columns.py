"""Counting in columns gives what counting with dictionaries and loops gives (`plain_counting`), for any log."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_counting import (
    LoggedReport,
    LoggedVouch,
    PlainCounting,
    edges_of,
    failed_of,
    pairs_of,
    plain_implied,
    plain_weights,
)
from simulated_log import ANCHORS, SUFFIX_LIST, SUFFIXES

from treaty_consensus.did import parse_did
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.ballot import Implied, implied_ballots
from treaty_consensus.election.defaults import open_parameters
from treaty_consensus.election.electorate import Electorate
from treaty_consensus.election.evidence import Evidence
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.election.trust import graph_of
from treaty_consensus.kinds import Report, Reputation, Vouch

DOMAINS = [f"{letter}.example" for letter in "fedcba"]
"""Not sorted, so that numbers and names have different orders."""
DIDS = [
    *(f"did:wba:{domain}" for domain in DOMAINS),
    *(f"did:web:{domain}" for domain in DOMAINS[:2]),
    *(f"did:wba:{domain}:agent" for domain in DOMAINS[:3]),
    "did:wba:sub.a.example",
]
DOCUMENTS = ["3" * 64, "1" * 64, "2" * 64]
HORIZON = 3


class Both:
    """A log, in columns and plain."""

    def __init__(self, seed: int, size: int) -> None:
        self.evidence = Evidence()
        self.directory = self.evidence.directory
        self.plain = PlainCounting(self.directory)
        self._random = Random(seed)
        self.terms = self._terms()
        for leaf in range(size):
            # Epochs do not always ascend here: the columns rely on no order but that of the leaves.
            self._log(leaf, self._random.choice([leaf * 5 // size, self._random.randrange(5)]))
            if leaf == size // 2:
                self.directory.read_domains_by(SUFFIX_LIST.sha256, SuffixList(SUFFIXES))

    def _terms(self) -> Reputation:
        terms = open_parameters(ANCHORS, SUFFIX_LIST).reputation
        assert terms is not None
        most, epochs = self._random.choice([1, 2, 16]), self._random.choice([1, 2])
        return msgspec.structs.replace(
            terms, max_vouches=most, acquainted_epochs=epochs, counterparties=self._random.choice([1, 3])
        )

    def _log(self, leaf: int, epoch: int) -> None:
        draw = self._random
        one, other = draw.sample(DIDS, 2)
        if draw.random() < 0.1:
            namespace, withdrawn = draw.choice(DOMAINS), draw.random() < 0.3
            self.directory.grant(namespace, one, f"did:wba:{namespace}", withdrawn=withdrawn)
        elif draw.random() < 0.4:
            vouch = LoggedVouch(one, other, epoch, draw.random() < 0.2)
            self.plain.vouches.append(vouch)
            self.evidence.vouches.add(one, Vouch(other, 0, vouch.withdrawn), epoch)
        else:
            topic, document = draw.choice(["one", "two"]), draw.choice(DOCUMENTS)
            key = f"key {leaf}"
            if self.plain.reports and draw.random() < 0.15:
                _, key, one, other, *_ = draw.choice(self.plain.reports)
            report = LoggedReport(leaf, key, one, other, topic, document, draw.random() < 0.8, epoch)
            self.plain.reports.append(report)
            body = Report(topic, "0" * 64, document, "agreed" if report.agreed else "failed", epoch, "")
            self.evidence.reports.add(key, body, (parse_did(one), parse_did(other)), leaf, epoch)

    def weights(self) -> dict[str, int]:
        """Return a weight for most principals, in no order."""
        return {domain: self._random.choice([0, 7, ONE, ONE // 3]) for domain in DOMAINS}


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 80), st.integers(0, 5))
def test_columns_select_what_loops_select(seed: int, size: int, epoch: int) -> None:
    both, columns = Both(seed, size), None
    reports, weights = both.evidence.reports, both.weights()
    assert reports.barred(epoch, HORIZON) == both.plain.barred(epoch, HORIZON)
    expected, agreed = both.plain.count(epoch, HORIZON, weights)
    columns = reports.count(epoch, HORIZON, weights)
    assert {topic: (pairs_of(tally), failed_of(tally)) for topic, tally in columns.tallies.items()} == expected
    assert [*columns.agreed] == agreed
    acquainted = reports.acquainted()
    vouches = both.evidence.vouches.counted(4 + epoch, acquainted, both.terms, HORIZON)
    names = tuple(sorted(DOMAINS))
    places = both.directory.places(names)
    graph = graph_of(names, places[vouches.voucher], places[vouches.vouched], vouches.strength)
    assert edges_of(graph) == both.plain.edges(4 + epoch, both.terms, HORIZON)
    numbers = np.array([both.directory.number(f"did:wba:{name}") for name in names])
    owners = both.directory.owners(numbers)
    for pair, epochs in both.plain.acquainted().items():
        one, other = (owners[[names.index(name)]] for name in pair)
        assert acquainted.between(one, other).tolist() == [epochs]
    assert int(acquainted.epochs.sum()) == sum(both.plain.acquainted().values())


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 80), st.sets(st.sampled_from(DOCUMENTS)), st.sets(st.sampled_from(DOMAINS)))
def test_columns_weigh_and_imply_what_loops_do(seed: int, size: int, withdrawn: set[str], eligible: set[str]) -> None:
    both = Both(seed, size)
    weights = dict.fromkeys(DOMAINS, ONE - 1)
    vouches = both.evidence.vouches.counted(4, both.evidence.reports.acquainted(), both.terms, HORIZON)
    names = tuple(sorted(DOMAINS[1:]))
    places = both.directory.places(names)
    graph = graph_of(names, places[vouches.voucher], places[vouches.vouched], vouches.strength)
    clusters = {domain: domain for domain in DOMAINS}
    electorate = Electorate(
        both.directory, "0" * 64, weights, clusters, eligible_counterparties=eligible, vouches=graph, terms=both.terms
    )
    open_before: dict[str, Implied] = {}
    before: dict[str, Implied] = {}
    for epoch in range(6):
        for tally in both.evidence.reports.count(epoch, HORIZON, weights).tallies.values():
            pairs = pairs_of(tally)
            assert dict(electorate.in_topic(tally)) == plain_weights(pairs, weights, eligible, both.terms.counterparties)
            before, expected = (
                implied_ballots(tally, None, before, epoch, withdrawn),
                plain_implied(pairs, None, before, epoch, withdrawn),
            )
            assert before == expected
            edges = edges_of(graph).keys()
            expected = plain_implied(pairs, edges, open_before, epoch, withdrawn)
            open_before = implied_ballots(tally, graph, open_before, epoch, withdrawn)
            assert open_before == expected
            assert tally.agreed_pairs == {document: len(epochs) for document, epochs in pairs.items()}
            agreeing = {name for epochs in pairs.values() for pair, when in epochs.items() if when == epoch for name in pair}
            assert tally.active(epoch) == agreeing | {
                name for some in failed_of(tally).values() for pair in some for name in pair
            }
