"""What a language model is asked while a protocol is negotiated: a prompt for each request, and what its answers mean.

Each answer is one object of a schema that structured outputs can enforce (every property required, no others), and then read
here: a document that is none, a verdict that the machine does not allow at this point, or test cases that do not parse are told
to the model as what is wrong with its answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.printable import printable
from treaty_handler import Value

from ..meta.documents import parse_candidate
from ..model.port import Prompt
from ..model.prompts import sections, system
from .capabilities import check_cases, check_operations, described
from .documents import Document
from .negotiator import Accept, Guilty, Proposal, Reject, Situation, Verdict
from .package import Written, read_written
from .test_cases import TestCase, format_test_cases, parse_test_cases

MAX_PROPOSAL = 48 * 1024
"""Bytes of a proposal as JSON, which leaves room for the rest of its message."""
MAX_PROPOSED_SUMMARY = 2_000
MAX_REASON = 500
MAX_ANSWER = 2_000
MAX_FAILURE = 6_000

_TEXT = {"type": "string"}


@dataclass(frozen=True)
class Task:
    """A handler to be written. `agreed`: the agreed test cases, empty before there are any."""

    situation: Situation
    document: Document
    agreed: tuple[TestCase, ...] = ()

    def with_cases(self, agreed: tuple[TestCase, ...]) -> Task:
        """The same task once test cases are agreed."""
        return replace(self, agreed=agreed)


def draft(situation: Situation) -> Prompt[Proposal | Reject]:
    """The first proposal."""

    def read(value: Value) -> Proposal | Reject:
        if value["decision"] == "reject":
            return Reject(_line(value["reason"]))
        return Proposal(_proposed(value["document"], situation))

    schema = _object(decision=_one_of("propose", "reject"), document=_TEXT, reason=_TEXT)
    return Prompt("draft", system("draft"), sections(**_facts(situation)), schema, read)


def consider(
    situation: Situation, document: Document, summary: str, *, own: str, history: Sequence[str], last: bool
) -> Prompt[Verdict]:
    """A verdict about the peer's proposal. `own`: this side's last one."""

    def read(value: Value) -> Verdict:
        match value["decision"]:
            case "accept":
                return Accept()
            case "reject":
                return Reject(_line(value["reason"]))
        _check_counter(value["document"], document.text, last)
        return Proposal(_proposed(value["document"], situation), _summary(value["summary"]))

    user = sections(
        **_facts(situation),
        **_agreed("peer_proposal", document),
        peer_summary=summary,
        own_proposal=own,
        history="\n".join(history),
        last="This is the last round." if last else "",
    )
    schema = _object(decision=_one_of("accept", "counter", "reject"), document=_TEXT, summary=_TEXT, reason=_TEXT)
    return Prompt("consider", system("consider"), user, schema, read)


def tests(situation: Situation, document: Document, written: Written | None) -> Prompt[str]:
    """Test cases to propose; "" for none."""

    def read(value: Value) -> str:
        return _cases(value["test_cases"], situation) if value["test_cases"].strip() else ""

    user = sections(**_agreed("agreed_document", document), **_facts(situation), manifest=_manifest(written))
    return Prompt("tests", system("tests"), user, _object(test_cases=_TEXT), read)


def consider_tests(task: Task, test_cases: str, summary: str, *, own: str, objection: str, last: bool) -> Prompt[Verdict]:
    """A verdict about the peer's test cases. `objection`: what keeps them from being accepted, whatever the model thinks."""

    def read(value: Value) -> Verdict:
        match value["decision"]:
            case "accept" if objection:
                raise Malformed("negotiation.answer", f"They cannot be accepted: {objection}")
            case "accept":
                return Accept()
            case "reject":
                return Reject(_line(value["reason"]))
        _check_counter(value["test_cases"], test_cases, last)
        return Proposal(_cases(value["test_cases"], task.situation), _summary(value["summary"]))

    user = sections(
        **_agreed("agreed_document", task.document),
        **_facts(task.situation),
        peer_test_cases=test_cases,
        peer_summary=summary,
        own_test_cases=own,
        objection=objection,
        last="This is the last round." if last else "",
    )
    schema = _object(decision=_one_of("accept", "counter", "reject"), test_cases=_TEXT, summary=_TEXT, reason=_TEXT)
    return Prompt("consider_tests", system("consider_tests"), user, schema, read)


def handler(task: Task) -> Prompt[Written]:
    """The handler's code, for the first time."""
    user = sections(**_agreed("agreed_document", task.document), **_facts(task.situation), **_agreed_cases(task))
    return Prompt("handler", system("handler"), user, _HANDLER, _reader(task))


