"""A negotiation with the official SDK, in both roles: its numbers, its echoes and its silences, and a state machine that copes.

The SDK knows no Hello, so a bridge says one for it. Frames are its own, byte for byte.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from meta_peers import destination_hello, shop, source_hello

from treaty_anp.hello_profile.actions import Action, Consider, Draft, Ended, Load, Running, SendBinary
from treaty_anp.hello_profile.commands import Accept, CodeFailed, CodeReady, Propose, Reject
from treaty_anp.hello_profile.machine import HelloState, Machine, Timeouts
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Unavailable

FIRST = "# Product information\n\nGet a product by its id: größe, 价格.\n"
SECOND = "# Product information\n\nGet a product by its id or name.\n"
THIRD = "# Product information\n\nGet products by id or name.\n"

Answer = dict[str, Any]
Decision = tuple[str, ...]
"""("propose", text, summary), ("accept",) or ("reject", reason): what our side decides, in order."""


def says(status: str, text: str = "", summary: str = "") -> Answer:
    """A verdict of the SDK's model."""
    verdict = {"status": status, "candidate_protocol": text, "modification_summary": summary}
    return {"text": json.dumps(verdict)}


CODE: list[Answer] = [{"text": json.dumps({"module_name": "product"})}, {"text": "```python\nx = 1\n```"}] * 2
"""What the SDK's model is asked for after an agreement: for each role a description, then the code."""


@dataclass
class Meeting:
    """Our machine on this end of a pipe, the SDK on the other. `trace`: (who, sequence number, what) of every frame."""

    machine: Machine
    sdk: Any
    decisions: list[Decision]
    code_fails: bool = False
    trace: list[tuple[str, int | None, str]] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    loaded: Load | None = None
    ended: Ended | None = None
    ran: bool = False
    outcome: Answer = field(default_factory=dict)

    def act(self, actions: list[Action]) -> None:
        """What a driver would do, with the decisions of the script."""
        for action in actions:
            match action:
                case SendBinary(data):
                    self._note("we", data)
                    self.sdk.tell(frame=base64.b64encode(data).decode())
                case Draft() | Consider():
                    self.summaries += [action.summary] if isinstance(action, Consider) else []
                    self.act(self._decide(*self.decisions.pop(0)))
                case Load():
                    self.loaded = action
                    hash = action.agreement.protocol_hash or ""
                    failure = Unavailable("session.profile", "The code could not be made.")
                    self.act(self.machine.apply(CodeFailed(failure) if self.code_fails else CodeReady(hash), 0.0))
                case Running():
                    self.ran = True
                case Ended():
                    self.ended = action

    def until(self, done: Callable[[], bool]) -> None:
        """Hand over what comes from the SDK until something holds. Fails when nothing comes."""
        while not done():
            event = self.sdk.event()
            if "frame" in event:
                data = base64.b64decode(event["frame"])
                self._note("sdk", data)
                self.act(self.machine.receive(data, 0.0))
            elif "agreed" in event:
                self.outcome = event

    def to_the_end(self) -> None:
        """Until the SDK knows what came of it."""
        self.until(lambda: bool(self.outcome))

    @property
    def talks(self) -> list[tuple[str, int | None, str]]:
        """The protocolNegotiation messages of the trace."""
        return [entry for entry in self.trace if entry[1] is not None]

    @property
    def code(self) -> str:
        """With which error the session ended."""
        assert self.ended and self.ended.error
        return self.ended.error.code

    def _decide(self, kind: str, *texts: str) -> list[Action]:
        match kind:
            case "propose":
                text, summary = texts
                return self.machine.apply(Propose(text, summary), 0.0)
            case "accept":
                return self.machine.apply(Accept(), 0.0)
        return self.machine.apply(Reject(texts[0]), 0.0)

    def _note(self, who: str, data: bytes) -> None:
        message = json.loads(data[1:])
        self.trace.append((who, message.get("sequenceId"), message["status"]))


Meet = Callable[..., Meeting]


@pytest.fixture(scope="module")
def negotiator(sdk_script: Callable[[str], Any]) -> Iterator[Any]:
    """The SDK's side."""
    with sdk_script("negotiation.py") as running:
        yield running


@pytest.fixture
def meet(negotiator: Any, tmp_path: Path) -> Meet:
    """Begins a negotiation with the SDK as "source" or "destination"."""

    def begin(role: str, answers: list[Answer], *decisions: Decision, code_fails: bool = False) -> Meeting:
        if role == "source":
            machine = shop({}, negotiates=True)
            greeting: str = source_hello(()).format()
        else:
            machine, _ = Machine.initiator(source_hello(()), now=0.0, timeouts=Timeouts(), negotiates=True)
            greeting = destination_hello().format()
        negotiator.tell(begin=role, answers=answers, code=str(tmp_path))
        while negotiator.event() != {"ready": True}:
            """What an earlier negotiation still had to say."""
        meeting = Meeting(machine, negotiator, list(decisions), code_fails)
        meeting.act(machine.receive(greeting, 0.0))
        return meeting

    return begin


