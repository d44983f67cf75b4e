"""Agreed test cases: their text, and what is refused with the line that is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from scripted_model import FOLDER

from treaty_agent.negotiators.test_cases import (
    MAX_CASES,
    MAX_TEXT,
    CaseMessage,
    MessageCase,
    Success,
    TestCase,
    format_test_cases,
    parse_test_cases,
    read_test_cases,
)
from treaty_consensus.errors import Malformed, TreatyError
from treaty_handler import Failure

BOOKING = (FOLDER / "booking" / "cases.md").read_text()


@pytest.mark.parametrize("name", ["product-info", "booking", "counter"])
def test_what_is_written_is_what_was_read(name: str) -> None:
    cases = parse_test_cases((FOLDER / name / "cases.md").read_text())
    assert len(cases) >= 2
    assert parse_test_cases(format_test_cases(cases)) == cases


def test_000_37_a_case_has_request_response_and_result() -> None:
    search, book, cancel = parse_test_cases(BOOKING)
    assert (search.title, search.operation) == ("Two trips on a day", "searchTrips")
    assert search.arguments == {"origin": "BER", "destination": "PRG", "date": "2027-05-01"}
    assert search.request.data == b"SEARCH req001 BER PRG 2027-05-01"
    assert book.outcome == Success({"booking": "XK7Q2", "total": 5580})
    assert book.response.data == b'OK req002 {"booking":"XK7Q2","total":5580}'
    assert cancel.outcome == Failure(code=409, message="It was given back before")
    assert cancel.expected == "The booking cannot be given back again."


def test_000_37_there_are_several_cases_each_of_them_whole() -> None:
    one, two, *_ = BOOKING.split("# Test case ")[1:]
    assert len(parse_test_cases(f"# Test case {one}# Test case {two}")) == 2
    parts = ("**Test request data**", "**Test response data**", "**Expected result**")
    expected = re.sub(r"(?<=\*\*Expected result\*\*:).*", "", BOOKING, count=1)
    for text in (f"# Test case {one}", expected, *(BOOKING.replace(part, "**Other**", 1) for part in parts)):
        with pytest.raises(Malformed):
            parse_test_cases(text)


def test_a_text_may_hold_fences_and_nothing() -> None:
    text = BOOKING.replace("```text\nBOOK req002 EC-173 2\n```", "`````text\n```\n````\n\n`````")
    book = parse_test_cases(text)[1]
    assert book.request.data == b"```\n````\n"
    assert parse_test_cases(format_test_cases(parse_test_cases(text))) == parse_test_cases(text)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        (lambda text: "Here they are:\n" + text, "line 1 is not of the form '# Test case 1: TITLE'"),
        (lambda text: text.replace("# Test case 2", "# Test case 3"), "'# Test case 2: TITLE'"),
        (lambda text: text.replace("# Test case 1:", "# Test case 01:"), "'# Test case 1: TITLE'"),
        (lambda text: text.replace("Two trips on a day", "x" * 121), "'# Test case 1: TITLE'"),
        (lambda text: text.replace("`bookTrip`", "bookTrip"), "names no operation"),
        (lambda text: text.replace("**Outcome**:", "**Result**:", 1), "is not **Outcome**:"),
        (lambda text: text.replace("**Arguments**:\n", "", 1), "is not **Arguments**:"),
        (lambda text: text.replace("```json", "```python", 1), "does not open a block"),
        (lambda text: text.replace("```json", "```text", 1), "not marked json"),
        (lambda text: text.replace('"seats": 2', '"seats": 2,'), "is no JSON"),
        (lambda text: text.replace('"seats": 2', '"seats": 2, "seats": 3'), "is no JSON"),
        (lambda text: text.replace('{"trip": "EC-173", "seats": 2}', "[1]"), "no JSON object"),
        (lambda text: text.replace('{"error": {', '{"value": 1, "error": {'), "an outcome that is neither"),
        (lambda text: text.replace('"code": 409', '"code": "409"'), "an outcome that is neither"),
        (lambda text: text.replace('{"value": {"booking"', '{"result": {"booking"'), "an outcome that is neither"),
        (lambda text: text.replace("**Expected result**: Two", "**Expected result**:\n\nTwo"), "no expected result"),
        (lambda text: text.replace("```text\nOK req002", "```base64\nOK req002"), "no base64"),
        (lambda text: text[: text.rindex("```")], "is still open"),
        (lambda text: text.replace("\n", "\r\n"), "'# Test case 1: TITLE'"),
        (lambda text: text.split("# Test case 2")[0], "fewer than 2"),
        (lambda text: "", "fewer than 2"),
        (lambda text: text + "\ud800", "lone surrogate"),
    ],
)
def test_what_is_refused(change: Callable[[str], str], phrase: str) -> None:
    spoilt = change(BOOKING)
    assert spoilt != BOOKING
    with pytest.raises(Malformed) as caught:
        parse_test_cases(spoilt)
    assert caught.value.code == "negotiation.answer"
    assert phrase in caught.value.message


def test_000_37_of_a_foreign_text_the_cases_in_the_form_are_read() -> None:
    search, book, cancel = parse_test_cases(BOOKING)
    assert read_test_cases(BOOKING) == ((search, book, cancel), True)
    for text in (
        f"Here they are:\n{BOOKING}",
        f"{BOOKING}\nThat is all.",
        BOOKING.replace("# Test case 1", "# Test case 0\n# Test case 7"),
    ):
        assert read_test_cases(text) == ((search, book, cancel), False)
    assert read_test_cases(BOOKING.replace("# Test case", "# 测试用例")) == ((), False)
    assert read_test_cases(BOOKING.replace("**Outcome**", "**结果**", 1)) == ((book, cancel), False)
    assert read_test_cases(BOOKING.replace("\n", "\r\n")) == ((search, book, cancel), True)
    first = read_test_cases("# Test case 1: One\n" + BOOKING.partition("# Test case 2: ")[2].partition("\n")[2]).cases[0]
    assert isinstance(first, TestCase) and first.operation


SOURCE = """# Test case 1

