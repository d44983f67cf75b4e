"""The states of the flow profile. Everything that affects transitions lives in this file.

A connection has a state, and each protocol that is negotiated on it has a track with a state of its own. `INITIATOR` and
`RESPONDER` are the transitions of the connection, `INITIATOR_TRACK` and `RESPONDER_TRACK` those of a track. An event that is
not in the table is refused when a peer's message causes it, and an error of the program when this side does.

The pictures and the tables in `docs/specification/flow-profile.md` are generated from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ..transitions import StateTransition


class FlowState(StrEnum):
    """The state of a connection."""

    INITIATION = "initiation"
    DISCOVERY = "discovery"
    EVALUATION = "evaluation"
    SELECTION = "selection"
    RUNNING = "running"
    CLOSED = "closed"
    REJECTED = "rejected"
    ERROR = "error"
    TIMEOUT = "timeout"


FINAL = frozenset({FlowState.CLOSED, FlowState.REJECTED, FlowState.ERROR, FlowState.TIMEOUT})
LIVE = tuple(state for state in FlowState if state not in FINAL)
# Before a session runs, a lost connection is a failure; afterwards it is the usual end.
BEFORE_SESSIONS = (FlowState.INITIATION, FlowState.DISCOVERY, FlowState.EVALUATION, FlowState.SELECTION)

MEANING = {
    FlowState.INITIATION: "the responder waits for initialize",
    FlowState.DISCOVERY: "capabilities are exchanged",
    FlowState.EVALUATION: "the initiator evaluates the common protocols",
    FlowState.SELECTION: "protocols are proposed, and each has its track",
    FlowState.RUNNING: "at least one session was ready",
    FlowState.CLOSED: "sessions ran and all are over, or this side closed the connection",
    FlowState.REJECTED: "nothing in common, or no agreement",
    FlowState.ERROR: "a rule was broken, or the connection was lost too early",
    FlowState.TIMEOUT: "a deadline passed",
}


class FlowWait(StrEnum):
    """The waits of a connection; each a field of `FlowTimeouts`."""

    FIRST = "first"
    REPLY = "reply"
    IDLE = "idle"


class FlowEvent(StrEnum):
    """The events of a connection."""

    FULL_WAY = "initialize sent"
    SHORTCUT = "shortcut sent"
    DETAILS_ASKED = "details asked for"
    CAPABILITIES_KNOWN = "capabilities complete"
    EVALUATED = "evaluation sent"
    INITIALIZED = "initialize, capabilities wanted"
    INITIALIZED_SHORT = "initialize of a shortcut"
    CAPABILITIES_TOLD = "capabilities-exchange"
    EVALUATION_TOLD = "protocol-evaluation"
    PROPOSED = "protocol-proposal"
    PARAMETERS_OFFERED = "parameter-negotiation"
    CONFIRMED = "protocol-confirmation"
    TRACK_FAILED = "a protocol cannot be had"
    SESSION_READY = "a session ready"
    ACTIVITY = "a message of a session"
    NOT_AGREED = "nothing in common"
    LOST = "connection lost"
    CLOSED = "closed"
    FAILED = "a rule broken, or a failure"
    DEADLINE_PASSED = "deadline passed"


class FlowGuard(StrEnum):
    """The conditions that a transition may have."""

    NO_SESSION = "no session runs"


Transition: TypeAlias = StateTransition[FlowState, FlowWait, FlowGuard]
Transitions: TypeAlias = dict[tuple[FlowState, FlowEvent], Transition]

_BOTH: Transitions = {
    (FlowState.SELECTION, FlowEvent.SESSION_READY): StateTransition(FlowState.RUNNING, FlowWait.IDLE),
    (FlowState.RUNNING, FlowEvent.SESSION_READY): StateTransition(FlowState.RUNNING, FlowWait.IDLE),
    (FlowState.RUNNING, FlowEvent.ACTIVITY): StateTransition(FlowState.RUNNING, FlowWait.IDLE),
    # Nothing that is under way on a running connection is an agreement yet, so its loss is no error of the negotiation.
    (FlowState.RUNNING, FlowEvent.LOST): StateTransition(FlowState.CLOSED),
    **{(state, FlowEvent.LOST): StateTransition(FlowState.ERROR) for state in BEFORE_SESSIONS},
    **{(state, FlowEvent.NOT_AGREED): StateTransition(FlowState.REJECTED) for state in LIVE},
    **{(state, FlowEvent.CLOSED): StateTransition(FlowState.CLOSED) for state in LIVE},
    **{(state, FlowEvent.FAILED): StateTransition(FlowState.ERROR) for state in LIVE},
    **{(state, FlowEvent.DEADLINE_PASSED): StateTransition(FlowState.TIMEOUT) for state in LIVE},
}

INITIATOR: Transitions = {
    (FlowState.INITIATION, FlowEvent.FULL_WAY): StateTransition(FlowState.DISCOVERY, FlowWait.REPLY),
    (FlowState.INITIATION, FlowEvent.SHORTCUT): StateTransition(FlowState.SELECTION, FlowWait.REPLY),
    # The wait begins anew: the second exchange is another question.
    (FlowState.DISCOVERY, FlowEvent.DETAILS_ASKED): StateTransition(FlowState.DISCOVERY, FlowWait.REPLY),
    (FlowState.DISCOVERY, FlowEvent.CAPABILITIES_KNOWN): StateTransition(FlowState.EVALUATION, FlowWait.REPLY),
    (FlowState.EVALUATION, FlowEvent.EVALUATED): StateTransition(FlowState.SELECTION, FlowWait.REPLY),
    # A shortcut that failed is followed by the full negotiation on the same connection.
    (FlowState.SELECTION, FlowEvent.FULL_WAY): StateTransition(FlowState.DISCOVERY, FlowWait.REPLY),
    **_BOTH,
}

RESPONDER: Transitions = {
    # An initiator may begin again until a session runs, because its shortcut may fail at any point.
    **{(state, FlowEvent.INITIALIZED): StateTransition(FlowState.DISCOVERY, FlowWait.REPLY) for state in BEFORE_SESSIONS},
    **{(state, FlowEvent.INITIALIZED_SHORT): StateTransition(FlowState.SELECTION, FlowWait.REPLY) for state in BEFORE_SESSIONS},
    # With a session, a second `initialize` would leave open which of the two negotiations a message belongs to.
    (FlowState.RUNNING, FlowEvent.INITIALIZED): StateTransition(FlowState.DISCOVERY, FlowWait.REPLY, FlowGuard.NO_SESSION),
    (FlowState.RUNNING, FlowEvent.INITIALIZED_SHORT): StateTransition(FlowState.SELECTION, FlowWait.REPLY, FlowGuard.NO_SESSION),
    (FlowState.DISCOVERY, FlowEvent.CAPABILITIES_TOLD): StateTransition(FlowState.EVALUATION, FlowWait.REPLY),
    **{
        # Later exchanges are news and no phase: they begin no wait, so that they cannot keep a silent negotiation alive.
        (state, FlowEvent.CAPABILITIES_TOLD): StateTransition(state)
        for state in (FlowState.EVALUATION, FlowState.SELECTION, FlowState.RUNNING)
    },
    (FlowState.EVALUATION, FlowEvent.EVALUATION_TOLD): StateTransition(FlowState.SELECTION, FlowWait.REPLY),
    # The evaluation informs the responder only, so a proposal may come without it.
    (FlowState.EVALUATION, FlowEvent.PROPOSED): StateTransition(FlowState.SELECTION, FlowWait.REPLY),
    (FlowState.SELECTION, FlowEvent.PROPOSED): StateTransition(FlowState.SELECTION, FlowWait.REPLY),
    (FlowState.RUNNING, FlowEvent.PROPOSED): StateTransition(FlowState.RUNNING),
    # From here each track has its own deadline, so the connection begins no wait.
    (FlowState.SELECTION, FlowEvent.PARAMETERS_OFFERED): StateTransition(FlowState.SELECTION),
    (FlowState.RUNNING, FlowEvent.PARAMETERS_OFFERED): StateTransition(FlowState.RUNNING),
    (FlowState.SELECTION, FlowEvent.CONFIRMED): StateTransition(FlowState.SELECTION),
    (FlowState.RUNNING, FlowEvent.CONFIRMED): StateTransition(FlowState.RUNNING),
    (FlowState.SELECTION, FlowEvent.TRACK_FAILED): StateTransition(FlowState.SELECTION, FlowWait.REPLY),
    (FlowState.RUNNING, FlowEvent.TRACK_FAILED): StateTransition(FlowState.RUNNING, FlowWait.IDLE),
    **_BOTH,
}
"""A connection begins in INITIATION; the responder's first wait is FIRST."""


