"""Test cases of the source's form: the code says which call their messages are, and is refused where it sends others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_negotiators import DOCUMENT, MOUSE, TEST_CASES, implementation

from treaty_agent.negotiators.handler_check import complete_cases
from treaty_agent.negotiators.test_cases import CaseMessage, MessageCase, Success, TestCase, parse_test_cases
from treaty_consensus.errors import Refused
from treaty_handler import Failure
from treaty_sandbox.runtime import SandboxRuntime

ASKED = {"messageId": "m1", "type": "REQUEST", "action": "getProductInfo", "productId": "M1"}
TOLD = {"messageId": "m1", "type": "RESPONSE", "status": {"code": 200, "message": "成功"}, "productInfo": MOUSE}


async def completed(home: Path, *cases: MessageCase | TestCase) -> tuple[TestCase, ...]:
    runtime = SandboxRuntime(home, ("none",))
    try:
        return await complete_cases(runtime, implementation(DOCUMENT).package, cases)
    finally:
        await runtime.close()


def shown(value: Any = ASKED, answer: Any = TOLD) -> MessageCase:
    return MessageCase("One", CaseMessage("json", value), CaseMessage("json", answer), "It is so.")


async def test_000_37_the_call_and_outcome_follow_the_messages(tmp_path: Path) -> None:
    gone = {**TOLD, "status": {"code": 404, "message": "产品未找到"}, "productInfo": None}
    own = parse_test_cases(TEST_CASES)[0]
    exchange, missing, same = await completed(tmp_path, shown(), shown({**ASKED, "productId": "P9"}, gone), own)
    assert (exchange.operation, exchange.arguments, exchange.outcome) == ("getProductInfo", {"productId": "M1"}, Success(MOUSE))
    # The words for people are those of the code; the next checks compare with them.
    assert exchange.response.content == {**TOLD, "status": {"code": 200, "message": "Success"}}
    assert (missing.arguments, missing.outcome) == ({"productId": "P9"}, Failure(code=404, message="产品未找到"))
    assert same == own


async def test_000_37_a_request_answered_by_the_server_is_compared(tmp_path: Path) -> None:
    request = {**ASKED, "productId": 7}
    answer = {**TOLD, "status": {"code": 400, "message": "请求有误"}, "productInfo": None}
    assert await completed(tmp_path, shown(request, answer)) == ()
    with pytest.raises(Refused):
        await completed(tmp_path, shown(request, {**answer, "status": {"code": 422, "message": "请求有误"}}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda request, answer: shown({**request, "currency": "EUR"}, answer), "the request"),
        (lambda request, answer: shown(request, {**answer, "version": 2}), "of the form of"),
        (
            lambda request, answer: shown(request, {**answer, "status": {"code": 201, "message": "成功"}}),
            "of the form of|means|Return",
        ),
        (lambda request, answer: shown(request, {"answer": 1}), "Return"),
    ],
)
async def test_000_37_code_that_ignores_the_messages_is_refused(
    tmp_path: Path, change: Callable[[Any, Any], MessageCase], words: str
) -> None:
    with pytest.raises(Refused, match=words) as refusal:
        await completed(tmp_path, change(ASKED, TOLD))
    assert refusal.value.code == "negotiation.code"
    assert "Test case 1 (One)" in refusal.value.message
