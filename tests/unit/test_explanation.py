"""`treaty topic --explain`: a decision's transcript, said to people."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from simulated_log import LogBuilder

from treaty_client.audit.decision import read_transcript
from treaty_client.cli.explanation import explain
from treaty_consensus.canonical import dumps
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import NONE


def said(log: LogBuilder, names: dict[str, str]) -> str:
    """What people read of the newest decision."""
    console = Console(file=io.StringIO(), width=200, highlight=False, emoji=False)
    for line in explain(read_transcript(log.transcripts[max(log.transcripts)]), names):
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
    assert "Epoch 0, development electorate: 2 ballots, 3 implied by reports" in text
    assert "To be the consensus, one/1.0\n    was provisional for 0 epochs, and needs 2\n" in text
    assert "one/1.0: published → candidate" in text


def test_it_says_what_a_nominee_lacks(log: LogBuilder) -> None:
    document = log.publish(log.agents[0], "one")
    log.report(log.agents[0], log.agents[1], document)
    log.close()
    text = said(log, {document: "one/1.0"})
    assert "To be a candidate, one/1.0\n    was reported by 1 pairs of principals, and needs 3\n" in text
    assert "for" not in text.split("\n")[1], "there is no table of candidates"


def test_a_consensus_that_lacks_nothing(log: LogBuilder) -> None:
    document = log.publish(log.agents[0], "one")
    log.everybody_reports(document)
    log.everybody_votes(document)
    for _ in range(3):
        log.close()
    text = said(log, {document: "one/1.0"})
    assert "✓ one/1.0 is the consensus, and kept." in text
    assert "100.0 %" in text and "alpha.example" in text


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
    assert "is preferred to no consensus by 40.0 % of all votes, and the other way round by 60.0 %: it needs more" in text
    assert "40.0 % of all votes, and the other way round by 60.0 %: it needs 2 times as many" in text
    assert "is number 3 in the order, after" in text and two[:10] in text, "a document that nobody named has its hash"


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
    assert refused.value.code == "decision.transcript"
