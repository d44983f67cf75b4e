"""Standing, worked by hand: who corroborates whom, what is earned, and when it lapses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.credit import Credits, EarnedCredit
from treaty_consensus.election.report import AgreedReport, AgreedReports, Pair
from treaty_consensus.kinds import Credit

TERMS = Credit(report_share=8, epochs=8, pairs=4)
HORIZON = 13
TOPIC, OTHER = "commerce/product-info", "commerce/orders"
EIGHTH = ONE // 8

# One letter a principal; the cluster is the letter's group.
CLUSTERS = {name: group for group in ("ABC", "DEF", "GHI", "JKL") for name in group}


class Book:
    """Credits, epoch by epoch. A report is written "AD x": the pair, and the document."""

    def __init__(self, clusters: Mapping[str, str] = CLUSTERS, terms: Credit = TERMS) -> None:
        self.clusters, self.terms = dict(clusters), terms
        self.credits, self.epoch, self.leaf = Credits(), 0, 100

    def close(self, *reports: str, elected: str = "", topic: str = TOPIC) -> list[EarnedCredit]:
        said = []
        for report in reports:
            pair, document = report.split()
            said.append(AgreedReport(self.leaf, Pair.of(*pair), topic, document))
            self.leaf += 1
        outcome = {topic: elected} if elected else {}
        columns = AgreedReports.of(said)
        self.credits, earned = self.credits.close(self.epoch, self.clusters, columns, self.terms, HORIZON, outcome)
        self.epoch += 1
        return [*earned]

    def pause(self, epochs: int) -> None:
        for _ in range(epochs):
            assert self.close() == []

    def standing(self, principal: str) -> int:
        return self.credits.standings(self.epoch - 1, HORIZON).get(principal, 0)


def brief(earned: Sequence[EarnedCredit]) -> list[tuple[str, str, int, str]]:
    return [(credit.principal, credit.reason, credit.amount, credit.corroborator) for credit in earned]


def names(earned: Sequence[EarnedCredit]) -> str:
    return "".join(credit.principal for credit in earned)


def test_a_lone_report_earns_only_when_corroborated() -> None:
    book = Book()
    assert book.close("AD x") == []
    earned = book.close("GJ x")
    assert brief(earned) == [
        ("A", "reported", EIGHTH, "G"),
        ("D", "reported", EIGHTH, "G"),
    ], "the later report is itself a claim, which waits for another one"
    assert earned[0] == EarnedCredit("A", EIGHTH, "reported", TOPIC, "x", "G", 100, 1, 0, 0)
    assert names(book.close("AD x", "BE x")) == "GJ"


def test_reports_of_an_epoch_corroborate_in_any_order() -> None:
    assert names(Book().close("AD x", "GJ x")) == "ADGJ"
    assert names(Book().close("GJ x", "AD x")) == "GJAD"


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("AB x", "AC x", "a principal and a cluster in common"),
        ("AD x", "AG x", "a principal in common"),
        ("AD x", "BG x", "a cluster in common, with two outsiders"),
        ("AB x", "CD x", "the cluster of the ring, with one outsider"),
        ("AD x", "GJ y", "another document"),
    ],
)
def test_what_is_not_independent_corroborates_nothing(first: str, second: str, why: str) -> None:
    assert Book().close(first, second) == [], why


def test_the_same_document_in_another_topic_is_another_fact() -> None:
    book = Book()
    book.close("AD x")
    assert book.close("GJ x", topic=OTHER) == []
    assert names(book.close("AD x", topic=OTHER)) == "GJ"


def test_a_claim_waits_for_its_epochs_and_no_longer() -> None:
    for pause, expected in ((6, "AD"), (7, "")):
        book = Book()
        book.close("AD x")
        book.pause(pause)
        assert names(book.close("GJ x")) == expected


def test_a_claim_lapses_with_either_of_its_two() -> None:
    book = Book()
    book.close("AD x")
    del book.clusters["D"]
    book.pause(1)
    book.clusters["D"] = "DEF"
    assert book.close("GJ x") == []
    assert names(book.close("AD x")) == "GJ"
    assert names(book.close("GK x")) == "AD", "a new report is a new claim"


def test_a_fact_is_news_once() -> None:
    book = Book()
    assert names(book.close("AD x", "GJ x")) == "ADGJ"
    assert names(book.close("AD x", "GJ x", "AE x", "GK x")) == "EK", "only they say something new"
    assert book.close("AD x", "GJ x", "AE x", "GK x") == []


def test_a_fact_is_news_again_when_its_credit_has_faded_away() -> None:
    book = Book()
    book.close("AD x", "GJ x")
    book.pause(8 * HORIZON - 1)
    assert book.standing("A") > 0
    assert brief(book.close("AD x", "GJ x")) == [(who, "reported", EIGHTH * 4 // 5, by) for who, by in ("AG", "DG", "GA", "JA")]


def test_credit_with_the_same_corroborator_shrinks() -> None:
    book = Book()
    for shared in range(5):
        earned = book.close(f"AD x{shared}", f"GJ x{shared}")
        assert {(credit.shared, credit.amount) for credit in earned} == {(shared, EIGHTH * 4 // (4 + shared))}
    fresh = book.close("AD y", "HK y")
    assert {(c.principal, c.corroborator, c.amount) for c in fresh if c.principal in "AD"} == {
        ("A", "H", EIGHTH),
        ("D", "H", EIGHTH),
    }
    credits = book.close("AD z", "HJ z")
    assert {c.corroborator for c in credits if c.principal == "A"} == {"H"}, "with whom A shares more, of the two"
    assert {c.shared for c in credits if c.principal == "A"} == {1}


def test_the_first_independent_report_in_the_log_corroborates() -> None:
    earned = Book().close("AD x", "BG x", "HK x", "GJ x")
    assert {credit.corroborator for credit in earned if credit.principal == "A"} == {"H"}


def test_an_election_pays_early_reporters_more() -> None:
    book = Book()
    book.close("AD x")  # nobody before
    book.close("GH x")  # two clusters before
    book.close("JK x")  # three clusters before
    book.close("AE x")  # corroborates JK; all four before
    earned = book.close("GH x", elected="x")
    elected = {c.principal: (c.earlier, c.shared) for c in earned if c.reason == "elected"}
    assert elected == {"A": (0, 1), "D": (0, 1), "G": (2, 1), "H": (2, 1), "J": (3, 1), "K": (3, 1), "E": (4, 1)}
    amounts = {c.principal: c.amount for c in earned if c.reason == "elected"}
    assert amounts["A"] == ONE * 4 // 5
    assert amounts["G"] == (ONE >> 2) * 4 // 5
    assert [c.principal for c in earned if c.reason == "reported"] == ["E"]


def test_an_election_pays_corroborated_reporters_once() -> None:
    book = Book()
    book.close("AD x", "GJ x")
    book.close("BC x")
    del book.clusters["J"]
    assert names(book.close(elected="x")) == "ADG", "BC is corroborated by nobody after it, and J is barred"
    book.clusters["J"] = "JKL"
    assert names(book.close(elected="x")) == "J", "who was paid is not paid again"
    assert book.close(elected="x") == []
    assert book.close(elected="unheard-of") == []


def test_standing_fades_by_half_each_horizon() -> None:
    book = Book()
    book.close("AD x", "GJ x")
    assert book.standing("A") == EIGHTH
    for halvings in range(1, 8):
        book.pause(HORIZON)
        assert book.standing("A") == EIGHTH >> halvings
    book.pause(HORIZON)
    assert book.standing("A") == 0
    assert not len(book.credits.earned)


EXAMPLE = re.compile(r"epoch (\d)  reports (\w+)  earned ([^;\n]+)(?:; elected (.+))?")


def test_the_example_of_the_specification() -> None:
    text = (Path(__file__).parents[2] / "docs" / "specification" / "election.md").read_text()
    book, rows = Book({name: group for group in ("AB", "CD", "EF", "GH") for name in group}), EXAMPLE.findall(text)
    for epoch, pair, reported, elected in rows:
        assert book.epoch == int(epoch)
        lines: dict[str, list[str]] = {"reported": [], "elected": []}
        for credit in book.close(f"{pair} x", elected="x" if elected else ""):
            lines[credit.reason].append(f"{credit.principal} {credit.amount} {credit.corroborator}")
        assert (", ".join(lines["reported"]) or "nothing", ", ".join(lines["elected"])) == (reported, elected)
    assert len(rows) == 4
    assert f"+ 3435973836 = {book.standing('A')}." in " ".join(text.split())


def test_credits_are_an_entry_of_the_roll() -> None:
    book = Book()
    earned = book.close("AD x", "GJ x")
    assert earned[0].entry() == {
        "principal": "A",
        "amount": str(EIGHTH),
        "reason": "reported",
        "topic": TOPIC,
        "document": "x",
        "with": "G",
        "index": 100,
        "shared": 0,
        "earlier": 0,
    }
