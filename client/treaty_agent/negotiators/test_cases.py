"""Read and write the test cases that two agents agree on: Markdown for people and models.

docs/specification/hello-profile.md, section 6, has the format. `parse_test_cases` is strict, for cases that this side proposes.
`read_test_cases` takes the cases of a foreign text that have this form or that of the source, and passes over the rest. A case:

    # Test case 1: A product

    **Operation**: `getProductInfo`

    **Arguments**:

    ```json
    {"productId": "P12345"}
    ```

and in the same way an outcome, the request data, the response data, and one line with the expected result.

The application calls the operation with the arguments, so that the caller sends the request data. The other side's business logic
answers with the outcome, so that it sends the response data. The cases run in their order within one session.

The source's form has the two messages and the expected result alone, under a heading such as `# 测试用例1` or `# Test case 1`:

    - **测试请求数据**:
    {"messageId": "msg001", "action": "getProductInfo", "productId": "P12345"}

`handler_check.complete_cases` finds the operation, the arguments and the outcome of such a case by the code.

This module also checks operations and test cases against the functions that a responder offers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, cast

import jsonschema_rs
import msgspec

from treaty_consensus.canonical import b64decode
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError
from treaty_consensus.printable import printable
from treaty_consensus.protocol import MAX_DOCUMENT
from treaty_handler import Failure, Value, decode_json, encode_json
from treaty_io.codes import NegotiationCode

from .negotiator import Capability

# The cap of the wire: a text that a message may carry is read.
MAX_TEXT = MAX_DOCUMENT
# Fewer are no "several cases", as the source asks for. Each further case costs a call on both sides.
MIN_CASES, MAX_CASES = 2, 32
# One line each, as they are quoted in errors.
MAX_TITLE = 120
MAX_EXPECTED = 1_000

Notation: TypeAlias = Literal["json", "text", "base64"]

_HEADING = re.compile(r"# Test case ([0-9]{1,2}): (.+)")
_OPERATION = re.compile(r"`([A-Za-z][A-Za-z0-9_]{0,63})`")
# The source's form, as it prints it and in English.
_SOURCE_HEADING = re.compile(r"\s*#{1,6}\s*((?:Test case|测试用例)\s*[0-9]{1,2})\s*(?:[:：]\s*(.*))?", re.IGNORECASE)
_LABELS = tuple(
    re.compile(rf"\s*(?:[-*+]\s+)?(?:\*\*)?(?:{names})(?:\*\*)?\s*[:：]\s*(?:\*\*)?\s*(.*)", re.IGNORECASE)
    for names in ("测试请求数据|Test request data", "测试响应数据|Test response data", "测试预期结果|(?:Test )?expected results?")
)
_SOURCE_FENCE = re.compile(r"(`{3,})\w*")
_SOURCE_BLOCK = re.compile(r"(`{3,})(\w*)\n(.*)\n\s*\1", re.DOTALL)
_FENCE = re.compile(r"(`{3,})(json|text|base64)")


@dataclass(frozen=True)
class Success:
    """The result that the business logic answers with."""

    value: Value


@dataclass(frozen=True)
class CaseMessage:
    """A message of the protocol in a test case. `content`: a JSON value, or a text."""

    notation: Notation
    content: Value

    @property
    def data(self) -> bytes:
        """The bytes on the wire."""
        if self.notation == "json":
            return encode_json(self.content)
        return b64decode(self.content, limit=MAX_TEXT) if self.notation == "base64" else str(self.content).encode("utf-8")


Outcome: TypeAlias = Success | Failure


@dataclass(frozen=True)
class MessageCase:
    """A case of the source's form: its messages, and the expected result in natural language."""

    title: str
    request: CaseMessage
    response: CaseMessage
    expected: str


@dataclass(frozen=True)
class TestCase:
    """One call, its messages and its outcome."""

    __test__ = False  # else pytest collects the class because of its name

    title: str
    operation: str
    arguments: Mapping[str, Value]
    outcome: Outcome
    request: CaseMessage
    response: CaseMessage
    expected: str


