"""Laws of standing, on random histories of reports, elections, bars and changing clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from math import log
from random import Random

import msgspec
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_crediting import PlainCredits

from treaty_consensus.election.arithmetic import ONE, decay, part
from treaty_consensus.election.credit import Credits, EarnedCredit, SavedCredits, first_disjoint
from treaty_consensus.election.report import AgreedReport, AgreedReports, Pair
from treaty_consensus.kinds import Credit

TERMS = Credit(report_share=8, epochs=3, pairs=4)
HORIZON = 2
NAMES = "abcdefgh"
TOPIC = "commerce/product-info"

pairs = st.sampled_from(list(combinations(NAMES, 2))).map(lambda two: Pair.of(*two))
facts = st.tuples(pairs, st.sampled_from(["one", "two"]), st.sampled_from(["x", "y"]))
epochs = st.tuples(
    st.lists(facts, max_size=8, unique=True),
    st.dictionaries(st.sampled_from(["one", "two"]), st.sampled_from(["x", "y"])),
    st.lists(st.sampled_from("PQRS"), min_size=len(NAMES), max_size=len(NAMES)),
    st.sets(st.sampled_from(NAMES), max_size=2),
)
histories = st.lists(epochs, max_size=25)
_Epoch = tuple[list[tuple[Pair, str, str]], dict[str, str], list[str], set[str]]


class History:
    """A history played: what was earned in each epoch, and the credits after each."""

    def __init__(self, history: Sequence[_Epoch]) -> None:
        self.credits, self.earned, self.after = Credits(), list[list[EarnedCredit]](), list[Credits]()
        self.reports: list[list[AgreedReport]] = []
        self.clusters: list[dict[str, str]] = []
        leaf = 0
        for epoch, (facts, elected, labels, barred) in enumerate(history):
            clusters = {name: label for name, label in zip(NAMES, labels, strict=True) if name not in barred}
            counting = [(pair, topic, document) for pair, topic, document in facts if clusters.keys() >= set(pair)]
            reports = [AgreedReport(leaf + place, *report) for place, report in enumerate(counting)]
            leaf += len(reports)
            columns = AgreedReports.of(reports)
            self.credits, earned = self.credits.close(epoch, clusters, columns, TERMS, HORIZON, elected)
            self.earned.append([*earned])
            self.after.append(self.credits)
            self.credits = self.keep(self.credits)
            self.reports.append(reports)
            self.clusters.append(clusters)

    def keep(self, credits: Credits) -> Credits:
        """Return the credits with which the next epoch begins."""
        return credits


def independent(clusters: dict[str, str], one: Pair, other: Pair) -> bool:
    return not {clusters[name] for name in one} & {clusters[name] for name in other}


@given(histories)
def test_a_credit_rests_on_an_own_and_an_independent_report(history: list[_Epoch]) -> None:
    played = History(history)
    logged = {report.leaf: (epoch, report) for epoch, reports in enumerate(played.reports) for report in reports}
    for epoch, earned in enumerate(played.earned):
        clusters = played.clusters[epoch]
        for credit in earned:
            since, report = logged[credit.leaf]
            assert credit.principal in report.pair
            assert (report.topic, report.document) == (credit.topic, credit.document)
            if credit.reason == "reported":
                assert 0 <= epoch - since < TERMS.epochs
                assert any(
                    credit.corroborator in other.pair and independent(clusters, report.pair, other.pair)
                    for other in played.reports[epoch]
                    if (other.topic, other.document) == (report.topic, report.document)
                )
            else:
                assert history[epoch][1][credit.topic] == credit.document


@given(histories)
def test_nobody_who_weighs_nothing_earns(history: list[_Epoch]) -> None:
    played = History(history)
    for earned, clusters in zip(played.earned, played.clusters, strict=True):
        for credit in earned:
            assert {credit.principal} <= clusters.keys()


@given(histories)
def test_a_fact_earns_each_reporter_one_credit_of_a_kind(history: list[_Epoch]) -> None:
    played = History(history)
    reported: dict[tuple[str, str, str], int] = {}
    elected: dict[tuple[str, str, str], int] = {}
    for epoch, earned in enumerate(played.earned):
        for credit in earned:
            fact = credit.principal, credit.topic, credit.document
            if credit.reason == "reported":
                assert fact not in reported or decay(epoch - reported[fact], HORIZON) == 0
                reported[fact] = epoch
            else:
                assert elected.get(fact, -1) < reported[fact]
                elected[fact] = epoch


@given(histories)
def test_amounts_follow_from_what_each_credit_says_of_itself(history: list[_Epoch]) -> None:
    shared: dict[tuple[str, str], int] = {}
    for earned in History(history).earned:
        for credit in earned:
            pair = credit.principal, credit.corroborator
            assert credit.shared == shared.get(pair, 0)
            shared[pair] = credit.shared + 1
            whole = ONE // TERMS.report_share if credit.reason == "reported" else ONE >> credit.earlier
            assert credit.amount == whole * TERMS.pairs // (TERMS.pairs + credit.shared)


@given(histories)
def test_what_two_principals_give_each_other_is_bounded(history: list[_Epoch]) -> None:
    credits_of: dict[tuple[str, str], list[EarnedCredit]] = {}
    for earned in History(history).earned:
        for credit in earned:
            credits_of.setdefault((credit.principal, credit.corroborator), []).append(credit)
    for credits in credits_of.values():
        whole = max(ONE // TERMS.report_share if c.reason == "reported" else ONE >> c.earlier for c in credits)
        assert sum(credit.amount for credit in credits) <= bound(whole, len(credits))


@given(histories)
def test_standing_is_the_sum_of_what_has_not_faded(history: list[_Epoch]) -> None:
    played = History(history)
    everything: list[EarnedCredit] = []
    for epoch, (earned, credits) in enumerate(zip(played.earned, played.after, strict=True)):
        everything += earned
        for name in NAMES:
            own = [credit for credit in everything if credit.principal == name]
            standing = sum(part(credit.amount, decay(epoch - credit.epoch, HORIZON)) for credit in own)
            assert credits.standings(epoch, HORIZON).get(name, 0) == standing
            assert [c for c in credits.earned if c.principal == name] == [c for c in own if decay(epoch - c.epoch, HORIZON)]


@given(histories, st.randoms())
def test_the_order_within_an_epoch_does_not_decide_who_earns(history: list[_Epoch], random: Random) -> None:
    shuffled = [(random.sample(facts, len(facts)), elected, labels, barred) for facts, elected, labels, barred in history]
    for one, other in zip(History(history).earned, History(shuffled).earned, strict=True):
        key = [{(c.principal, c.reason, c.topic, c.document) for c in earned} for earned in (one, other)]
        assert key[0] == key[1]


@given(histories)
def test_other_documents_do_not_decide_who_earns_for_this_one(history: list[_Epoch]) -> None:
    about = [[fact for fact in facts if fact[1:] == ("one", "x")] for facts, *_ in history]
    alone = [(facts, *rest[1:]) for facts, rest in zip(about, history, strict=True)]
    for both, one in zip(History(history).earned, History(alone).earned, strict=True):
        assert [(c.principal, c.reason) for c in both if (c.topic, c.document) == ("one", "x")] == [
            (c.principal, c.reason) for c in one if (c.topic, c.document) == ("one", "x")
        ]


@given(histories)
def test_closing_an_epoch_changes_nothing_that_was(history: list[_Epoch]) -> None:
    played = History(history)
    again = History(history)
    assert again.earned == played.earned
    assert [credits.saved() for credits in again.after] == [credits.saved() for credits in played.after]


@given(histories)
def test_a_quiet_time_forgets_everything_but_who_shared(history: list[_Epoch]) -> None:
    played = History(history)
    credits, end = played.credits, len(history) + 8 * HORIZON
    for epoch in range(len(history), end + 1):
        credits, earned = credits.close(epoch, dict(zip(NAMES, NAMES, strict=True)), AgreedReports.of([]), TERMS, HORIZON, {})
        assert not len(earned)
    assert credits.standings(end, HORIZON) == {}
    assert not len(credits.earned)
    # No claim is left: a report of the same fact by one pair alone earns nothing.
    pair, other = Pair.of("a", "b"), Pair.of("c", "d")
    reports_of = [AgreedReport(1000 + place, pair, *fact) for place, fact in enumerate(product(["one", "two"], ["x", "y"]))]
    clusters = dict(zip(NAMES, NAMES, strict=True))
    credits, earned = credits.close(end + 1, clusters, AgreedReports.of(reports_of), TERMS, HORIZON, {})
    assert not len(earned)
    # The number of credits that two principals shared is kept.
    before = Counter((c.principal, c.corroborator) for epoch in played.earned for c in epoch)
    later = AgreedReports.of([AgreedReport(2000, other, "one", "x")])
    _, earned = credits.close(end + 2, clusters, later, TERMS, HORIZON, {})
    assert {c.principal for c in earned} == {"a", "b"}
    for credit in earned:
        assert credit.shared == before[credit.principal, credit.corroborator]


@settings(max_examples=examples(400), deadline=None)
@given(histories)
def test_columns_pay_what_loops_pay(history: list[_Epoch]) -> None:
    played, plain = History(history), PlainCredits(TERMS, HORIZON)
    for epoch, (_, elected, *_) in enumerate(history):
        assert plain.close(epoch, played.clusters[epoch], played.reports[epoch], elected) == played.earned[epoch]
        assert plain.standings(epoch) == played.after[epoch].standings(epoch, HORIZON)
        assert Counter(plain.counting) == Counter(played.after[epoch].earned)


@settings(max_examples=examples(400), deadline=None)
@given(histories)
def test_restored_credits_go_on_as_the_saved_ones(history: list[_Epoch]) -> None:
    class Resumed(History):
        def keep(self, credits: Credits) -> Credits:
            encoded = msgspec.msgpack.encode(credits.saved())
            return Credits.restored(msgspec.msgpack.decode(encoded, type=SavedCredits))

    played, resumed = History(history), Resumed(history)
    assert resumed.earned == played.earned
    assert resumed.credits.saved() == played.credits.saved()


small_sets = st.tuples(st.integers(0, 6), st.integers(0, 6))


@given(st.lists(small_sets, max_size=30), st.lists(small_sets, min_size=1, max_size=30))
def test_few_sets_answer_for_all(sets: list[tuple[int, int]], sought: list[tuple[int, int]]) -> None:
    firsts = first_disjoint(sets)
    assert len(firsts) <= 6
    for own in sought:
        among_all = next((place for place, names in enumerate(sets) if not {*own} & {*names}), None)
        assert among_all == next((place for place in firsts if not {*own} & {*sets[place]}), None)


def bound(whole: int, number: int) -> float:
    """The pairwise bound of the module, with room for one rounding of the logarithm."""
    return whole * (1 + TERMS.pairs * log((TERMS.pairs + number - 1) / TERMS.pairs)) + 1