class TrackState(StrEnum):
    """The state of one protocol on its way from a proposal to a session."""

    PROPOSED = "proposed"
    TERMS = "terms"
    LOADING = "loading"
    OFFERED = "offered"
    CONFIRMED = "confirmed"


TRACK_MEANING = {
    TrackState.PROPOSED: "the initiator waits for the answer to its proposal",
    TrackState.TERMS: "parameters are awaited: the initiator's offer, or the responder's answer",
    TrackState.LOADING: "this side fetches and verifies the protocol",
    TrackState.OFFERED: "parameters are answered; the confirmation is next",
    TrackState.CONFIRMED: "the handlers start; after the acknowledgment the session is ready",
}


class TrackEvent(StrEnum):
    """The events of a track. A track that ends is removed; it has no final state."""

    ACCEPTED = "accepted, document unknown"
    OFFERED = "parameters offered"
    ANSWER_TAKEN = "answer taken"
    LOAD_BEGUN = "parameters came, protocol not loaded"
    ANSWERED = "parameters answered"
    REFUSED = "parameters refused"
    CONFIRMED = "confirmed"


TrackTransitions: TypeAlias = dict[tuple[TrackState, TrackEvent], StateTransition[TrackState, FlowWait, FlowGuard]]

INITIATOR_TRACK: TrackTransitions = {
    (TrackState.PROPOSED, TrackEvent.ACCEPTED): StateTransition(TrackState.LOADING),
    (TrackState.PROPOSED, TrackEvent.OFFERED): StateTransition(TrackState.TERMS),
    (TrackState.LOADING, TrackEvent.OFFERED): StateTransition(TrackState.TERMS),
    (TrackState.TERMS, TrackEvent.OFFERED): StateTransition(TrackState.TERMS),
    (TrackState.TERMS, TrackEvent.ANSWER_TAKEN): StateTransition(TrackState.OFFERED),
    (TrackState.TERMS, TrackEvent.CONFIRMED): StateTransition(TrackState.CONFIRMED),
    (TrackState.OFFERED, TrackEvent.CONFIRMED): StateTransition(TrackState.CONFIRMED),
    # A shortcut confirms ahead of the answer. If the answer differs, its terms are negotiated after all.
    (TrackState.CONFIRMED, TrackEvent.OFFERED): StateTransition(TrackState.TERMS),
    (TrackState.CONFIRMED, TrackEvent.ANSWER_TAKEN): StateTransition(TrackState.OFFERED),
}