Case: TypeAlias = TestCase | MessageCase


def parse_test_cases(text: str) -> tuple[TestCase, ...]:
    """Return the cases of a text. Raises `TooLarge` (`negotiation.answer`) or `Malformed` (`negotiation.answer`), with the
    place."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Malformed(NegotiationCode.ANSWER, "The test cases hold a lone surrogate.") from error
    # Checked before parsing: the text comes from the peer.
    if size > MAX_TEXT:
        raise TooLarge(NegotiationCode.ANSWER, f"The test cases have {size} bytes; at most {MAX_TEXT} are read.")
    lines = _Lines(text)
    cases: list[TestCase] = []
    while not lines.at_end():
        if len(cases) == MAX_CASES:
            raise TooLarge(NegotiationCode.ANSWER, f"There are more than {MAX_CASES} test cases.")
        cases.append(_case(lines, len(cases) + 1))
    if len(cases) < MIN_CASES:
        raise Malformed(NegotiationCode.ANSWER, f"There are fewer than {MIN_CASES} test cases.")
    return tuple(cases)


class ReadCases(NamedTuple):
    """The cases of a foreign text that this side can run. `whole`: whether nothing of the text was passed over."""

    cases: tuple[Case, ...]
    whole: bool


def read_test_cases(text: str) -> ReadCases:
    """Return the cases of a text that have a form, whatever else the text says and however they are numbered. Never raises."""
    # Lone surrogates and other sizes never arrive: the parser of the wire refuses them.
    lines, cases, tried, whole = _Lines(text.replace("\r\n", "\n")), list[Case](), 0, True
    while not lines.at_end():
        place = lines.mark()
        # Counted: each attempt may read to the end of the text, as a fence that is not closed does.
        if not _SOURCE_HEADING.fullmatch(lines.take()) or tried == MAX_CASES:
            whole = False
            continue
        tried += 1
        try:
            cases.append(_foreign_case(lines, place))
        except Malformed:
            whole = False
            lines.back_to(place)
            lines.take()
    return ReadCases(tuple(cases), whole)


def _foreign_case(lines: _Lines, place: int) -> Case:
    lines.back_to(place)
    try:
        return _case(lines)
    except Malformed:
        lines.back_to(place)
        return _message_case(lines)


def format_test_cases(cases: Sequence[Case]) -> str:
    """Return the text of cases, as `read_test_cases` reads it."""
    return "\n\n".join(_formatted(number, case) for number, case in enumerate(cases, 1)) + "\n"


def describe(outcome: Outcome) -> Value:
    """Return an outcome in the form of a test case."""
    if isinstance(outcome, Success):
        return {"value": outcome.value}
    return {"error": {"code": outcome.code, "message": outcome.message}}


class _Lines:
    """Read the lines of a text from the first to the last."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._next = 0

    def at_end(self) -> bool:
        """Skip blank lines, and return whether no line is left."""
        while self._next < len(self._lines) and not self._lines[self._next].strip():
            self._next += 1
        return self._next == len(self._lines)

    def mark(self) -> int:
        """Return the place of the next line."""
        return self._next

    def back_to(self, place: int) -> None:
        """Go back to a place."""
        self._next = place

    def take(self) -> str:
        """Return the next line that is not blank, "" at the end."""
        if self.at_end():
            return ""
        self._next += 1
        return self._lines[self._next - 1]

    def labelled(self, label: str) -> str:
        """Return the text after `**label**:` on the next line."""
        line = self.take()
        start = f"**{label}**:"
        if not line.startswith(start):
            self.wrong(f"is not {start}")
        return line[len(start) :].strip()

    def block(self, label: str) -> tuple[Notation, str]:
        """Return the notation and the content of a labelled block."""
        if self.labelled(label):
            self.wrong("has more than the label; the block begins below it")
        fence = _FENCE.fullmatch(self.take())
        if fence is None:
            self.wrong("does not open a block: ``` and json, text or base64")
        begin = self._next
        while self._next < len(self._lines) and self._lines[self._next] != fence[1]:
            self._next += 1
        if self._next == len(self._lines):
            self.wrong(f"ends the text, but the block of line {begin} is still open")
        self._next += 1
        return cast(Notation, fence[2]), "\n".join(self._lines[begin : self._next - 1])

    def section(self, label: re.Pattern[str]) -> str:
        """Return the content below a label of the source's form, up to the next label or case."""
        match = label.fullmatch(self.take())
        if match is None:
            self.wrong("is not the label that is due")
        content, fence = [match[1]], ""
        while self._next < len(self._lines):
            line = self._lines[self._next].strip()
            if not fence and (_SOURCE_HEADING.fullmatch(line) or any(other.fullmatch(line) for other in _LABELS)):
                break
            opened = _SOURCE_FENCE.fullmatch(line) if line.startswith("```") else None
            fence = "" if fence == line else opened[1] if opened and not fence else fence
            content.append(self._lines[self._next])
            self._next += 1
        if fence:
            self.wrong("ends the text, but a block is still open")
        return "\n".join(content).strip()

    def wrong(self, what: str) -> NoReturn:
        """Raise `Malformed` for the last line that was taken."""
        raise Malformed(NegotiationCode.ANSWER, f"In the test cases, line {self._next} {what}.")


