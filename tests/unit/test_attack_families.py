"""The later families of the bench of attacks: each finds what it must in a small world, and nothing where nothing is attacked."""

from __future__ import annotations

import pytest
from bench.attacks import (
    bribery,
    capture,
    censorship,
    deprecation,
    farming,
    flipflop,
    flooding,
    lapsing,
    litter,
    parameters,
    prices,
    sections,
    tenure,
    thin,
    timing,
    truncation,
    versions,
)
from bench.attacks.adversaries import Coalition, attacked
from bench.attacks.graphs import world
from bench.attacks.laboratory import Found, Laboratory, Row
from bench.attacks.lines import KEPT_OUT, LITTER, NOTICE, Shown, lines_of, missed
from bench.attacks.moved import epochs_until_elected
from bench.attacks.ours import electors

SMALL = 120


@pytest.fixture(scope="module")
def lab() -> Laboratory:
    return Laboratory(world(SMALL, 1))


def found(lab: Laboratory, table: object) -> dict[tuple[str, str], float | None]:
    """Return the figures of a family by goal and detail."""
    return {(row.goal, row.detail): figure for row, figure in table.figures(lab)}  # type: ignore[attr-defined]


@pytest.mark.deep
def test_litter_costs_others_little_more_than_its_author() -> None:
    ballots = litter.Littered(4)
    for topic in ballots.topics:
        ballots.vote(ballots.members[0], topic)
    assert ballots.run() == 0, "a ballot alone opens no topic"
    quiet, news = (litter.Littered(4, 1, name).run() for name in ("quiet", "ballot"))
    assert 0 < quiet < news < LITTER
    assert litter.Littered(4, litter.DOCUMENTS[-1], "quiet").run() < LITTER


