"""Co-signed reports and transcripts of flow sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flow_peers import BUYER, DELEGATION, SHARING, SHOP, FlowWire, at, delegation, payloads, registry, sharing, unsent

from treaty_agent.reports.report_rules import flow_negotiation_id
from treaty_anp.flow_profile.actions import Agreed, NegotiationEnded, Ready, ReportReceived, Shortcut
from treaty_anp.flow_profile.capabilities import ProtocolOffer
from treaty_anp.flow_profile.commands import Renegotiate, SendReport
from treaty_anp.flow_profile.machine import MAX_MESSAGES
from treaty_anp.flow_profile.messages import encode, parse
from treaty_anp.flow_profile.payloads import ConfirmationAcknowledgment, ErrorReport, ReportMessage, parse_payload
from treaty_anp.flow_profile.states import FlowState
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused, ReportSigned
from treaty_anp.transcript import TranscriptRecorder, parse_transcript, replay
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Malformed, NotFound, Refused, Untrusted

KEY = f"{BUYER.did}#key-1"
MESSAGES: list[ReportCosignature] = [
    ReportProposed(b'{"type":"report"}', KEY, bytes(64)),
    ReportSigned(KEY, bytes(range(64))),
    ReportRefused("report.other"),
]


def joined(reports: tuple[bool, bool], **options: Any) -> tuple[FlowWire, str]:
    wire = FlowWire.join(
        registry(sharing(), delegation()), registry(sharing(), delegation()), reports=reports, **options
    ).settle()
    (ready,) = wire.of("initiator", Ready)
    return wire, ready.session_id


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("who", ["initiator", "responder"])
def test_a_report_goes_over_the_wire_where_both_sides_agreed(who: str, message: ReportCosignature) -> None:
    wire, session = joined((True, True))
    (ready,) = wire.of("responder", Ready)
    assert ready.agreed.extensions["reportCosignature"] is True
    wire.perform(who, wire.engine(who).apply(SendReport(session, message), at(1)))
    sent = wire.sent[-1][1]
    assert (sent.type, sent.action, sent.session_id) == ("meta-protocol", "report-cosignature", session)
    assert parse(encode(sent, BUYER if who == "initiator" else SHOP)).message == sent
    wire.settle()
    other = "responder" if who == "initiator" else "initiator"
    assert wire.of(other, ReportReceived) == [ReportReceived(session, message)]
    assert wire.engine(other).state is FlowState.RUNNING
    wire.check_transcripts()


@pytest.mark.parametrize("reports", [(True, False), (False, True), (False, False)])
def test_a_report_needs_the_agreement_of_both(reports: tuple[bool, bool]) -> None:
    wire, session = joined(reports)
    for who in ("initiator", "responder"):
        assert "reportCosignature" not in wire.of(who, Ready)[0].agreed.extensions
        with pytest.raises(Refused) as refusal:
            wire.engine(who).apply(SendReport(session, MESSAGES[0]), at(1))
        assert refusal.value.code == "session.profile"
    forged = unsent(wire.initiator, ReportMessage.of(MESSAGES[0]), session_id=session)
    wire.perform("responder", wire.responder.receive(replace(forged, timestamp=at(1).unix), at(1)))
    (ended,) = wire.of("responder", NegotiationEnded)
    assert ended.error.code == "flow.message"


def test_an_unwilling_reporter_costs_no_further_message() -> None:
    plain, _ = joined((False, False))
    for reports in ((True, False), (False, True), (True, True)):
        wire, _ = joined(reports)
        assert wire.actions() == plain.actions()


def test_a_remembered_shortcut_works_without_reports() -> None:
    agreed = Agreed(SHARING, {}, {"reportCosignature": True, "protocolHash": "ab" * 32}, "https://r.example/x", "ab" * 32)
    wire, session = joined((False, True), shortcut=Shortcut(agreed, confirmed=True))
    assert not wire.initiator.sessions.get(session).reports
    assert wire.actions().count("parameter-negotiation") == 1


def test_an_unknown_session_has_no_report() -> None:
    wire, _ = joined((True, True))
    with pytest.raises(NotFound):
        wire.initiator.apply(SendReport("session-nowhere", MESSAGES[0]), at(1))
    forged = unsent(wire.initiator, ReportMessage.of(MESSAGES[0]), session_id="session-nowhere")
    wire.perform("responder", wire.responder.receive(replace(forged, timestamp=at(1).unix), at(1)))
    assert wire.of("responder", NegotiationEnded)[0].error.code == "flow.session"


def test_reports_count_as_messages_of_negotiation() -> None:
    wire, session = joined((True, True))
    for _ in range(MAX_MESSAGES + 1):
        wire.perform("initiator", wire.initiator.apply(SendReport(session, MESSAGES[2]), at(1)))
    wire.settle()
    assert wire.of("responder", NegotiationEnded)[0].error.code == "flow.endless"


def test_both_randoms_differ_between_negotiations() -> None:
    wire, session = joined((True, True))

    def acknowledgment() -> str:
        mine, theirs = (wire.engine(who).sessions.get(session).acknowledgment for who in ("initiator", "responder"))
        assert mine == theirs
        return mine

    def last() -> str:
        messages = [message for _, message in wire.sent if isinstance(message.payload, ConfirmationAcknowledgment)]
        return messages[-1].message_id

    first = acknowledgment()
    assert first == last()
    nid = flow_negotiation_id(BUYER.did, SHOP.did, session, first)
    text = f'["{BUYER.did}","{SHOP.did}","{session}","{first}"]'
    assert nid == hex_digest(text.encode())
    wire.perform("initiator", wire.initiator.apply(Renegotiate(session), at(1)))
    wire.settle()
    assert last() != acknowledgment() == first  # the same document: the same negotiation
    wire.perform("initiator", wire.initiator.apply(Renegotiate(session, protocol=DELEGATION), at(2)))
    wire.settle()
    assert acknowledgment() == last() != first


@pytest.mark.parametrize(
    "value",
    [
        {"status": "proposed", "payload": "e30=", "keyid": KEY},
        {"status": "proposed", "payload": "no base64", "keyid": KEY, "signature": "A" * 86 + "=="},
        {"status": "signed", "keyid": KEY, "signature": "AAAA"},
        {"status": "refused"},
        {"status": "agreed"},
    ],
)
def test_what_is_no_message_about_a_report_is_refused(value: dict[str, str]) -> None:
    with pytest.raises(Malformed):
        parse_payload("report-cosignature", {"version": "1.0", **value})


# Transcripts


def test_a_changed_registry_is_written_down_and_replayed() -> None:
    wire = FlowWire.join(registry(sharing(), delegation()), registry(sharing(), delegation()))
    wire.responder.capabilities.registry.remove(SHARING)
    wire.responder.capabilities.registry.add(ProtocolOffer("anp:protocol:other:1.0", capabilities=["x"]))
    wire.settle()
    profile, notes = parse_transcript(wire.recorders["responder"].transcript())
    assert (profile, [note.name for note in notes[:3]]) == ("flow", ["responder", "capabilities", "receive"])
    assert [note.drawn for note in notes[:2]] == [(), ()]
    assert notes[2].drawn == (wire.sent[1][1].message_id,)
    wire.check_transcripts()


@pytest.mark.parametrize(("before", "after"), [(b'"drew":["', b'"drew":["x'), (b'"],"note"', b'","session-more"],"note"')])
def test_ids_that_were_not_drawn_do_not_replay(before: bytes, after: bytes) -> None:
    wire, _ = joined((False, False))
    data = wire.recorders["initiator"].transcript()
    recorder = TranscriptRecorder("flow")
    _, notes = parse_transcript(data)
    assert replay(data) == len(notes)
    written = data[: data.rstrip(b"\n").rindex(b"\n") + 1].replace(before, after, 1)
    recorder._write(written.partition(b"\n")[2])
    with pytest.raises(Untrusted) as difference:
        replay(recorder.transcript())
    assert difference.value.code == "transcript.differs"


def test_an_error_report_keeps_lists_and_objects() -> None:
    wire, _ = joined((False, False))
    details = {"parameter": "chunkSize", "supported": [1, [2, {"minimum": 3}]]}
    payload = ErrorReport(error_code="X", error_message="No.", details=details)
    forged = unsent(wire.initiator, payload)
    wire.perform("responder", wire.responder.receive(replace(forged, timestamp=at(1).unix), at(1)))
    assert payloads([("initiator", forged)], "error") == [payload]
    wire.check_transcripts()