def _case(lines: _Lines, number: int | None = None) -> TestCase:
    """Take one case. `number`: the one that it must have; None for any."""
    heading = _HEADING.fullmatch(lines.take())
    if heading is None or (number and heading[1] != str(number)) or not _is_line(heading[2], MAX_TITLE):
        lines.wrong(f"is not of the form '# Test case {number}: TITLE'")
    operation = _OPERATION.fullmatch(lines.labelled("Operation"))
    if operation is None:
        lines.wrong("names no operation, such as `getProductInfo`")
    arguments = _json(lines, "Arguments")
    if not isinstance(arguments, dict):
        lines.wrong("ends arguments that are no JSON object")
    outcome = _outcome(lines)
    request, response = _message(lines, "Test request data"), _message(lines, "Test response data")
    expected = _expected(lines, lines.labelled("Expected result"))
    return TestCase(heading[2], operation[1], arguments, outcome, request, response, expected)


def _message_case(lines: _Lines) -> MessageCase:
    """Take one case of the source's form."""
    heading = _SOURCE_HEADING.fullmatch(lines.take())
    assert heading is not None  # the caller looked
    title = printable(" ".join((heading[2] or heading[1]).split()), MAX_TITLE)[:MAX_TITLE]
    request, response = (_source_message(lines, label) for label in _LABELS[:2])
    expected = _expected(lines, " ".join(lines.section(_LABELS[2]).split()))
    return MessageCase(title, request, response, expected)


def _expected(lines: _Lines, expected: str) -> str:
    if not _is_line(expected, MAX_EXPECTED):
        lines.wrong(f"says no expected result in one line of at most {MAX_EXPECTED} characters")
    return expected


def _source_message(lines: _Lines, label: re.Pattern[str]) -> CaseMessage:
    text = lines.section(label)
    block = _SOURCE_BLOCK.fullmatch(text)
    if block is not None and block[2] in ("text", "base64"):
        return _message_of(lines, cast(Notation, block[2]), block[3])
    # Words without a block describe a message, and are none.
    return CaseMessage("json", _value(lines, block[3] if block else text))


def _json(lines: _Lines, label: str) -> Value:
    notation, text = lines.block(label)
    if notation != "json":
        lines.wrong(f"ends a block that is not marked json, as that of {label} is")
    return _value(lines, text)


def _value(lines: _Lines, text: str) -> Value:
    try:
        return decode_json(text.encode("utf-8"))
    except ValueError as error:
        lines.wrong(f"ends a block that is no JSON: {error}")


class _Error(msgspec.Struct, forbid_unknown_fields=True):
    code: int
    message: str = ""


class _Succeeded(msgspec.Struct, forbid_unknown_fields=True):
    value: Any


class _Failed(msgspec.Struct, forbid_unknown_fields=True):
    error: _Error