RESPONDER_TRACK: TrackTransitions = {
    (TrackState.TERMS, TrackEvent.LOAD_BEGUN): StateTransition(TrackState.LOADING),
    (TrackState.TERMS, TrackEvent.ANSWERED): StateTransition(TrackState.OFFERED),
    (TrackState.TERMS, TrackEvent.REFUSED): StateTransition(TrackState.TERMS),
    (TrackState.LOADING, TrackEvent.ANSWERED): StateTransition(TrackState.OFFERED),
    # The document is loaded then, so the next offer is answered at once.
    (TrackState.LOADING, TrackEvent.REFUSED): StateTransition(TrackState.TERMS),
    (TrackState.OFFERED, TrackEvent.LOAD_BEGUN): StateTransition(TrackState.LOADING),
    (TrackState.OFFERED, TrackEvent.ANSWERED): StateTransition(TrackState.OFFERED),
    (TrackState.OFFERED, TrackEvent.REFUSED): StateTransition(TrackState.TERMS),
    (TrackState.OFFERED, TrackEvent.CONFIRMED): StateTransition(TrackState.CONFIRMED),
}


@dataclass(frozen=True)
class FlowTimeouts:
    """How long a connection waits, in seconds. `first`: for the first message. `reply`: for each answer, and for its own code.
    `idle`: for any message. `work`: for evaluating, fetching and starting a handler; each less than `reply`. `renew`: how long
    before its end the initiator renews a session, at most half of its time; 0 for never."""

    # A connection that sends nothing holds a place of the listener.
    first: float = 10.0
    # Enough for the peer to fetch and verify a protocol and to start its handler.
    reply: float = 30.0
    # A peer that disappeared without a word must not keep a handler for ever.
    idle: float = 600.0
    # Less than `reply`, so that this side tells its failure before the peer stops waiting.
    work: float = 25.0
    # Enough for two attempts, each with its wait for an answer.
    renew: float = 60.0


@dataclass(frozen=True)
class FlowLimits:
    """How far a negotiation goes. `rounds`: offers of parameters for one protocol; `proposals`: protocols that are proposed;
    `batch`: protocols at once; `renegotiations`: changes of one session; `lifetime`: seconds that a session may be confirmed for;
    `ready`: seconds that a responder may put off being ready."""

    # Rules that move values toward each other meet in two offers; more means that they do not.
    rounds: int = 5
    # Each rejected proposal may take `reply` seconds of a caller.
    proposals: int = 8
    # Each protocol of a batch loads code and starts a handler at the peer.
    batch: int = 8
    # Each change may start a handler, so an endless loop of changes would be costly.
    renegotiations: int = 64
    # The keys and the policy are checked again at least this often.
    lifetime: int = 3600
    # The initiator holds a handler meanwhile.
    ready: int = 30
