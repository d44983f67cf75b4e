"""`treaty topic --explain`: a decision's transcript, said to people."""

from __future__ import annotations

import io
import json
from itertools import combinations

import pytest
from msgspec.structs import replace
from rich.console import Console
from signers import domain_signer
from simulated_log import LogBuilder

from treaty_client.audit.decision import Turnout, read_transcript
from treaty_client.audit.strength import is_few
from treaty_command.explanation import explain
from treaty_consensus.canonical import dumps
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import NONE


def said(log: LogBuilder, names: dict[str, str], taken_back: dict[str, str] | None = None) -> str:
    """What people read of the newest decision."""
    console = Console(file=io.StringIO(), width=200, highlight=False, emoji=False)
    for line in explain(read_transcript(log.transcripts[max(log.transcripts)]), names, taken_back):
        console.print(line)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(written, str)
    return written


@pytest.fixture
def log() -> LogBuilder:
    return LogBuilder()


def test_it_says_what_a_candidate_lacks(log: LogBuilder) -> None:
    document = log.publish(log.agents[0], "one")
    log.everybody_reports(document)
    log.vote(log.agents[0], document)
    log.vote(log.agents[1], NONE)
    log.close()
    text = said(log, {document: "one/1.0"})
    assert "Epoch 0, development electorate. 2 ballots and the use of 3 principals were counted: reports vote for" in text
    assert "Turnout: the votes of 5 of 5 principals count here, with 100.0 % of all weight." in text
    lacks = "lacks these conditions:\n    It has been provisional for 0 epochs, and needs 2.\n"
    assert f"To be the consensus, one/1.0 {lacks}" in text
    assert "one/1.0: published → candidate" in text


def test_a_protocol_that_was_taken_back_lacks_no_conditions(log: LogBuilder) -> None:
    one, two = log.publish(log.agents[0], "one"), log.publish(log.agents[0], "two")
    log.everybody_reports(one)
    log.report(log.agents[0], log.agents[1], two)
    log.close()
    names = {one: "one/1.0", two: "two/1.0"}
    lacking = said(log, names)
    assert "To be the consensus, one/1.0 lacks" in lacking and "To be a candidate, two/1.0 lacks" in lacking
    text = said(log, names, {one: "one/1.0 was yanked by its publisher.", two: "two/1.0 was revoked by its publisher."})
    assert "• one/1.0 was yanked by its publisher." in text and "• two/1.0 was revoked by its publisher." in text
    assert "lacks" not in text


def test_it_says_what_a_nominee_lacks(log: LogBuilder) -> None:
    document = log.publish(log.agents[0], "one")
    log.report(log.agents[0], log.agents[1], document)
    log.close()
    text = said(log, {document: "one/1.0"})
    lacks = "lacks these conditions:\n    It was reported by 1 pair of principals, and needs 3.\n"
    assert f"To be a candidate, one/1.0 {lacks}" in text
    assert "for" not in text.split("\n")[1], "there is no table of candidates"


def test_a_consensus_that_lacks_nothing(log: LogBuilder) -> None:
    document = log.publish(log.agents[0], "one")
    log.everybody_reports(document)
    log.everybody_votes(document)
    for _ in range(3):
        log.close()
    text = said(log, {document: "one/1.0"})
    assert "✓ one/1.0 is the consensus, and kept." in text
    assert "alpha.example" in text
    assert "5 of 5 principals accept it, with 100.0 % of all weight." in text
    assert "100.0 % of the votes accept it, 0.0 % reject it, and 0.0 % do neither." in text
    assert "No cluster of voters is over its limit: it has a support of 100.0 %" in text
    assert "Few decide here" not in text


