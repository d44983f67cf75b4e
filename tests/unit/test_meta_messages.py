"""Meta messages: fixed actions, strict fields, clear errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rejections import rejection

from treaty_anp.call_metadata import CallMetadata
from treaty_anp.hello_profile import messages
from treaty_anp.hello_profile.messages import (
    CodeGeneration,
    FixErrorNegotiation,
    MetaMessage,
    NaturalLanguageNegotiation,
    ProtocolNegotiation,
    ReportProposed,
    ReportRefused,
    ReportSigned,
    TracedMessage,
    parse,
)
from treaty_anp.trace_context import TraceContext
from treaty_consensus import protocol
from treaty_consensus.errors import TreatyError

ID = "0123456789abcdef"

ALL: list[MetaMessage] = [
    CodeGeneration("generated"),
    CodeGeneration("error"),
    ProtocolNegotiation(0, "negotiating", "# Document\n"),
    ProtocolNegotiation(2**31 - 1, "negotiating", "# 需求\n", "- \U0001f6d2"),
    ProtocolNegotiation(3, "accepted", "# Document\n"),
    ProtocolNegotiation(3, "accepted"),
    ProtocolNegotiation(1, "rejected", None, "No."),
    messages.TestCasesNegotiation("negotiating", "# Test case 1\n", "- one more"),
    messages.TestCasesNegotiation("accepted"),
    messages.TestCasesNegotiation("rejected", None, "No."),
    FixErrorNegotiation("negotiating", "# Error\n"),
    FixErrorNegotiation("accepted", ""),
    FixErrorNegotiation("rejected", "It is optional."),
    NaturalLanguageNegotiation("REQUEST", ID, "In which currency?"),
    NaturalLanguageNegotiation("RESPONSE", "!\"#$%&'()*+,-./:", "In euro."),
    ReportProposed(b"{}", "did:wba:buyer.example#key-1", bytes(64)),
    ReportSigned("did:wba:shop.example#key-1", bytes(64)),
    ReportRefused("report.other"),
    CallMetadata(),
    TracedMessage(CallMetadata(None, 1), b"\x00\n@\xff"),
    CallMetadata(TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", flags=255, state='a="\\"'), 2**31 - 1),
]


@pytest.mark.parametrize("message", ALL)
def test_every_message_survives_a_round_trip(message: MetaMessage) -> None:
    assert parse(messages.encode(message)) == message


def test_000_32_code_generation_has_the_fixed_form() -> None:
    assert json.loads(messages.encode(CodeGeneration("generated"))) == {"action": "codeGeneration", "status": "generated"}


def test_000_32_it_reads_what_the_official_sdk_writes() -> None:
    assert parse(b'{"action": "codeGeneration", "status": "generated"}') == CodeGeneration("generated")
    assert parse(b'{"action": "codeGeneration", "status": "error", "detail": "\\u9519"}') == CodeGeneration("error")


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "canonical.json"),
        (b"{}", "meta.message"),
        (b"[]", "meta.message"),
        (b'{"action":7}', "meta.message"),
        (b'{"action":"codeGeneration"}', "meta.message"),
        (b'{"action":"codeGeneration","status":"maybe"}', "meta.message"),
        (b'{"action":"codeGeneration","status":null}', "meta.message"),
        (b'{"action":"protocolNegotiation","status":"negotiating"}', "meta.message"),
        (b'{"action":"protocolNegotiation","sequenceId":0,"status":"negotiating","candidateProtocols":[]}', "meta.message"),
        (b'{"action":"protocolNegotiation","sequenceId":0,"status":"negotiating","candidateProtocols":" "}', "document.text"),
        (b'{"action":"protocolNegotiation","sequenceId":0,"status":"done"}', "meta.message"),
        (b'{"action":"testCasesNegotiation","status":"negotiating"}', "meta.message"),
        (b'{"action":"fixErrorNegotiation","status":"negotiating"}', "meta.message"),
        (b'{"action":"fixErrorNegotiation","status":"rejected","errorDescription":""}', "meta.message"),
        (
            b'{"action":"naturalLanguageNegotiation","type":"request","messageId":"0123456789abcdef","message":"?"}',
            "meta.message",
        ),
        (b'{"action":"naturalLanguageNegotiation","type":"REQUEST","messageId":"","message":"?"}', "meta.message"),
        (b'{"action":"codeGeneration","status":"generated","status":"generated"}', "canonical.json"),
        (b'{"action":"codeGeneration","status":"generated","x":Infinity}', "canonical.json"),
        (b'{"action":"codeGeneration","status":"generated","x":"\\udc00"}', "canonical.json"),
        (b'{"action":"naturalLanguageNegotiation","type":"REQUEST","messageId":"0123456789abcdef","message":""}', "meta.message"),
        (b'{"action":"protocolnegotiation"}', "meta.message: not among the capabilities"),
        (b'{"action":"\\ud83d\\ude00"}', "meta.message: not among the capabilities"),
        (b'{"action":"reportCosignature"}', "meta.message"),
        (b'{"action":"reportCosignature","status":"proposed","payload":"?"}', "meta.message"),
        (b'{"action":"reportCosignature","status":"proposed","payload":"?","keyid":"k","signature":""}', "canonical.text"),
        (b'{"action":"reportCosignature","status":"signed","keyid":"k","signature":"AAAA"}', "meta.message"),
        (b'{"action":"reportCosignature","status":"refused","reason":"Because!"}', "meta.message"),
        (b'{"action":"codeGeneration","status":"generated","x":"' + b"y" * messages.MAX_MESSAGE + b'"}', "canonical.too-large"),
    ],
)
def test_000_08_what_is_no_message_is_refused_by_name(payload: bytes, code: str) -> None:
    with pytest.raises(TreatyError) as refusal:
        parse(payload)
    assert rejection(refusal.value, code) == code


FIXED: dict[str, tuple[MetaMessage, dict[str, Any]]] = {
    "protocolNegotiation": (
        ProtocolNegotiation(0, "negotiating", "# D", "- s"),
        {"sequenceId": 0, "candidateProtocols": "# D", "modificationSummary": "- s", "status": "negotiating"},
    ),
    "codeGeneration": (CodeGeneration("error"), {"status": "error"}),
    "testCasesNegotiation": (
        messages.TestCasesNegotiation("negotiating", "# T", "- s"),
        {"testCases": "# T", "modificationSummary": "- s", "status": "negotiating"},
    ),
    "fixErrorNegotiation": (FixErrorNegotiation("rejected", "# E"), {"errorDescription": "# E", "status": "rejected"}),
    "naturalLanguageNegotiation": (
        NaturalLanguageNegotiation("REQUEST", ID, "?"),
        {"type": "REQUEST", "messageId": ID, "message": "?"},
    ),
}


@pytest.mark.parametrize("action", FIXED)
def test_000_13_every_action_is_a_fixed_string_with_its_fields(action: str) -> None:
    message, fields = FIXED[action]
    assert json.loads(messages.encode(message)) == {"action": action, **fields}


def test_000_23_and_26_absent_members_may_be_null_or_empty() -> None:
    assert set(json.loads(messages.encode(ProtocolNegotiation(1, "accepted")))) == {"action", "sequenceId", "status"}
    for absent in (None, ""):
        value = {"sequenceId": 1, "status": "accepted", "candidateProtocols": absent, "modificationSummary": absent}
        assert parse(json.dumps({"action": "protocolNegotiation", **value}).encode()) == ProtocolNegotiation(1, "accepted")
    assert parse(b'{"action":"fixErrorNegotiation","status":"accepted"}') == FixErrorNegotiation("accepted", "")


@pytest.mark.parametrize("action", ["protocolNegotiation", "testCasesNegotiation", "fixErrorNegotiation"])
def test_000_28_timeout_is_read_as_rejected_and_never_sent(action: str) -> None:
    value = {"action": action, "sequenceId": 1, "status": "timeout", "errorDescription": "Too late."}
    parsed = parse(json.dumps(value).encode())
    assert b'"status":"rejected"' in messages.encode(parsed)


@pytest.mark.parametrize("number", ["3", "3.0", "0.3e1", "30E-1"])
def test_000_08_one_number_has_several_spellings(number: str) -> None:
    payload = f'{{"sequenceId": {number}, "confidence": 0.9, "x": [1e999, {{"y": -1.5E-7}}], "status": "accepted",'
    assert parse(f'{payload} "action": "protocolNegotiation"}}'.encode()) == ProtocolNegotiation(3, "accepted")


@pytest.mark.parametrize("number", ["0.5", "1e999", "-1.0", "4294967296.0"])
def test_000_18_a_sequence_number_is_a_natural_number(number: str) -> None:
    payload = f'{{"sequenceId": {number}, "status": "accepted", "action": "protocolNegotiation"}}'
    with pytest.raises(TreatyError) as refusal:
        parse(payload.encode())
    assert refusal.value.code == "meta.message"


def test_000_08_the_sdks_ascii_spelling_is_read() -> None:
    payload = (
        b'{"action": "protocolNegotiation", "sequenceId": 1, "candidateProtocols": "# \\u9700\\u6c42", "status": "negotiating"}'
    )
    assert parse(payload) == ProtocolNegotiation(1, "negotiating", "# 需求")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (ProtocolNegotiation(0, "negotiating", "x" * (protocol.MAX_DOCUMENT + 1)), "frame.too-large"),
        (ProtocolNegotiation(0, "negotiating", "求" * (protocol.MAX_DOCUMENT // 3 + 1)), "frame.too-large"),
        (ProtocolNegotiation(0, "negotiating", "\x01" * protocol.MAX_DOCUMENT), "canonical.too-large"),
        (ProtocolNegotiation(0, "rejected", None, "x" * (messages.MAX_SUMMARY + 1)), "frame.too-large"),
        (messages.TestCasesNegotiation("negotiating", "x" * (protocol.MAX_DOCUMENT + 1)), "frame.too-large"),
        (FixErrorNegotiation("negotiating", "x" * (messages.MAX_SUMMARY + 1)), "frame.too-large"),
        (NaturalLanguageNegotiation("REQUEST", ID, "x" * (messages.MAX_QUESTION + 1)), "frame.too-large"),
        (ProtocolNegotiation(-1, "accepted"), "meta.message"),
        (ProtocolNegotiation(2**31, "accepted"), "meta.message"),
        (ProtocolNegotiation(0, "negotiating", "# D\0"), "document.text"),
        (ProtocolNegotiation(0, "negotiating", "# \ud800"), "canonical.json"),
    ],
)
def test_nothing_is_encoded_that_would_not_be_read(message: MetaMessage, code: str) -> None:
    with pytest.raises(TreatyError) as refusal:
        messages.encode(message)
    assert refusal.value.code == code
