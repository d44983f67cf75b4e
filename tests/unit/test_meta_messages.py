"""Meta messages: fixed actions, strict fields, clear errors."""

from __future__ import annotations

import json

import pytest

from treaty_client.meta import messages
from treaty_client.meta.messages import CodeGeneration, MetaMessage, ReportProposed, ReportRefused, ReportSigned, parse
from treaty_consensus.errors import TreatyError

ALL: list[MetaMessage] = [
    CodeGeneration("generated"),
    CodeGeneration("error"),
    ReportProposed(b"{}", "did:wba:buyer.example#key-1", bytes(64)),
    ReportSigned("did:wba:shop.example#key-1", bytes(64)),
    ReportRefused("report.document"),
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
        (b'{"action":"protocolNegotiation","status":"negotiating"}', "meta.unknown-action"),
        (b'{"action":"\\ud83d\\ude00"}', "meta.unknown-action"),
        (b'{"action":"reportCosignature"}', "meta.message"),
        (b'{"action":"reportCosignature","status":"proposed","payload":"?"}', "meta.message"),
        (b'{"action":"reportCosignature","status":"proposed","payload":"?","keyid":"k","signature":""}', "canonical.base64"),
        (b'{"action":"reportCosignature","status":"signed","keyid":"k","signature":"AAAA"}', "meta.message"),
        (b'{"action":"reportCosignature","status":"refused","reason":"Because!"}', "meta.message"),
        (b'{"action":"codeGeneration","status":"generated","x":"' + b"y" * messages.MAX_MESSAGE + b'"}', "canonical.too-large"),
    ],
)
def test_000_08_what_is_no_message_is_refused_by_name(payload: bytes, code: str) -> None:
    with pytest.raises(TreatyError) as refusal:
        parse(payload)
    assert refusal.value.code == code