def assert_running(meeting: Meeting, document: str) -> None:
    """Both sides have agreed on the document, have their code and know that the other has."""
    assert meeting.loaded
    agreement = meeting.loaded.agreement
    assert (agreement.document, agreement.protocol_hash) == (document, hex_digest(document.encode()))
    assert (meeting.machine.state, meeting.ran, meeting.ended) == (HelloState.RUNNING, True, None)
    assert (meeting.outcome["agreed"], meeting.outcome["peer_generated"]) == (True, True)
    generated = [(who, status) for who, number, status in meeting.trace if number is None]
    assert sorted(generated) == [("sdk", "generated"), ("we", "generated")]
    saved = json.loads((Path(meeting.outcome["module"]) / "meta_data.json").read_text())
    assert saved["files"]["protocol_document"]["hash"] == f"sha256:{agreement.protocol_hash}"


def test_the_sdk_proposes_from_one_and_echoes_our_acceptance(meet: Meet) -> None:
    meeting = meet("source", [{"text": FIRST}, *CODE], ("accept",))
    meeting.to_the_end()
    assert meeting.talks == [("sdk", 1, "negotiating"), ("we", 2, "accepted"), ("sdk", 1, "accepted")]
    assert_running(meeting, FIRST)


def test_the_sdk_accepts_our_counter_offer(meet: Meet) -> None:
    meeting = meet("source", [{"text": FIRST}, says("accepted"), *CODE], ("propose", SECOND, "By name too."))
    meeting.to_the_end()
    assert meeting.talks == [("sdk", 1, "negotiating"), ("we", 2, "negotiating"), ("sdk", 3, "accepted")]
    assert_running(meeting, SECOND)


def test_a_countered_counter_offer_passes_the_stale_echo(meet: Meet) -> None:
    answers = [{"text": FIRST}, says("negotiating", THIRD, "Several at once."), *CODE]
    meeting = meet("source", answers, ("propose", SECOND, "By name too."), ("accept",))
    meeting.to_the_end()
    numbers = [("sdk", 1), ("we", 2), ("sdk", 3), ("we", 4), ("sdk", 3)]
    assert [(who, number) for who, number, _ in meeting.talks] == numbers
    assert meeting.summaries == ["", "Several at once."]
    assert_running(meeting, THIRD)


def test_we_reject_what_the_sdk_proposes(meet: Meet) -> None:
    meeting = meet("source", [{"text": FIRST}], ("reject", "We sell no products."))
    meeting.to_the_end()
    assert meeting.trace == [("sdk", 1, "negotiating"), ("we", 2, "rejected"), ("sdk", 1, "rejected")]
    assert (meeting.machine.state, meeting.code) == (HelloState.REJECTED, "negotiation.rejected")
    assert (meeting.outcome["agreed"], meeting.loaded) == (False, None)


def test_the_sdk_rejects_our_counter_offer(meet: Meet) -> None:
    answers = [{"text": FIRST}, says("rejected", summary="Names are not unique.")]
    meeting = meet("source", answers, ("propose", SECOND, "By name too."))
    meeting.to_the_end()
    assert (meeting.machine.state, meeting.code) == (HelloState.REJECTED, "negotiation.rejected")
    assert meeting.ended and "Names are not unique." in str(meeting.ended.error)
    assert meeting.outcome["agreed"] is False


def test_the_model_of_the_sdk_fails_at_the_first_draft(meet: Meet) -> None:
    meeting = meet("source", [{"fail": "quota"}])
    meeting.until(lambda: meeting.ended is not None)
    assert meeting.trace == [("sdk", 1, "rejected")]
    assert (meeting.machine.state, meeting.code) == (HelloState.REJECTED, "negotiation.rejected")


def test_the_sdk_accepts_our_proposal_and_counts_from_one(meet: Meet) -> None:
    meeting = meet("destination", [says("accepted"), *CODE], ("propose", FIRST, ""))
    meeting.to_the_end()
    assert meeting.talks == [("we", 0, "negotiating"), ("sdk", 2, "accepted")]
    assert_running(meeting, FIRST)


def test_the_sdk_looks_its_capabilities_up_first(meet: Meet) -> None:
    tool = {"tool": {"requirement": "products", "input_description": "id", "output_description": "product"}}
    meeting = meet("destination", [tool, says("accepted"), *CODE], ("propose", FIRST, ""))
    meeting.to_the_end()
    assert_running(meeting, FIRST)


def test_an_accepted_counter_offer_passes_the_stale_echo(meet: Meet) -> None:
    answers = [says("negotiating", SECOND, "By name too."), *CODE]
    meeting = meet("destination", answers, ("propose", FIRST, ""), ("accept",))
    meeting.to_the_end()
    expected = [("we", 0, "negotiating"), ("sdk", 2, "negotiating"), ("we", 3, "accepted"), ("sdk", 2, "accepted")]
    assert meeting.talks == expected
    assert meeting.summaries == ["By name too."]
    assert_running(meeting, SECOND)


