"""What if I trusted these instead: the same log, replayed with other anchors."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from signers import domain_signer, signed
from simulated_log import ANCHORS, SUFFIX_LIST, SUFFIXES, TOPIC, LogBuilder, document_hash, open_log, suffix_blob
from simulated_registry import NAME, SimulatedRegistry, with_echo

from treaty_client.audit.auditor import AuditOptions, AuditReport, audit
from treaty_command.audit import audit as audit_command
from treaty_command.context import Options
from treaty_consensus.audit import Replay
from treaty_consensus.election.closing import DueDecision
from treaty_consensus.errors import NotFound, Untrusted
from treaty_consensus.kinds import Decision, Input
from treaty_consensus.statement import parse

OTHERS = tuple(f"other-{number:02}.example" for number in range(16))
ELSEWHERE = "another/topic"


@cache
def _two_camps() -> LogBuilder:
    log = open_log()
    camps = log.agents, tuple(map(domain_signer, OTHERS))
    documents = [log.publish(agents[0], name) for agents, name in zip(camps, ("ours", "theirs"), strict=True)]
    for epoch in range(3):
        for agents, document in zip(camps, documents, strict=True):
            for step in (1, 2, 3):
                for number, agent in enumerate(agents):
                    log.report(agent, agents[(number + step) % 16], document)
                    if epoch == 0 and step == 3:
                        log.vote(agent, document)
        if epoch == 1:
            log.everybody_votes(log.candidate("elsewhere", topic=ELSEWHERE), topic=ELSEWHERE)
        log.close()
    return log


@pytest.fixture
def log() -> LogBuilder:
    """The anchors of the log agree on one document, OTHERS on another one. Nobody writes to it."""
    return _two_camps()


OURS, THEIRS = document_hash("ours"), document_hash("theirs")


def replayed(log: LogBuilder, anchors: tuple[str, ...] | None) -> list[tuple[Decision, DueDecision]]:
    """Each decision of the log beside what it is recomputed to."""
    replay = Replay(suffix_blob, anchors=anchors)
    decisions = []
    for leaf in log.leaves:
        replay.append(leaf)
        if leaf.startswith(b'{"payload":') and isinstance(body := parse(leaf).body, Decision):
            assert replay.recomputed is not None
            decisions.append((body, replay.recomputed))
    replay.check_checkpoint(log.head())
    return decisions


@pytest.mark.deep
def test_with_the_logs_own_anchors_everything_is_as_it_was(log: LogBuilder) -> None:
    for anchors in (None, ANCHORS, tuple(reversed(ANCHORS))):
        decisions = replayed(log, anchors)
        assert [(body.topic, body.epoch) for body, _ in decisions] == [
            (TOPIC, 0),
            (ELSEWHERE, 1),
            (TOPIC, 1),
            (ELSEWHERE, 2),
            (TOPIC, 2),
        ]
        assert all(body == due.decision for body, due in decisions)
        assert [body.consensus for body, _ in decisions] == [None, None, None, None, OURS]


def test_with_others_another_one_is_elected(log: LogBuilder) -> None:
    """Each epoch goes on from what the epoch before would have been, not from what it was."""
    decided = [due.decision for _, due in replayed(log, OTHERS) if due.decision.topic == TOPIC]
    assert [decision.states for decision in decided] == [
        ((THEIRS, "candidate"),),
        ((THEIRS, "provisional"),),
        ((THEIRS, "consensus"),),
    ]
    assert decided[-1].consensus == THEIRS


def test_with_nobody_whom_the_log_knows_nobody_weighs_anything(log: LogBuilder) -> None:
    assert all(not due.decision.states for _, due in replayed(log, ("nobody.example",)))


def test_contradicted_trust_still_accuses_the_log(log: LogBuilder) -> None:
    *before, last = log.leaves
    entry = parse(last)
    assert isinstance(entry.body, Decision)
    elsewhere = Input(entry.body.input.size, "0" * 64)
    for changes, path in (({"input": elsewhere}, "body.input.root"), ({"electorate": "development"}, "body.electorate")):
        replay = Replay(suffix_blob, anchors=OTHERS)
        for leaf in before:
            replay.append(leaf)
        state = replay.size, replay.root(), dict(replay.facts), replay.recomputed
        with pytest.raises(Untrusted) as refusal:
            replay.append(signed(msgspec.structs.replace(entry.body, **changes), log.operator, issued=entry.issued).leaf)
        assert refusal.value.code == "audit.decision" and path in refusal.value.message
        assert (replay.size, replay.root(), dict(replay.facts), replay.recomputed) == state


def served(log: LogBuilder) -> SimulatedRegistry:
    """A registry that has the log."""
    registry = with_echo().copy(leaves=log.leaves)
    for blob in (SUFFIXES, *log.transcripts.values(), *log.rolls.values()):
        registry.put(blob)
    return registry


async def audited(registry: SimulatedRegistry, folder: Path, requested: AuditOptions) -> AuditReport:
    return await audit(NAME, folder, folder / "evidence", registry.network(), progress=lambda *_: None, options=requested)


async def test_an_audit_fetches_the_suffix_list_once(log: LogBuilder, tmp_path: Path) -> None:
    registry = served(log)
    report = await audited(registry, tmp_path, AuditOptions())
    assert report.is_open and not any(decision.differs for decision in report.decisions)
    fetched = [request for request in registry.requests if "blobs" in request]
    assert fetched == [f"GET /blobs/sha256/{SUFFIX_LIST.sha256}"]
    registry.requests.clear()
    assert (await audited(registry, tmp_path, AuditOptions())).decisions == report.decisions
    assert registry.requests == ["GET /checkpoint"]


async def test_an_audit_without_the_suffix_list_ends(log: LogBuilder, tmp_path: Path) -> None:
    registry = served(log)
    registry.tamper = lambda path, body: b"another list" if "blobs" in path else body
    with pytest.raises(Untrusted) as refusal:
        await audited(registry, tmp_path, AuditOptions())
    assert refusal.value.code == "audit.blob"
    registry = served(log)
    registry.blobs.clear()
    with pytest.raises(NotFound):
        await audited(registry, tmp_path, AuditOptions())
    assert (await audited(served(log), tmp_path, AuditOptions())).checkpoint.checkpoint == log.head(), (
        "what was not it was not kept"
    )


async def test_an_audit_tells_where_the_decisions_part(log: LogBuilder, tmp_path: Path) -> None:
    report = await audited(served(log), tmp_path, AuditOptions(anchors=(*OTHERS, "unheard-of.example")))
    assert report.known == OTHERS
    assert [(decision.body.topic, decision.body.epoch) for decision in report.decisions if decision.differs] == [
        (TOPIC, 0),
        (ELSEWHERE, 1),
        (TOPIC, 1),
        (ELSEWHERE, 2),
        (TOPIC, 2),
    ]


def shown(capsys: pytest.CaptureFixture[str], log: LogBuilder, home: Path, **arguments: Any) -> tuple[dict[str, Any], str]:
    """What `treaty audit` prints, as JSON and for people."""
    printed = []
    for as_json in (True, False):
        options = Options(home=home, json=as_json)
        vars(options)["network"] = served(log).network()
        audit_command(str(NAME), options=options, **arguments)
        printed.append(capsys.readouterr().out)
    return json.loads(printed[0]), printed[1]


@pytest.mark.deep
def test_the_command_shows_both(log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anchors = tmp_path / "anchors"
    anchors.write_text("\n".join((*OTHERS, "unheard-of.example")))
    value, text = shown(capsys, log, tmp_path, anchors=anchors)
    assert (value["parts"], len(value["anchors"]), value["known"]) == (0, 17, list(OTHERS))
    last = value["decisions"][-1]
    assert (last["consensus"], last["instead"]["consensus"]) == (OURS, THEIRS)
    assert (last["states"], last["instead"]["states"]) == ({OURS: "consensus"}, {THEIRS: "consensus"})
    assert "Epoch 0 is the first" in text and "16 of 17 anchors" in text and "consensus" in text
    anchors.write_text("\n".join(ANCHORS))
    value, text = shown(capsys, log, tmp_path, anchors=anchors)
    assert value["parts"] is None and "Every decision would have been the same." in text


@pytest.mark.deep
def test_the_command_shows_the_basis_of_the_newest_decision(
    log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value, text = shown(capsys, log, tmp_path, topic=TOPIC)
    assert value["transcript"] == log.newest_transcript()
    assert "Epoch 2, open electorate" in text
    with pytest.raises(SystemExit) as undecided:
        shown(capsys, log, tmp_path, topic="no/topic")
    assert undecided.value.code == 6


def test_a_development_electorate_has_no_anchors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogBuilder()
    log.everybody_votes(log.publish(log.agents[0], "one"))
    log.close()
    anchors = tmp_path / "anchors"
    anchors.write_text("alpha.example")
    value, text = shown(capsys, log, tmp_path, anchors=anchors)
    assert value["parts"] is None and value["known"] == ["alpha.example"]
    assert "not open" in text


async def test_an_audit_names_every_wrong_decision(tmp_path: Path) -> None:
    lying = LogBuilder(replay=Replay(differing=lambda _: None))
    lying.everybody_reports(lying.publish(lying.agents[0], "one"))
    for epoch in range(3):
        (due,) = lying.replay.decide()
        lying.add(due.decision if epoch == 1 else msgspec.structs.replace(due.decision, consensus="ab" * 32), lying.operator)
    with pytest.raises(Untrusted) as refused:
        await audited(served(lying), tmp_path, AuditOptions())
    assert refused.value.code == "audit.decision" and refused.value.message.startswith("2 decisions differ: (1) Leaf ")
    assert "in epoch 0" in refused.value.message and "in epoch 2" in refused.value.message