def repair(task: Task, written: Written, failure: str) -> Prompt[Written]:
    """The handler's code once more."""
    user = sections(
        **_agreed("agreed_document", task.document),
        **_facts(task.situation),
        **_agreed_cases(task),
        own_manifest=_manifest(written),
        own_files=_json(dict(written.sources)),
        own_test_cases=format_test_cases(written.cases),
        failure=printable(failure, MAX_FAILURE),
    )
    return Prompt("repair", system("repair"), user, _HANDLER, _reader(task))


def judge(task: Task, written: Written, complaint: str) -> Prompt[Guilty | Reject]:
    """Whose fault it is."""

    def read(value: Value) -> Guilty | Reject:
        return Guilty() if value["at_fault"] else Reject(_line(value["reason"]))

    user = sections(
        **_agreed("agreed_document", task.document),
        own_manifest=_manifest(written),
        own_files=_json(dict(written.sources)),
        tested_with=format_test_cases(task.agreed or written.cases),
        peer_complaint=complaint,
    )
    return Prompt("judge", system("judge"), user, _object(at_fault={"type": "boolean"}, reason=_TEXT), read)


def answer(situation: Situation, proposal: str, question: str) -> Prompt[str]:
    """An answer to the peer's question. `proposal`: what is on the table, or was agreed on."""

    def read(value: Value) -> str:
        text = str(value["answer"]).strip()
        if not text:
            raise Malformed("negotiation.answer", "`answer` is empty.")
        return text[:MAX_ANSWER]

    user = sections(**_facts(situation), proposal=proposal, peer_question=question)
    return Prompt("answer", system("answer"), user, _object(answer=_TEXT), read)


def check_peer_cases(task: Task, test_cases: str) -> tuple[TestCase, ...]:
    """The peer's test cases. Raises `TreatyError` with what keeps them from being accepted."""
    cases = parse_test_cases(test_cases)
    check_cases(task.situation.capabilities, cases)
    return cases


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _one_of(*words: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


_HANDLER = _object(
    summary=_TEXT,
    manifest=_TEXT,
    files={"type": "array", "items": _object(path=_TEXT, content=_TEXT)},
    test_cases=_TEXT,
)


def _facts(situation: Situation) -> dict[str, str]:
    wanted = situation.requirement
    return {
        "side": situation.side,
        "requirement": wanted.text if wanted else "",
        "input": wanted.input if wanted else "",
        "output": wanted.output if wanted else "",
        "topic": wanted.topic if wanted else "",
        "capabilities": described(situation.capabilities),
    }


def _agreed(name: str, document: Document) -> dict[str, str]:
    return {name: document.text, "base_document": document.base}


def _agreed_cases(task: Task) -> dict[str, str]:
    return {"agreed_test_cases": format_test_cases(task.agreed) if task.agreed else ""}


def _manifest(written: Written | None) -> str:
    return _json(dict(written.manifest)) if written else ""


def _json(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def _reader(task: Task) -> Callable[[Value], Written]:
    def read(value: Value) -> Written:
        written = read_written(value)
        check_operations(task.situation.capabilities, written.manifest["operations"])
        check_cases(task.situation.capabilities, written.cases)
        return written

    return read


def _proposed(text: str, situation: Situation) -> str:
    """A document that may be proposed. Raises `TreatyError`."""
    _check_size(text, "document")
    candidate = parse_candidate(text)
    if not candidate.title:
        raise Malformed("negotiation.answer", "`document` does not begin with `# ` and a title.")
    if candidate.base is not None:
        raise Malformed("negotiation.answer", "`document` has a base; write it out in full.")
    topic = situation.requirement.topic if situation.requirement else ""
    if topic and candidate.topic != topic:
        raise Malformed("negotiation.answer", f"`document` does not have the line `- Topic: {topic}` below its title.")
    return text


def _cases(text: str, situation: Situation) -> str:
    """Test cases that may be proposed. Raises `TreatyError`."""
    _check_size(text, "test_cases")
    check_cases(situation.capabilities, parse_test_cases(text))
    return text


def _check_size(text: str, what: str) -> None:
    size = len(_json(text).encode("utf-8"))
    if size > MAX_PROPOSAL:
        raise TooLarge("negotiation.answer", f"`{what}` has {size} bytes; at most {MAX_PROPOSAL} can be sent.")


def _check_counter(text: str, peers: str, last: bool) -> None:
    if last:
        raise Malformed("negotiation.answer", "This is the last round: `decision` is accept or reject.")
    if text == peers:
        raise Malformed("negotiation.answer", "The counter-proposal changes nothing; accept, or change something.")


def _summary(text: str) -> str:
    if not text.strip():
        raise Malformed("negotiation.answer", "`summary` does not say what was changed.")
    return text.strip()[:MAX_PROPOSED_SUMMARY]


def _line(reason: str) -> str:
    return printable(" ".join(reason.split()), MAX_REASON) or "No reason was given."
