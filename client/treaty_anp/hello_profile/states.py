"""The states of the Hello profile. Everything that affects transitions lives in this file.

`TRANSITIONS` is the whole state machine, for both sides: `(state, event)` → next state and the wait that begins. `WAITS` says how
long each wait lasts, and the error that ends the session after it. An event that is not in the table is refused when a peer's
message causes it (`Core.allows`), and an error of the program when this side does (`Core.fire`).

The picture and the table in `docs/specification/hello-profile.md` are generated from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from treaty_io.codes import SessionCode

from ..transitions import StateTransition


class HelloState(StrEnum):
    """The state of a session."""

    HELLO = "hello"
    NEGOTIATING = "negotiating"
    AGREED = "agreed"
    TESTING = "testing"
    RUNNING = "running"
    CLOSED = "closed"
    REJECTED = "rejected"
    SWITCHED = "switched"
    ERROR = "error"
    TIMEOUT = "timeout"


FINAL = frozenset({HelloState.CLOSED, HelloState.REJECTED, HelloState.SWITCHED, HelloState.ERROR, HelloState.TIMEOUT})
LIVE = tuple(state for state in HelloState if state not in FINAL)

MEANING = {
    HelloState.HELLO: "the other side's Hello is awaited",
    HelloState.NEGOTIATING: "the sides propose protocol documents in turns",
    HelloState.AGREED: "each side gets the protocol's code ready",
    HelloState.TESTING: "the sides agree on test cases, then each runs them",
    HelloState.RUNNING: "application messages flow",
    HelloState.CLOSED: "the session ran and is over, or this side closed it",
    HelloState.REJECTED: "no protocol in common, or no agreement",
    HelloState.SWITCHED: "the flow profile goes on with the connection",
    HelloState.ERROR: "a rule was broken, the code could not be made, or the connection was lost too early",
    HelloState.TIMEOUT: "a deadline passed",
}


class Wait(StrEnum):
    """The waits of a session. The phases exclude each other; the last three go on beside them."""

    HELLO = "hello"
    CODE = "code"
    REPLY = "reply"
    DECISION = "decision"
    TESTS = "tests"
    IDLE = "idle"
    FIX = "fix"
    VERDICT = "verdict"
    QUESTION = "question"


PHASES = (Wait.HELLO, Wait.CODE, Wait.REPLY, Wait.DECISION, Wait.TESTS, Wait.IDLE)


class Event(StrEnum):
    """The events of a session."""

    HASH_CONFIRMED = "hash confirmed"
    PROTOCOL_SELECTED = "protocol selected"
    NATURAL_LANGUAGE = "natural language alone"
    FLOW_PROFILE = "both list flowProfile, nothing else in common"
    OWN_TURN = "this side's turn to propose"
    PEER_TURN = "the other side's turn to propose"
    DOCUMENT_AGREED = "document agreed"
    CODES_READY = "both codes ready"
    OWN_TESTS_TURN = "this side's turn to propose tests"
    PEER_TESTS_TURN = "the other side's turn to propose tests"
    TESTS_PROPOSED = "the other side proposes tests"
    TESTS_DUE = "agreed tests due"
    TESTS_SKIPPED = "tests skipped"
    TESTS_PASSED = "tests passed"
    FAULT_RAISED = "error reported or denied"
    FAULT_ACCEPTED = "error accepted, code to be repaired"
    ACTIVITY = "a message"
    NOT_AGREED = "rejected or limit reached"
    LEFT = "connection lost before a proposal"
    LOST = "connection lost"
    CLOSED = "closed"
    FAILED = "a rule broken, or a failure"
    DEADLINE_PASSED = "deadline passed"


class Guard(StrEnum):
    """The conditions that a transition may have."""

    NOTHING_PROPOSED = "responder, nothing proposed yet"
    NATURAL_RESPONDER = "responder, only natural language so far"
    TESTS_MAY_COME = "responder, no application message yet"
    TESTS_RUN = "tests run"
    IDLE = "no code awaited"


Transition: TypeAlias = StateTransition[HelloState, Wait, Guard]

TRANSITIONS: dict[tuple[HelloState, Event], Transition] = {
    # RUNNING at once, without waiting for code: that is the purpose of an offered hash (0-RTT).
    (HelloState.HELLO, Event.HASH_CONFIRMED): StateTransition(HelloState.RUNNING, Wait.CODE),
    (HelloState.HELLO, Event.PROTOCOL_SELECTED): StateTransition(HelloState.AGREED, Wait.CODE),
    (HelloState.HELLO, Event.NATURAL_LANGUAGE): StateTransition(HelloState.RUNNING, Wait.IDLE),
    (HelloState.HELLO, Event.FLOW_PROFILE): StateTransition(HelloState.SWITCHED),
    (HelloState.HELLO, Event.OWN_TURN): StateTransition(HelloState.NEGOTIATING, Wait.DECISION),
    (HelloState.HELLO, Event.PEER_TURN): StateTransition(HelloState.NEGOTIATING, Wait.REPLY),
    (HelloState.HELLO, Event.NOT_AGREED): StateTransition(HelloState.REJECTED),
    # Each turn begins its wait anew: a side that is slow once must not shorten the other's time.
    (HelloState.NEGOTIATING, Event.OWN_TURN): StateTransition(HelloState.NEGOTIATING, Wait.DECISION),
    (HelloState.NEGOTIATING, Event.PEER_TURN): StateTransition(HelloState.NEGOTIATING, Wait.REPLY),
    (HelloState.NEGOTIATING, Event.NATURAL_LANGUAGE): StateTransition(HelloState.RUNNING, Wait.IDLE, Guard.NOTHING_PROPOSED),
    (HelloState.NEGOTIATING, Event.DOCUMENT_AGREED): StateTransition(HelloState.AGREED, Wait.CODE),
    (HelloState.NEGOTIATING, Event.NOT_AGREED): StateTransition(HelloState.REJECTED),
    # A source that cannot negotiate leaves without a word. That is no error of the connection.
    (HelloState.NEGOTIATING, Event.LEFT): StateTransition(HelloState.REJECTED, guard=Guard.NOTHING_PROPOSED),
    (HelloState.AGREED, Event.CODES_READY): StateTransition(HelloState.RUNNING, Wait.IDLE),
    (HelloState.AGREED, Event.OWN_TESTS_TURN): StateTransition(HelloState.TESTING, Wait.DECISION),
    (HelloState.AGREED, Event.TESTS_DUE): StateTransition(HelloState.TESTING, Wait.TESTS),
    (HelloState.AGREED, Event.FAULT_ACCEPTED): StateTransition(HelloState.AGREED, Wait.CODE),
    (HelloState.TESTING, Event.OWN_TESTS_TURN): StateTransition(HelloState.TESTING, Wait.DECISION),
    (HelloState.TESTING, Event.PEER_TESTS_TURN): StateTransition(HelloState.TESTING, Wait.REPLY),
    (HelloState.TESTING, Event.TESTS_DUE): StateTransition(HelloState.TESTING, Wait.TESTS),
    (HelloState.TESTING, Event.TESTS_SKIPPED): StateTransition(HelloState.RUNNING, Wait.IDLE),
    (HelloState.TESTING, Event.TESTS_PASSED): StateTransition(HelloState.RUNNING, Wait.IDLE),
    (HelloState.TESTING, Event.NOT_AGREED): StateTransition(HelloState.REJECTED),
    (HelloState.TESTING, Event.FAULT_RAISED): StateTransition(HelloState.TESTING, Wait.TESTS, Guard.TESTS_RUN),
    (HelloState.TESTING, Event.FAULT_ACCEPTED): StateTransition(HelloState.AGREED, Wait.CODE),
    (HelloState.RUNNING, Event.CODES_READY): StateTransition(HelloState.RUNNING, Wait.IDLE),
    (HelloState.RUNNING, Event.PEER_TURN): StateTransition(HelloState.NEGOTIATING, Wait.REPLY, Guard.NATURAL_RESPONDER),
    # A destination cannot know whether tests come, so it runs and is taken back.
    (HelloState.RUNNING, Event.TESTS_PROPOSED): StateTransition(HelloState.TESTING, Wait.REPLY, Guard.TESTS_MAY_COME),
    (HelloState.RUNNING, Event.FAULT_ACCEPTED): StateTransition(HelloState.AGREED, Wait.CODE),
    (HelloState.RUNNING, Event.ACTIVITY): StateTransition(HelloState.RUNNING, Wait.IDLE, Guard.IDLE),
    # Closing the connection is the normal end of a running session; earlier it is an error.
    (HelloState.RUNNING, Event.LOST): StateTransition(HelloState.CLOSED),
    **{(state, Event.LOST): StateTransition(HelloState.ERROR) for state in LIVE if state is not HelloState.RUNNING},
    **{(state, Event.CLOSED): StateTransition(HelloState.CLOSED) for state in LIVE},
    **{(state, Event.FAILED): StateTransition(HelloState.ERROR) for state in LIVE},
    **{(state, Event.DEADLINE_PASSED): StateTransition(HelloState.TIMEOUT) for state in LIVE},
}
"""A session begins in HELLO, with the wait of the same name."""


@dataclass(frozen=True)
class Timeouts:
    """How long a session waits, in seconds of the machine's own clock.

    `hello`: for the other Hello. `code`: for both codes after an agreement; 15 by the source specification. `reply`: for an
    answer to a proposal, test cases, an error or a question, and as long for this side's own decision. `idle`: for any message
    in a running session.
    """

    # A stranger that connects and says nothing must not hold a place; the other side answers a Hello without any work.
    hello: float = 10.0
    # The source suggests 15 seconds. Agents with negotiators wait longer (`treaty_agent.sessions.interfaces.PATIENT`).
    code: float = 15.0
    # As long as the official SDK waits, so that neither side gives up while the other still may answer.
    reply: float = 60.0
    # An abandoned session must not keep its worker and its place.
    idle: float = 600.0


class WaitRule(NamedTuple):
    """How long a wait lasts (a field of `Timeouts`), and the error after it."""

    seconds: str
    code: str
    sentence: str


WAITS = {
    Wait.HELLO: WaitRule("hello", SessionCode.REPLY_TIMEOUT, "No Hello came within {:g} seconds."),
    Wait.CODE: WaitRule(
        "code", SessionCode.CODE_TIMEOUT, "The code was not ready on both sides {:g} seconds after the agreement."
    ),
    Wait.REPLY: WaitRule("reply", SessionCode.REPLY_TIMEOUT, "The other side did not answer within {:g} seconds."),
    Wait.DECISION: WaitRule("reply", SessionCode.REPLY_TIMEOUT, "This side came to no decision within {:g} seconds."),
    Wait.TESTS: WaitRule("reply", SessionCode.REPLY_TIMEOUT, "This side's tests took over {:g} seconds."),
    Wait.IDLE: WaitRule("idle", SessionCode.IDLE, "Nothing was said for {:g} seconds."),
    Wait.FIX: WaitRule("reply", SessionCode.REPLY_TIMEOUT, "The other side did not answer a reported error within {:g} seconds."),
    Wait.VERDICT: WaitRule("reply", SessionCode.REPLY_TIMEOUT, "This side did not answer a reported error within {:g} seconds."),
    Wait.QUESTION: WaitRule("reply", SessionCode.REPLY_TIMEOUT, "The other side did not answer a question within {:g} seconds."),
}
