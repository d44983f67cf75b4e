"""Lines of versions: who belongs to one, what a ballot on one of them says, and which version is spoken."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from signers import Signer, domain_signer, key_signer
from simulated_log import ANCHORS, TOPIC, LogBuilder, protocol_uri

from treaty_consensus import kinds
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.election.line import Lines
from treaty_consensus.kinds import NONE
from treaty_consensus.protocol import parse_protocol_uri

State = Literal["active", "deprecated", "yanked", "revoked"]


def sixteen(**changes: Any) -> LogBuilder:
    """Return a log of sixteen agents that weigh the same. `changes`: constants of the election."""
    log = LogBuilder(msgspec.structs.replace(development_parameters(), **changes))
    log.agents = tuple(map(domain_signer, ANCHORS))
    return log


def ring(log: LogBuilder, *documents: str, step: int = 1) -> None:
    """Let each agent report the document of its place with the next agent."""
    for place, agent in enumerate(log.agents):
        log.report(agent, log.agents[(place + step) % len(log.agents)], documents[place % len(documents)])


def set_status(
    log: LogBuilder, author: Signer, name: str, state: State, version: str = "1.0", successor: str | None = None
) -> None:
    log.add(kinds.Status(protocol_uri(author, name, version), state, successor=successor), author)


def elected(log: LogBuilder) -> str | None:
    """Close the epoch and return the document of the consensus to speak."""
    return next(decision.consensus for decision in log.close() if decision.topic == TOPIC)


def candidates(log: LogBuilder, *members: str) -> list[dict[str, Any]]:
    """Return the candidates in the newest transcript, or the entries of other members."""
    transcript: dict[str, Any] = log.newest_transcript()
    return [entry for member in members or ("candidates",) for entry in transcript[member]]


def elect(log: LogBuilder, *documents: str) -> str | None:
    """Let everybody report the documents until there is a consensus."""
    for _ in range(3):
        ring(log, *documents)
        consensus = elected(log)
    return consensus


@pytest.mark.parametrize(
    ("base", "continues"),
    [
        ("a.example/p/1.0", True),
        ("a.example/p/1.9", True),
        ("a.example/p/2.0", False),
        ("a.example/q/1.0", False),
        ("b.example/p/1.0", False),
        ("a.example/p/1!1.0", False),
        ("a.example/p/1rc1", True),
    ],
)
def test_a_line_is_one_name_and_one_major_version(base: str, continues: bool) -> None:
    own, other = (parse_protocol_uri(f"https://r.example/protocols/{path}") for path in ("a.example/p/1.1", base))
    assert own.continues(other) is continues


def test_a_ballot_on_one_document_is_one_on_its_line() -> None:
    lines = Lines(first={"b": "a", "c": "a"})
    assert lines.read((("b",),)) == (("a",),)
    assert lines.read((("x",), ("c", "y"), (NONE,), ("a",))) == (("x",), ("a", "y"), (NONE,)), "the best place counts"
    assert lines.read((("b", "c"), ("a",))) == (("a",),)


def test_a_successor_inherits_the_tier_of_a_loyal_ballot() -> None:
    lines = Lines(successors={"a": "s"})
    assert lines.read((("a",),)) == (("a", "s"),)
    assert lines.read((("x",), ("a",), (NONE,))) == (("x",), ("a", "s"), (NONE,))
    assert lines.read((("a",), (NONE,), ("s",))) == (("a",), (NONE,), ("s",)), "who ranks it has said so"
    assert lines.read((("x",),)) == (("x",),)


@pytest.mark.parametrize("shares", [("a",), ("a", "b"), ("a", "b", "c")])
def test_users_of_three_versions_elect_one_line(shares: tuple[str, ...]) -> None:
    log = sixteen()
    author = log.agents[0]
    versions = {"a": log.publish(author, "p"), "b": log.release(author, "p", "1.1"), "c": log.release(author, "p", "1.2")}
    assert elect(log, *(versions[name] for name in shares)) in versions.values()
    (candidate,) = candidates(log)
    assert candidate["state"] == "consensus" and candidate["voters"] == 16


def test_the_spoken_version_is_the_newest_that_half_reached() -> None:
    log = sixteen()
    author = log.agents[0]
    first, second = log.publish(author, "p"), log.release(author, "p", "1.1")
    assert elect(log, first) == first
    # Both ends of a pair have reached what they agreed on: three pairs in a row are four of sixteen users.
    for pairs, spoken in ((6, first), (7, second)):
        for place, agent in enumerate(log.agents):
            document = second if place < pairs else first
            log.report(agent, log.agents[(place + 1) % 16], document)
        decision = log.close()[0]
        assert decision.consensus == spoken, pairs
    assert dict(decision.states) == {second: "consensus", first: "superseded"}
    (candidate,) = candidates(log)
    assert candidate["line"] == first and [version for version, _ in candidate["versions"]] == [first, second]
    roll = log.newest_roll()
    assert roll["reach"]["able"] == roll["reach"]["pairs"] != "0", "users of two versions can speak to each other"


def test_another_publisher_begins_a_line_of_its_own() -> None:
    log = sixteen()
    first = log.publish(log.agents[0], "p")
    copy = log.publish(log.agents[1], "p", "1.1", base=kinds.Base(protocol_uri(log.agents[0], "p"), first))
    elect(log, first, copy)
    assert {entry["hash"] for entry in candidates(log)} == {first, copy}


@pytest.mark.parametrize("state", ["yanked", "revoked"])
def test_a_withdrawn_document_is_repealed_and_not_reelected(state: State) -> None:
    log = sixteen()
    document = log.publish(log.agents[0], "p")
    assert elect(log, document) == document
    set_status(log, log.agents[0], "p", state)
    for number in range(4):
        ring(log, document)
        decision = log.close()[0]
        assert decision.consensus is None
        assert dict(decision.states) == ({document: "repealed"} if number == 0 else {})
    set_status(log, log.agents[0], "p", "active")
    assert [elect(log, document)] == [document], "a yank can be taken back"


def test_a_line_goes_on_with_what_was_not_taken_back() -> None:
    log = sixteen()
    author = log.agents[0]
    first, second = log.publish(author, "p"), log.release(author, "p", "1.1")
    assert elect(log, first) == first
    set_status(log, author, "p", "revoked")
    ring(log, first)
    assert elected(log) == second, "nobody speaks it yet, but nothing else of the line is left"


def test_a_withdrawn_line_is_repealed_by_the_spoken_version() -> None:
    log = sixteen()
    author = log.agents[0]
    log.publish(author, "p")
    second = log.release(author, "p", "1.1")
    assert elect(log, second) == second
    for version in ("1.0", "1.1"):
        set_status(log, author, "p", "revoked", version)
    assert [dict(decision.states) for decision in log.close()] == [{second: "repealed"}]
    assert [[second, "repealed"]] == log.newest_transcript()["former"]


@pytest.mark.parametrize("copied_by", ["key", "member", "author"])
def test_a_copy_undoes_a_withdrawal_only_by_who_counts(copied_by: str) -> None:
    log = sixteen()
    author, guest = log.agents[0], log.agents[1]
    document = log.publish(author, "p")
    assert elect(log, document) == document
    copier = {"key": key_signer("a guest"), "member": guest, "author": author}[copied_by]
    log.publish(copier, "q", text="p")
    set_status(log, author, "p", "revoked")
    ring(log, document)
    assert elected(log) == (None if copied_by == "key" else document)


def test_the_successor_named_by_its_publisher_wins() -> None:
    log = sixteen()
    author, rival = log.agents[0], log.agents[5]
    old, new, other = log.publish(author, "p"), log.publish(author, "r"), log.publish(rival, "q")
    assert elect(log, old) == old
    set_status(log, author, "p", "deprecated", successor=protocol_uri(author, "r"))
    for _ in range(3):
        # A quarter speaks what was named, as many another document; the silent still use what was deprecated.
        for place, agent in enumerate(log.agents):
            log.report(agent, log.agents[(place + 1) % 16], (new if place < 5 else other) if place < 10 else old)
        consensus = elected(log)
    assert consensus == new


def test_a_deprecation_without_a_successor_moves_no_vote() -> None:
    log = sixteen()
    author, rival = log.agents[0], log.agents[5]
    old, other = log.publish(author, "p"), log.publish(rival, "q")
    assert elect(log, old) == old
    set_status(log, author, "p", "deprecated")
    for _ in range(4):
        for place, agent in enumerate(log.agents):
            log.report(agent, log.agents[(place + 1) % 16], other if place < 4 else old)
        assert elected(log) == old


def test_a_deprecated_version_ends_when_a_quarter_moved_on() -> None:
    log = sixteen()
    author = log.agents[0]
    old, new = log.publish(author, "p"), log.release(author, "p", "1.1")
    assert elect(log, old) == old
    set_status(log, author, "p", "deprecated", successor=protocol_uri(author, "p", "1.1"))
    for pairs, spoken in ((2, old), (3, new)):
        for place, agent in enumerate(log.agents):
            log.report(agent, log.agents[(place + 1) % 16], new if place < pairs else old)
        assert elected(log) == spoken


def test_inheritance_ends_with_the_horizon() -> None:
    log = sixteen(horizon_epochs=2)
    author = log.agents[0]
    old, new = log.publish(author, "p"), log.publish(author, "r")
    elect(log, old)
    set_status(log, author, "p", "deprecated", successor=protocol_uri(author, "r"))
    approvals = []
    for _ in range(3):
        ring(log, old)
        log.report(log.agents[0], log.agents[2], new)
        log.close()
        entries = candidates(log, "candidates", "nominees")
        approvals.append(next(int(entry["approval"]) for entry in entries if entry["hash"] == new))
    assert approvals[0] == approvals[1] > approvals[2]


@pytest.mark.parametrize("spoken", ["first", "second"])
def test_a_log_of_the_rule_before_goes_on_with_its_consensus(spoken: str) -> None:
    log = sixteen(rule=kinds.RULES[0], memory_horizons=None)
    author = log.agents[0]
    documents = {"first": log.publish(author, "p"), "second": log.release(author, "p", "1.1")}
    consensus = documents[spoken]
    assert elect(log, consensus) == consensus
    log.add(development_parameters(), log.operator)
    ring(log, consensus)
    assert elected(log) == consensus, "new parameters hold from the next epoch"
    for _ in range(2):
        ring(log, consensus)
        assert elected(log) == consensus
    transcript: dict[str, Any] = log.newest_transcript()
    assert (transcript["rule"], transcript["transitions"]) == ("schulze-margins-v3", [])
    assert not [credit for credit in log.newest_roll()["credits"] if credit["reason"] == "elected"]


@pytest.mark.parametrize("state", ["deprecated", "active"])
def test_a_line_without_users_speaks_its_first_document(state: State) -> None:
    log = sixteen(memory_horizons=1, horizon_epochs=1)
    author = log.agents[0]
    first = log.publish(author, "p")
    log.release(author, "p", "1.1")
    assert elect(log, first) == first
    for version in ("1.0", "1.1"):
        if state != "active":
            set_status(log, author, "p", state, version)
    other = log.candidate("q", topic="another/topic")
    assert [decision.consensus for decision in log.close()] == [None]
    log.vote(author, first)
    log.everybody_reports(other, topic="another/topic")
    assert first in [decision.consensus for decision in log.close()]


def test_a_weightless_publisher_withdraws_its_own() -> None:
    log = sixteen()
    guest = key_signer("a guest")
    document = log.publish(guest, "p")
    assert elect(log, document) == document
    set_status(log, guest, "p", "yanked")
    assert elected(log) is None


def test_a_line_with_an_active_document_has_no_heir() -> None:
    log = sixteen()
    author = log.agents[0]
    old, heir = log.publish(author, "p"), log.publish(author, "r")
    log.release(author, "p", "1.1")
    assert elect(log, old) == old
    set_status(log, author, "p", "deprecated", successor=protocol_uri(author, "r"))
    ring(log, old)
    log.report(log.agents[0], log.agents[2], heir)
    log.close()
    approvals = {entry["hash"]: entry["approval"] for entry in candidates(log, "candidates", "nominees")}
    assert approvals[heir] == "0"