def test_a_network_that_moved_elects_unless_many_stay(lab: Laboratory) -> None:
    peaceful = electors(attacked(lab.world, Coalition()))
    assert [epochs_until_elected(peaceful, rate, voters) for rate, voters in ((1.0, 0.0), (0.5, 0.0), (1.0, 1.0))] == [3, 3, 3]
    most = electors(attacked(lab.world, Coalition(tuple(lab.order("trusted")[: SMALL // 2]))))
    assert epochs_until_elected(most, 1.0) is None


def test_use_keeps_a_vote_alive(lab: Laboratory) -> None:
    flips = [lapsing.flips(lab, (0, "kept"), "unseat", age, SMALL // 5) for age in (0, 52)]
    assert flips == [False, False]
    assert lapsing.flips(lab, (0, "kept"), "promote", 52, SMALL // 2), "not against half of the members"


def test_a_thin_topic_is_no_cheaper_once_it_has_been_spoken(lab: Laboratory) -> None:
    fourth = SMALL // 4
    assert not thin.flips(lab, (0, "kept"), "promote", 0.25, number=fourth)
    assert thin.flips(lab, (0, "kept"), "promote", 0.25, number=2 * fourth)
    assert thin.flips(lab, (0, "kept"), "unopposed", 0.25, new=True, number=fourth), "the honest have not met yet"


def test_only_the_successor_inherits(lab: Laboratory) -> None:
    assert [deprecation.epochs(lab, how) for how in deprecation.HOW] == [3, 3]
    assert not deprecation.inherits(lab, (0, "kept"), 0.05, SMALL // 5)
    assert deprecation.inherits(lab, (0, "kept"), 0.05, SMALL // 2)


def test_alternating_versions_keep_each_other_in(lab: Laboratory) -> None:
    figures = found(lab, versions)
    for parts in versions.PARTS:
        assert (figures["elect", str(parts)], figures["lose", str(parts)]) == (3, None)
    assert not flipflop.flips(lab, (0, "kept"), 0.52, SMALL // 5)


def test_whoever_is_not_heard_does_not_count(lab: Laboratory) -> None:
    figures = found(lab, censorship)
    block, promote = figures["block", ""], figures["promote", ""]
    assert block is not None and promote is not None and 0 < block < promote < 1


@pytest.mark.deep
def test_a_domain_that_changed_hands_has_no_voice(lab: Laboratory) -> None:
    figures = found(lab, tenure)
    assert figures["weight", "taken over"] == 0 < (figures["weight", "renewed vouch"] or 0) < (figures["weight", "before"] or 0)


@pytest.mark.deep
def test_no_new_parameters_overturn_a_consensus_unseen(lab: Laboratory) -> None:
    figures = found(lab, parameters)
    assert figures["overturn", "nothing"] is None
    for how in parameters.HOW:
        assert (figures["overturn", how] or float("inf")) >= NOTICE


def test_clones_keep_no_newcomer_out(lab: Laboratory) -> None:
    figures = found(lab, flooding)
    by_share = [figures["keep out", f"{spoken:g}"] or 1.0 for spoken in flooding.SPOKEN]
    assert by_share == sorted(by_share), "what more speak is harder to keep out"
    assert (figures["keep out", "0.1"] or 1.0) >= KEPT_OUT
    for spoken in flooding.SPOKEN:
        places = figures["keep out", f"{spoken:g}, places"] or 1.0
        assert places >= (figures["keep out", f"{spoken:g}"] or 1.0), "its reporters may lack weight, too"


@pytest.mark.deep
def test_timing_gains_an_epoch_at_most(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "DEADLINES", (4, 26))
    figures = found(lab, timing)

    def share(goal: str, detail: str) -> float:
        figure = figures[goal, detail]
        assert figure is not None
        return figure

    for epochs in timing.DEADLINES:
        assert share("promote", f"sleeper {epochs}") <= share("promote", f"awake {epochs}")
    assert share("promote", "awake 26") - share("promote", "sleeper 26") < 0.03, "in the long run it gains little"
    answers = [share("promote", f"answer {name}") for name in timing.ANSWERS]
    assert answers == sorted(answers, reverse=True) and answers[-1] < answers[0]
    assert share("block", "withheld") >= share("block", "present"), "a fresh ballot weighs half"


@pytest.mark.deep
def test_insincere_ballots_rarely_pay(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "ELECTIONS", 12)
    figures = found(lab, truncation)
    assert figures["gains", "0.1 any"] == figures["blocks", "0.1 truncated"] == 0
    for share in truncation.SHARES:
        assert (figures["gains", f"{share:g} truncated"] or 0) <= (figures["gains", f"{share:g} any"] or 0)
    assert (figures["blocks", "0.4 truncated"] or 0) > 0, "more than a third blocks"


def test_a_voice_takes_many_vouches(lab: Laboratory) -> None:
    figures = found(lab, bribery)
    for name in ("best", "random"):
        numbers = [figures["vouches", f"{voice:g} {name}"] for voice in bribery.VOICES]
        assert all(number is not None for number in numbers)
        assert 0 < (numbers[0] or 0) < (numbers[1] or 0) < (numbers[2] or 0)
    assert (figures["vouches", "1 best"] or 0) <= (figures["vouches", "1 random"] or 0)
    assert bribery.voice(attacked(lab.world, Coalition((), 1, "domains")), ()) == 0


@pytest.mark.deep
def test_farms_grow_slowly_and_alone_not_at_all(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farming, "INVENTED", (1, 10))
    figures = found(lab, farming)
    assert figures["standing", "1 domains, 10 documents"] == 0
    few, many = (figures["standing", f"2 domains, {number} documents"] or 0 for number in (1, 10))
    assert 0 < few < many < 2 * few, "ten times the reports"
    assert (figures["endpoints", "eligible"] or 0) >= 3


def test_an_anchor_attracts_some_and_leaves_a_quorum(lab: Laboratory) -> None:
    figures = found(lab, capture)
    for name in ("dense", "sparse"):
        assert (figures["weight", f"{name} nobody"] or 0) < (figures["weight", f"{name} anchor"] or 0) < 5 / 6
        assert 1 < (figures["quorum", f"{name} anchor"] or 0) <= 4
    assert (figures["block", "sparse"] or 1) < (figures["block", "dense"] or 0), "missing vouches cost"


def test_gates_and_texts() -> None:
    rows = {
        Row("litter", 0, "cost", detail="best"): LITTER + 1,
        Row("litter", 4, "cost", detail="ballots"): LITTER + 1,
        Row("flooding", 300, "keep out", detail="0.1"): KEPT_OUT - 0.01,
        Row("flooding", 300, "keep out", detail="0.06"): 0.01,
        Row("flooding", 3000, "keep out", detail="0.1"): None,
        Row("litter", 192, "cost", detail="in use"): LITTER + 1,
        Row("moved", 300, "epochs", detail="0.25"): 5.0,
        Row("moved", 300, "epochs", detail="1"): 4.0,
        Row("thin", 300, "promote", detail="0.25"): 0.32,
        Row("thin", 300, "promote", detail="0.1"): 0.21,
        Row("thin", 300, "block", detail="0.25 new"): 0.01,
        Row("versions", 300, "lose", detail="3"): 5.0,
        Row("versions", 300, "lose", detail="2"): None,
        Row("parameters", 0, "overturn", detail="swap"): 28.0,
        Row("parameters", 0, "overturn", detail="nothing"): None,
        Row("tenure", 0, "weight", detail="taken over"): 0.5,
    }
    lines = lines_of([Found(row, 1, figure) for row, figure in rows.items()])
    assert [(line.table, line.size, line.detail) for line in missed(lines)] == [
        ("flooding", 300, "0.1"),
        ("litter", 0, "best"),
        ("litter", 192, "in use"),
        ("moved", 300, "1"),
        ("parameters", 0, "swap"),
        ("tenure", 0, "taken over"),
        ("thin", 300, "0.25"),
        ("versions", 300, "3"),
    ]
    text = "\n".join(sections.sections(Shown(lines)))
    assert "19.0 % missed" in text and "11.0 missed" in text and "not with 60 %" in text and "**4 missed**" in text
    assert list(prices.section(Shown(lines))) == []


def test_the_price_of_a_reputation_names_its_assumption(lab: Laboratory) -> None:
    flood = Found(Row("flood", 300, "promote", 1.0), 1, None)
    vouches = [Found(Row(row.table, 300, row.goal, row.turnout, row.detail), 1, figure) for row, figure in bribery.figures(lab)]
    text = "\n".join(prices.section(Shown(lines_of([flood, *vouches]))))
    assert "list price, $5 to $12 a year" in text and "Public Suffix List" in text
    assert "(Ethereum, BNB Smart Chain, Base) | 0.055 / 0.0042 / 0.0027 | 0 |" in text
    assert "25,000 to 60,000 for 5,000" in text
