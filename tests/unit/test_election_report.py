"""Which reports count, and what equivocation costs."""

from __future__ import annotations

from typing import Literal

import numpy as np
from plain_counting import failed_of, pairs_of

from treaty_consensus.did import did_key, parse_did
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.principals import PrincipalDirectory
from treaty_consensus.election.report import AgreedReport, CountedReports, Pair, Reports, Tally
from treaty_consensus.kinds import Report

A, B, C = (f"did:wba:{name}.example" for name in ("alpha", "bravo", "charlie"))
KEY = did_key(bytes(32))
WEIGHTS = dict.fromkeys((A, B, C), ONE)
X, Y = "1" * 64, "2" * 64
TOPIC = "commerce/product-info"
HORIZON = 3


class Log:
    """Reports, one after the other; each a negotiation of its own unless a key is given."""

    def __init__(self) -> None:
        self.directory = PrincipalDirectory()
        self.reports = Reports(self.directory)
        self.number = 0

    def add(
        self,
        first: str,
        second: str,
        document: str,
        *,
        epoch: int = 0,
        key: str | None = None,
        topic: str = TOPIC,
        outcome: Literal["agreed", "failed"] = "agreed",
    ) -> None:
        self.number += 1
        body = Report(topic, "0" * 64, document, outcome, epoch, "checkpoint")
        self.reports.add(key or f"key {self.number}", body, (parse_did(first), parse_did(second)), self.number, epoch)

    def tally(self, epoch: int = 0) -> Tally:
        return self.count(epoch).tally(TOPIC)

    def count(self, epoch: int = 0) -> CountedReports:
        return self.reports.count(epoch, HORIZON, self.weights(epoch))

    def weights(self, epoch: int) -> dict[str, int]:
        barred = self.reports.barred(epoch, HORIZON)
        return {principal: ONE for principal in WEIGHTS if principal not in barred}


def test_counts_distinct_pairs_each_with_its_newest_epoch() -> None:
    log = Log()
    log.add(A, B, X)
    log.add(C, A, X)
    log.add(B, A, X, epoch=1)
    log.add(B, C, Y, epoch=1)
    tally = log.tally(1)
    assert pairs_of(tally) == {X: {Pair(A, B): 1, Pair(A, C): 0}, Y: {Pair(B, C): 1}}
    assert tally.agreed_pairs == {X: 2, Y: 1}
    reporters = [(tally.documents[place], tally.principals[who]) for place, who in zip(*tally.reporters, strict=True)]
    assert reporters == [(X, A), (X, B), (X, C), (Y, B), (Y, C)]


def test_of_a_pair_one_report_counts_in_each_topic_and_epoch() -> None:
    log = Log()
    log.add(A, B, X)
    log.add(B, A, Y)
    log.add(A, B, Y, topic="other")
    assert pairs_of(log.tally()) == {X: {Pair(A, B): 0}}
    log.add(A, B, Y, epoch=1)
    assert pairs_of(log.tally(1)) == {X: {Pair(A, B): 0}, Y: {Pair(A, B): 1}}


def test_failed_negotiations_do_not_count_and_take_no_place() -> None:
    log = Log()
    log.add(A, B, X, outcome="failed")
    assert pairs_of(log.tally()) == {}
    log.add(A, B, Y)
    assert pairs_of(log.tally()) == {Y: {Pair(A, B): 0}}


def test_failures_are_told_apart_and_only_of_their_own_epoch() -> None:
    log = Log()
    log.add(A, B, X, outcome="failed")
    log.add(A, C, X, outcome="failed")
    log.add(A, B, Y, outcome="failed")
    log.add(A, KEY, X, outcome="failed")
    assert failed_of(log.tally(0)) == {X: {Pair(A, B), Pair(A, C)}}
    assert failed_of(log.tally(1)) == {}


def test_only_topics_in_which_something_counts_are_told() -> None:
    log = Log()
    log.add(A, B, X, outcome="failed")
    log.add(A, KEY, X, topic="spam")
    log.add(A, B, X, topic="other")
    assert set(log.count().tallies) == {TOPIC, "other"}
    assert set(log.count(1).tallies) == {"other"}
    assert not log.count().tally("spam").agreed_pairs


def test_acquaintance_is_counted_in_epochs() -> None:
    log = Log()
    for epoch in (0, 0, 2, 7):
        log.add(B, A, X, epoch=epoch)
    log.add(A, C, X, outcome="failed")
    log.add(A, KEY, X)
    who = log.directory.owners(np.array([log.directory.number(did) for did in (A, B, C)]))
    acquainted = log.reports.acquainted()
    assert acquainted.between(who[[0, 1, 0, 1]], who[[1, 0, 2, 2]]).tolist() == [3, 3, 0, 0]


def test_what_counts_in_an_epoch_is_told_in_the_order_of_the_log() -> None:
    log = Log()
    log.add(B, C, Y, topic="zoo")
    log.add(A, B, X, topic="alpha")
    log.add(A, B, Y, topic="alpha")
    log.add(A, C, X, topic="alpha", epoch=1)
    assert [*log.count().agreed] == [AgreedReport(1, Pair(B, C), "zoo", Y), AgreedReport(2, Pair(A, B), "alpha", X)]


def test_reports_of_nobody_and_of_one_principal_do_not_count() -> None:
    log = Log()
    log.add(A, KEY, X)
    log.add(A, "did:wba:localhost", X)
    log.add(A, "did:wba:unknown.example", X)
    assert pairs_of(log.tally()) == {}


def test_a_report_counts_for_the_horizon() -> None:
    log = Log()
    log.add(A, B, X, epoch=1)
    assert [bool(pairs_of(log.tally(epoch))) for epoch in range(6)] == [False, True, True, True, False, False]


def test_equivocation_voids_both_reports_and_principals() -> None:
    log = Log()
    log.add(A, B, X, epoch=0, key="same")
    log.add(A, C, X, epoch=0)
    assert pairs_of(log.tally(0)) == {X: {Pair(A, B): 0, Pair(A, C): 0}}
    log.add(B, A, Y, epoch=1, key="same")
    assert log.weights(1) == {C: ONE}
    assert pairs_of(log.tally(1)) == {}
    assert [sorted(log.weights(epoch)) for epoch in range(6)] == [[A, B, C], [C], [C], [C], [A, B, C], [A, B, C]]


def test_what_is_void_stays_void_and_gives_its_place_back() -> None:
    log = Log()
    log.add(A, B, X, epoch=0, key="same")
    log.add(A, B, Y, epoch=0, key="same")
    log.add(A, B, Y, epoch=0)
    everybody = log.reports.count(0, HORIZON, WEIGHTS).tally(TOPIC)
    assert pairs_of(everybody) == {Y: {Pair(A, B): 0}}


def test_equivocation_counts_across_topics_and_failures() -> None:
    log = Log()
    log.add(A, B, X, key="same", outcome="failed")
    log.add(A, B, Y, key="same", topic="other")
    assert log.weights(0) == {C: ONE}


def test_equivocating_with_a_key_bars_the_principal_that_did() -> None:
    log = Log()
    log.add(A, KEY, X, key="same")
    log.add(A, KEY, Y, key="same")
    assert log.weights(0) == {B: ONE, C: ONE}