- **Test request data**:
```text
SEARCH req001
```
- **Test response data**: {"a": 1}
- **Test expected result**:
It is found,
as it should be.
"""
"""The source's form in English, with blocks, and on the line of the label."""


def test_000_37_the_sources_form_round_trips() -> None:
    request, response = CaseMessage("text", "SEARCH req001"), CaseMessage("json", {"a": 1})
    case = MessageCase("Test case 1", request, response, "It is found, as it should be.")
    assert read_test_cases(SOURCE) == ((case,), True)
    assert read_test_cases(format_test_cases([case, case])) == ((case, case), True)
    assert read_test_cases(SOURCE.replace("- **", "").replace("**:", ": ").replace("# Test case 1", "## 测试用例 1：找到"))[1]
    both = read_test_cases(SOURCE + BOOKING)
    assert both == ((case, *parse_test_cases(BOOKING)), True)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("Test request data", "Test data"),
        lambda text: text.replace("Test response data", "Test data"),
        lambda text: text.partition("- **Test expected")[0],
        lambda text: text.replace("It is found,\nas it should be.\n", ""),
        lambda text: text.replace('{"a": 1}', "It answers."),
        lambda text: text.replace("```text", "````text"),
        lambda text: text.replace("It is found", "x" * 1_001),
    ],
)
def test_000_37_an_incomplete_case_is_ignored(change: Callable[[str], str]) -> None:
    assert read_test_cases(change(SOURCE)) == ((), False)


def test_a_foreign_text_of_open_blocks_is_read_in_bounded_time() -> None:
    for opened in (
        "# Test case 1: x\n**Operation**: `a`\n**Arguments**:\n```json\n",
        "# Test case 1\n**Test request data**:\n```json\n",
    ):
        assert read_test_cases(opened * (MAX_TEXT // len(opened))) == ((), False)


def test_caps() -> None:
    one = parse_test_cases(BOOKING)[1]
    assert len(parse_test_cases(format_test_cases([one] * MAX_CASES))) == MAX_CASES
    for text in (format_test_cases([one] * (MAX_CASES + 1)), BOOKING + "\n" * MAX_TEXT):
        with pytest.raises(TreatyError) as caught:
            parse_test_cases(text)
        assert caught.value.code == "negotiation.answer"