def test_a_squatted_topic_is_told_from_that_of_many(log: LogBuilder) -> None:
    few = log.agents[:4]
    document = log.publish(few[0], "one")
    log.identify(*(domain_signer(f"member-{number:02}.example") for number in range(56)))
    for _ in range(3):
        for first, second in combinations(few, 2):
            log.report(first, second, document)
        log.close()
    text = said(log, {document: "one/1.0"})
    assert "✓ one/1.0 is the consensus, and kept." in text
    assert "Turnout: the votes of 4 of 60 principals count here, with 6.6 % of all weight." in text
    assert "4 of 60 principals accept it, with 6.6 % of all weight." in text
    assert "Few decide here:" in text
    transcript = read_transcript(log.transcripts[max(log.transcripts)])
    for roll, expected in (("40", False), ("41", True)):
        assert is_few(replace(transcript, turnout=Turnout((41, roll), (4, "4"), (4, "4")))) is expected


def test_the_versions_of_a_line_are_named_with_their_users(log: LogBuilder) -> None:
    first = log.publish(log.agents[0], "one")
    second = log.release(log.agents[0], "one", "1.1")
    for _ in range(3):
        for one, other in combinations(log.agents[:3], 2):
            log.report(one, other, second)
        log.everybody_reports(first)
        log.close()
    text = said(log, {first: "one/1.0", second: "one/1.1"})
    assert "one/1.0 40.0 %, one/1.1 60.0 % (to speak)." in text


def test_a_quorum_is_told_once_and_a_warning_is_explained(log: LogBuilder) -> None:
    before = LogBuilder(replace(development_parameters(), rule="schulze-margins-v2", memory_horizons=None))
    document = before.publish(before.agents[0], "one")
    before.everybody_reports(document)
    for agent in before.agents:
        before.vote(agent, NONE)
    before.close()
    assert said(before, {document: "one/1.0"}).count("of all votes behind it") == 1
    document = log.publish(log.agents[0], "one")
    log.everybody_reports(document)
    for first, second in combinations(log.agents[:4], 2):
        log.report(first, second, document, outcome="failed")
    log.close()
    assert "It is suspect for 2 epochs: " in said(log, {document: "one/1.0"})


def test_the_order_names_who_is_preferred_to_whom(log: LogBuilder) -> None:
    one, two = log.publish(log.agents[0], "one"), log.publish(log.agents[1], "two")
    for document in (one, two):
        log.everybody_reports(document)
        log.close()
    for agent in log.agents[:3]:
        log.vote(agent, two)
    for agent in log.agents[3:]:
        log.vote(agent, one)
    log.close()
    text = said(log, {one: "one/1.0"})
    assert "is preferred to no consensus by 40.0 % of all votes, and the other way round by 60.0 %: it needs 2 times as" in text
    assert "40.0 % of all votes, and the other way round by 60.0 %: it needs as many" in text
    assert "is number 3 in the order, and the first is" in text and two[:10] in text, "a document that nobody named has its hash"


@pytest.mark.parametrize(
    "damage",
    [
        {"electorate": "\x1b[2J"},
        {"consensus": "\u202e"},
        {"order": ["\x9b", "none"]},
        {"order": []},
        {"pairwise": [["0"]]},
        {"total": "-1"},
        {"total": "01"},
        {"total": 5},
        {"turnout": {"roll": [1, "\x1b"], "topic": [1, "1"], "votes": [1, "1"]}},
        {"candidates": None},
        {"voices": [{"principal": "x"}]},
    ],
    ids=str,
)
def test_what_is_no_transcript_is_refused(log: LogBuilder, damage: dict[str, object]) -> None:
    document = log.publish(log.agents[0], "one")
    log.everybody_reports(document)
    log.close()
    sound = log.transcripts[max(log.transcripts)]
    assert read_transcript(sound).candidates[0].hash == document
    with pytest.raises(Malformed) as refused:
        read_transcript(dumps(json.loads(sound) | damage))
    assert refused.value.code == "decision.rule"


def test_a_candidate_without_a_quorum_is_refused(log: LogBuilder) -> None:
    log.everybody_reports(log.publish(log.agents[0], "one"))
    log.close()
    value = json.loads(log.transcripts[max(log.transcripts)])
    del value["candidates"][0]["quorum"]
    with pytest.raises(Malformed, match="no quorum"):
        read_transcript(dumps(value))
    before = read_transcript(dumps(value | {"quorum": "1"}))
    assert before.quorum_of(before.candidates[0]) == 1, "the one of the rule before"