def _outcome(lines: _Lines) -> Outcome:
    value = _json(lines, "Outcome")
    try:
        if isinstance(value, dict) and "error" in value:
            failed = msgspec.convert(value, _Failed).error
            return Failure(code=failed.code, message=failed.message)
        return Success(msgspec.convert(value, _Succeeded).value)
    except msgspec.ValidationError:
        lines.wrong('ends an outcome that is neither {"value": …} nor {"error": {"code": …, "message": …}}')


def _message(lines: _Lines, label: str) -> CaseMessage:
    notation, text = lines.block(label)
    return CaseMessage("json", _value(lines, text)) if notation == "json" else _message_of(lines, notation, text)


def _message_of(lines: _Lines, notation: Notation, text: str) -> CaseMessage:
    if notation == "base64":
        try:
            b64decode(text, limit=MAX_TEXT)
        except TreatyError:
            lines.wrong("ends a block that is no base64 in one line")
    return CaseMessage(notation, text)


def _is_line(text: str, limit: int) -> bool:
    return bool(text) and text == text.strip() and text.isprintable() and len(text) <= limit


def _formatted(number: int, case: Case) -> str:
    call = []
    if isinstance(case, TestCase):
        call.append(f"**Operation**: `{case.operation}`")
        call.append(f"**Arguments**:\n\n{_block('json', dict(case.arguments))}")
        call.append(f"**Outcome**:\n\n{_block('json', describe(case.outcome))}")
    parts = [
        f"# Test case {number}: {case.title}",
        *call,
        f"**Test request data**:\n\n{_block(case.request.notation, case.request.content)}",
        f"**Test response data**:\n\n{_block(case.response.notation, case.response.content)}",
        f"**Expected result**: {case.expected}",
    ]
    return "\n\n".join(parts)


def _block(notation: Notation, content: Value) -> str:
    text = json.dumps(content, ensure_ascii=False, indent=2) if notation == "json" else str(content)
    # A fence that is longer than any in the content, so that the content cannot close it.
    longest = max((len(run) for run in re.findall(r"^`+$", text, re.MULTILINE)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{notation}\n{text}\n{fence}"


def described(capabilities: Sequence[Capability]) -> str:
    """Return the capabilities as JSON for a model; "" if there are none."""
    return msgspec.json.format(msgspec.json.encode(capabilities), indent=1).decode("utf-8") if capabilities else ""


def check_operations(capabilities: Sequence[Capability], operations: Iterable[str]) -> None:
    """Raise `Refused` (`negotiation.code`) for an operation that no function serves. Without capabilities, at an initiator,
    check nothing."""
    names = {capability.name for capability in capabilities}
    missing = [name for name in operations if name not in names]
    # Without capabilities there is nothing to compare with: the initiator calls, and serves none.
    if names and missing:
        raise Refused(
            NegotiationCode.CODE,
            f"No function serves the operation {printable(missing[0], 80)}. There are: {', '.join(sorted(names))}.",
        )


def check_cases(capabilities: Sequence[Capability], cases: Sequence[Case]) -> None:
    """Raise `Refused` (`negotiation.code`) for a case that the schemas of the functions do not allow. A case of the source's form
    names no function."""
    check_operations(capabilities, (case.operation for case in cases if isinstance(case, TestCase)))
    functions = {capability.name: capability for capability in capabilities}
    for number, case in enumerate(cases, 1):
        function = functions.get(case.operation) if isinstance(case, TestCase) else None
        if function is None or not isinstance(case, TestCase):
            continue
        _check(function.arguments, dict(case.arguments), f"The arguments object of test case {number}")
        if isinstance(case.outcome, Success):
            _check(function.result, case.outcome.value, f"The result of test case {number}")


def _check(schema: Mapping[str, object], value: Value, what: str) -> None:
    try:
        jsonschema_rs.validate(dict(schema), value)
    except jsonschema_rs.ValidationError as error:
        place = printable("".join(f".{step}" for step in error.instance_path), 100)
        problem = f"{what} does not fit the schema of the function, at ${place}: {printable(error.message, 300)}."
        raise Refused(NegotiationCode.CODE, problem) from error
