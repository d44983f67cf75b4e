"""Define the questions to a language model during a negotiation: a prompt for each request, and the reading of its answer.

Each answer is one object of a schema that structured outputs can enforce: every property is required, no others are allowed. Then
the answer is read here. The model receives the fault of a wrong answer: an invalid document, a verdict that is not allowed at
this point, or test cases that do not parse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treaty_anp.hello_profile.documents import parse_candidate
from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.printable import printable
from treaty_handler import Value
from treaty_io.codes import NegotiationCode

from .documents import NegotiatedDocument
from .language_model import Prompt
from .negotiator import Acceptance, FaultAdmitted, NegotiationContext, Proposal, Rejection, Verdict
from .package import Written, read_written
from .prompts import sections, system
from .test_cases import Case, check_cases, check_operations, described, format_test_cases, parse_test_cases, read_test_cases

MAX_PROPOSAL = 48 * 1024
"""Bytes of a proposal as JSON: the rest of its message needs room, too."""
# Characters. All of them reach the peer, whose caps are larger in every alphabet.
MAX_PROPOSED_SUMMARY = 2_000
MAX_REASON = 500
MAX_ANSWER = 2_000
# The end of a long traceback adds cost and no information for the model.
MAX_FAILURE = 6_000
UNREAD = "Part of the text is not in the form below. It is not run if you accept; a counter in that form is."
"""The note about test cases that this side cannot run."""

_TEXT = {"type": "string"}


@dataclass(frozen=True)
class Task:
    """A handler to write. `agreed`: the agreed test cases, empty before there are any."""

    situation: NegotiationContext
    document: NegotiatedDocument
    agreed: tuple[Case, ...] = ()

    def with_cases(self, agreed: tuple[Case, ...]) -> Task:
        """Return the same task with agreed test cases."""
        return replace(self, agreed=agreed)


def draft(situation: NegotiationContext) -> Prompt[Proposal | Rejection]:
    """Return the prompt for the first proposal."""

    def read(value: Value) -> Proposal | Rejection:
        if value["decision"] == "reject":
            return Rejection(_line(value["reason"]))
        return Proposal(_proposed(value["document"], situation))

    schema = _object(decision=_one_of("propose", "reject"), document=_TEXT, reason=_TEXT)
    return Prompt("draft", system("draft"), sections(**_facts(situation)), schema, read)


def consider(
    situation: NegotiationContext, document: NegotiatedDocument, summary: str, *, own: str, history: Sequence[str], last: bool
) -> Prompt[Verdict]:
    """Return the prompt for a verdict about the peer's proposal. `own`: this side's last proposal."""

    def read(value: Value) -> Verdict:
        match value["decision"]:
            case "accept":
                return Acceptance()
            case "reject":
                return Rejection(_line(value["reason"]))
        # A counter-proposal that changes nothing would use up the rounds of both sides.
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


def tests(situation: NegotiationContext, document: NegotiatedDocument, written: Written | None) -> Prompt[str]:
    """Return the prompt for test cases to propose; the answer is "" for none."""

    def read(value: Value) -> str:
        return _cases(value["test_cases"], situation) if value["test_cases"].strip() else ""

    user = sections(**_agreed("agreed_document", document), **_facts(situation), manifest=_manifest(written))
    return Prompt("tests", system("tests"), user, _object(test_cases=_TEXT), read)


def consider_tests(
    task: Task, test_cases: str, summary: str, *, own: str, objection: str, unread: str, last: bool
) -> Prompt[Verdict]:
    """Return the prompt for a verdict about the peer's test cases. `objection`: the reason why they cannot be accepted, or "".
    `unread`: `UNREAD` if part of the text cannot be run, else ""."""

    def read(value: Value) -> Verdict:
        match value["decision"]:
            case "accept" if objection:
                raise Malformed(NegotiationCode.ANSWER, f"They cannot be accepted: {objection}")
            case "accept":
                return Acceptance()
            case "reject":
                return Rejection(_line(value["reason"]))
        _check_counter(value["test_cases"], test_cases, last)
        return Proposal(_cases(value["test_cases"], task.situation), _summary(value["summary"]))

    user = sections(
        **_agreed("agreed_document", task.document),
        **_facts(task.situation),
        peer_test_cases=test_cases,
        peer_summary=summary,
        own_test_cases=own,
        objection=objection,
        unread=unread,
        last="This is the last round." if last else "",
    )
    schema = _object(decision=_one_of("accept", "counter", "reject"), test_cases=_TEXT, summary=_TEXT, reason=_TEXT)
    return Prompt("consider_tests", system("consider_tests"), user, schema, read)


def handler(task: Task) -> Prompt[Written]:
    """Return the prompt for the first version of the handler."""
    user = sections(**_agreed("agreed_document", task.document), **_facts(task.situation), **_agreed_cases(task))
    return Prompt("handler", system("handler"), user, _HANDLER, _reader(task))


def repair(task: Task, written: Written, failure: str) -> Prompt[Written]:
    """Return the prompt for a repair of the handler."""
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


def judge(task: Task, written: Written, complaint: str) -> Prompt[FaultAdmitted | Rejection]:
    """Return the prompt for a verdict about a reported fault."""

    def read(value: Value) -> FaultAdmitted | Rejection:
        return FaultAdmitted() if value["at_fault"] else Rejection(_line(value["reason"]))

    user = sections(
        **_agreed("agreed_document", task.document),
        own_manifest=_manifest(written),
        own_files=_json(dict(written.sources)),
        tested_with=format_test_cases(task.agreed or written.cases),
        peer_complaint=complaint,
    )
    return Prompt("judge", system("judge"), user, _object(at_fault={"type": "boolean"}, reason=_TEXT), read)


def answer(situation: NegotiationContext, proposal: str, question: str) -> Prompt[str]:
    """Return the prompt for an answer to the peer's question. `proposal`: the present proposal or the agreed document."""

    def read(value: Value) -> str:
        text = str(value["answer"]).strip()
        if not text:
            raise Malformed(NegotiationCode.ANSWER, "`answer` is empty.")
        return text[:MAX_ANSWER]

    user = sections(**_facts(situation), proposal=proposal, peer_question=question)
    return Prompt("answer", system("answer"), user, _object(answer=_TEXT), read)