def test_the_sdk_accepts_what_we_make_of_its_counter_offer(meet: Meet) -> None:
    answers = [says("negotiating", SECOND, "By name too."), says("accepted"), *CODE]
    meeting = meet("destination", answers, ("propose", FIRST, ""), ("propose", THIRD, "Several at once."))
    meeting.to_the_end()
    assert [number for _, number, _ in meeting.talks] == [0, 2, 3, 4]
    assert_running(meeting, THIRD)


def test_the_sdk_rejects_our_proposal_and_says_why(meet: Meet) -> None:
    meeting = meet("destination", [says("rejected", summary="We sell no products.")], ("propose", FIRST, ""))
    meeting.to_the_end()
    assert meeting.trace == [("we", 0, "negotiating"), ("sdk", 2, "rejected")]
    assert (meeting.machine.state, meeting.code) == (HelloState.REJECTED, "negotiation.rejected")
    assert meeting.ended and "We sell no products." in str(meeting.ended.error)


def test_we_reject_the_counter_offer_of_the_sdk(meet: Meet) -> None:
    answers = [says("negotiating", SECOND, "By name too.")]
    meeting = meet("destination", answers, ("propose", FIRST, ""), ("reject", "Names are not unique."))
    meeting.to_the_end()
    assert meeting.trace[2:] == [("we", 3, "rejected"), ("sdk", 2, "rejected")]
    assert (meeting.machine.state, meeting.outcome["agreed"]) == (HelloState.REJECTED, False)


@pytest.mark.parametrize("answer", [{"fail": "quota"}, {"text": "Sure, let us do that!"}, {"text": "[]"}, {"text": ""}])
def test_a_failing_model_of_the_sdk_rejects_with_an_old_number(meet: Meet, answer: Answer) -> None:
    meeting = meet("destination", [answer], ("propose", FIRST, ""))
    meeting.to_the_end()
    assert meeting.trace[1][0::2] == ("sdk", "rejected")
    assert meeting.trace[1][1] in (0, 2)
    assert (meeting.machine.state, meeting.code) == (HelloState.REJECTED, "negotiation.rejected")
    assert meeting.ended and "Error during evaluation" in str(meeting.ended.error)


@pytest.mark.parametrize("role", ["source", "destination"])
def test_our_deadline_ends_a_session_with_a_silent_sdk(meet: Meet, role: str) -> None:
    talk: dict[str, tuple[list[Answer], Decision]] = {
        "source": ([{"text": FIRST}], ("accept",)),
        "destination": ([says("accepted")], ("propose", FIRST, "")),
    }
    answers, decision = talk[role]
    meeting = meet(role, [*answers, {"fail": "quota"}, {"fail": "quota"}], decision)
    meeting.to_the_end()
    assert (meeting.outcome["agreed"], meeting.machine.state) == (False, HelloState.AGREED)
    assert meeting.machine.deadline == Timeouts().code
    meeting.act(meeting.machine.tick(meeting.machine.deadline))
    assert (meeting.machine.state, meeting.ran) == (HelloState.TIMEOUT, False)


@pytest.mark.parametrize("role", ["source", "destination"])
def test_our_failing_code_is_reported_despite_the_sdks_success(meet: Meet, role: str) -> None:
    talk: dict[str, tuple[list[Answer], Decision]] = {
        "source": ([{"text": FIRST}], ("accept",)),
        "destination": ([says("accepted")], ("propose", FIRST, "")),
    }
    answers, decision = talk[role]
    meeting = meet(role, [*answers, *CODE], decision, code_fails=True)
    meeting.to_the_end()
    assert ("we", None, "error") in meeting.trace
    assert (meeting.machine.state, meeting.code) == (HelloState.ERROR, "session.profile")
    assert meeting.outcome["peer_generated"] is True


@pytest.mark.parametrize("role", ["source", "destination"])
def test_the_sdk_would_go_on_for_ever_and_we_stop_at_ten(meet: Meet, role: str) -> None:
    counters = [says("negotiating", f"{SECOND}\n{number}\n", f"Number {number}.") for number in range(20)]
    answers = [{"text": FIRST}, *counters] if role == "source" else counters
    decisions = [
        ("propose", f"{THIRD}\n{number}\n", f"Number {number}." if number or role == "source" else "") for number in range(20)
    ]
    meeting = meet(role, answers, *decisions)
    meeting.until(lambda: meeting.ended is not None)
    assert (meeting.machine.state, meeting.code) == (HelloState.REJECTED, "negotiation.limit")
    assert len(meeting.trace) == (10 if role == "source" else 11)  # the last one tells the SDK, which has no limit
