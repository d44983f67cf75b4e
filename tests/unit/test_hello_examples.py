"""Every example that the source prints is read, or stands in the table of its README.md with the code that refuses it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from meta_peers import negotiating_buyer, negotiating_shop
from msgspec import structs

from treaty_agent.negotiators.test_cases import read_test_cases
from treaty_anp.frame import ProtocolType, encode
from treaty_anp.hello_profile import hello, messages
from treaty_anp.hello_profile.actions import Consider
from treaty_anp.hello_profile.commands import Propose
from treaty_anp.hello_profile.documents import parse_candidate
from treaty_consensus.errors import TreatyError

ROOT = Path(__file__).parents[2]
PRINTED = ROOT / "tests" / "vectors" / "hello"
NAMES = sorted(path.name for path in PRINTED.iterdir() if path.name != "README.md")
FILLED = {
    "01-protocol-negotiation.json": {
        "candidateProtocols": "02-candidate-in-full.md",
        "modificationSummary": "04-modification-summary.md",
    },
    "06-test-cases-negotiation.json": {"testCases": "07-test-cases.md", "modificationSummary": "04-modification-summary.md"},
    "08-fix-error-negotiation.json": {"errorDescription": "09-error-description.md"},
}
"""The forms, and the printed texts that belong into them."""


def text(name: str) -> str:
    return (PRINTED / name).read_text(encoding="utf-8")


def code_of(read: Callable[[], Any]) -> str:
    """The code with which something is refused, or ""."""
    try:
        read()
    except TreatyError as error:
        return error.code
    return ""


def outcome(name: str) -> str:
    """The code with which an example is refused as it stands, or ""."""
    if "hello" in name:
        kind = "destinationHello" if "destination" in name else "sourceHello"
        return code_of(lambda: hello.parse(text(name), kind))  # type: ignore[arg-type]
    if name.endswith(".json"):
        return code_of(lambda: messages.parse(text(name).encode()))
    return code_of(lambda: parse_candidate(text(name)))


def test_the_table_names_every_example_and_its_code() -> None:
    page = (PRINTED / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\d\d-.*?) \| (.*) \|$", page, re.MULTILINE)
    code_of = {name: code for names, code in rows for name in re.findall(r"`(.*?)`", names)}
    assert sorted(code_of) == NAMES
    for name, code in code_of.items():
        assert re.findall(r"\(`([a-z]+\.[a-z-]+)`\)", code) == ([outcome(name)] if outcome(name) else []), name


@pytest.mark.parametrize("name", FILLED)
def test_a_printed_form_with_the_printed_text_is_read(name: str) -> None:
    value = {**json.loads(text(name)), **{field: text(source) for field, source in FILLED[name].items()}}
    parsed = messages.parse(json.dumps(value, indent=4).encode())
    for source in FILLED[name].values():
        assert text(source) in structs.asdict(parsed).values()


def test_000_43_the_printed_question_is_read() -> None:
    value = {**json.loads(text("10-natural-language-negotiation.json")), "messageId": "0123456789abcdef", "message": "?"}
    parsed = messages.parse(json.dumps(value).encode())
    assert parsed == messages.NaturalLanguageNegotiation("REQUEST", "0123456789abcdef", "?")


def test_the_printed_document_and_summary_are_proposed() -> None:
    document, summary = text("02-candidate-in-full.md"), text("04-modification-summary.md")
    (sent,) = negotiating_buyer().apply(Propose(document, summary), 0.0)
    shop = negotiating_shop()
    payload = {"action": "protocolNegotiation", "sequenceId": 0, "status": "negotiating"}
    message = json.dumps({**payload, "candidateProtocols": document, "modificationSummary": summary}).encode()
    assert shop.receive(encode(ProtocolType.META, message), 0.0) == [Consider(document, summary, 1, False)]
    assert parse_candidate(document).title == "需求"
    assert sent


def test_000_37_the_printed_test_cases_are_read_whole() -> None:
    cases, whole = read_test_cases(text("07-test-cases.md"))
    assert whole
    assert [(case.title, case.request.content["productId"], case.response.content["status"]["code"]) for case in cases] == [
        ("测试用例1", "P12345", 200),
        ("测试用例2", "P99999", 404),
    ]
    assert cases[1].expected == "请求的产品不存在,返回状态码404,产品信息为空。"


def test_the_printed_hellos_have_five_capabilities_and_no_hash() -> None:
    for name in NAMES:
        if "hello" in name:
            kind: hello.HelloType = "destinationHello" if "destination" in name else "sourceHello"
            parsed = hello.parse(text(name), kind)
            assert len(parsed.capabilities) == 5
            assert parsed.used_protocol_hash is None
            assert bool(parsed.candidate_protocols) == name.startswith("16")
            assert bool(parsed.selected_protocol) == name.startswith("17")