def check_peer_cases(task: Task, test_cases: str) -> tuple[Case, ...]:
    """Return the peer's test cases that can be run. Raises `TreatyError` if they cannot be accepted."""
    cases = read_test_cases(test_cases).cases
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


def _facts(situation: NegotiationContext) -> dict[str, str]:
    requirement = situation.requirement
    return {
        "role": situation.role,
        "requirement": requirement.text if requirement else "",
        "input": requirement.input if requirement else "",
        "output": requirement.output if requirement else "",
        "topic": requirement.topic if requirement else "",
        "capabilities": described(situation.capabilities),
    }


def _agreed(name: str, document: NegotiatedDocument) -> dict[str, str]:
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


def _proposed(text: str, situation: NegotiationContext) -> str:
    """Return a document after the checks for a proposal. Raises `TreatyError`."""
    _check_size(text, "document")
    candidate = parse_candidate(text)
    if not candidate.title:
        raise Malformed(NegotiationCode.ANSWER, "`document` does not begin with `# ` and a title.")
    # A model must not refer to a text that it cannot have read.
    if candidate.base is not None:
        raise Malformed(NegotiationCode.ANSWER, "`document` has a base; write it out in full.")
    topic = situation.requirement.topic if situation.requirement else ""
    # The topic is the owner's choice; a model must not publish under another one.
    if topic and candidate.topic != topic:
        raise Malformed(NegotiationCode.ANSWER, f"`document` does not have the line `- Topic: {topic}` below its title.")
    return text


def _cases(text: str, situation: NegotiationContext) -> str:
    """Return test cases after the checks for a proposal. Raises `TreatyError`."""
    _check_size(text, "test_cases")
    check_cases(situation.capabilities, parse_test_cases(text))
    return text


def _check_size(text: str, what: str) -> None:
    size = len(_json(text).encode("utf-8"))
    if size > MAX_PROPOSAL:
        raise TooLarge(NegotiationCode.ANSWER, f"`{what}` has {size} bytes; at most {MAX_PROPOSAL} can be sent.")


def _check_counter(text: str, peers: str, last: bool) -> None:
    if last:
        raise Malformed(NegotiationCode.ANSWER, "This is the last round: `decision` is accept or reject.")
    if text == peers:
        raise Malformed(NegotiationCode.ANSWER, "The counter-proposal changes nothing; accept, or change something.")


def _summary(text: str) -> str:
    if not text.strip():
        raise Malformed(NegotiationCode.ANSWER, "`summary` does not say what was changed.")
    return text.strip()[:MAX_PROPOSED_SUMMARY]


def _line(reason: str) -> str:
    return printable(" ".join(reason.split()), MAX_REASON) or "No reason was given."
