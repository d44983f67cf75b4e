"""The shared parts of the Hello machine: both Hellos, the state and its deadlines, the limits, and the ways to say something
or to end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import TypedDict

from treaty_consensus.errors import Refused, TreatyError
from treaty_io.codes import FrameCode, MetaCode, SessionCode
from treaty_io.errors import PeerUnavailable

from .. import frame
from ..ending import ended_by_peer
from ..frame import ProtocolType
from ..transitions import StateTable
from . import messages
from .actions import Action, Agreement, Ended, SendBinary
from .hello import Hello, Provided, refused_hello, told_by
from .messages import MetaMessage
from .states import PHASES, TRANSITIONS, WAITS, Event, Guard, HelloState, Timeouts, Transition, Wait

NATURAL = Agreement("", None, False)
"""The agreement to speak natural language alone."""


@dataclass(frozen=True)
class Limits:
    """How much one session takes; the source specification's numbers where it has some.

    `rounds`, `test_rounds`: protocolNegotiation and testCasesNegotiation messages of both sides together, without a repeated
    acceptance (at most 10 by the specification). `fix_rounds`: errors that either side may report. `questions`: of either side.
    `early_frames`: sent by an initiator because of an offered hash. `waiting_frames`, `waiting_bytes`: application messages that
    are kept, in each direction, until the session runs.
    """

    # The source suggests at most ten.
    rounds: int = 10
    test_rounds: int = 10
    # A peer that is never content must not have this side write code without end.
    fix_rounds: int = 3
    # Each question may cost the other side a request to its model.
    questions: int = 16
    # The other side may drop them all: early data are repeated when the hash is not confirmed.
    early_frames: int = 16
    # The peer decides how much it sends before this side is ready. So both caps bound memory.
    waiting_frames: int = 64
    waiting_bytes: int = frame.MAX_PAYLOAD


class Deadlines:
    """The waits of one session, and when each is over."""

    def __init__(self) -> None:
        self._until: dict[tuple[Wait, str], tuple[float, float]] = {}
        self.next = math.inf
        """When the first wait is over; infinity without one."""

    def begin(self, phase: Wait, now: float, seconds: float) -> None:
        """Begin a phase, or begin it again; the phase before is over."""
        # Phases exclude each other. Forgetting one would end a session that has long gone on.
        for other in PHASES:
            self._until.pop((other, ""), None)
        self._until[phase, ""] = (now + seconds, seconds)
        self._note()

    def is_in(self, phase: Wait) -> bool:
        """Whether this is the phase."""
        return (phase, "") in self._until

    def add(self, wait: Wait, now: float, seconds: float, name: str = "") -> None:
        """Begin a wait beside the phase. `name`: tells several of a kind apart."""
        self._until[wait, name] = (now + seconds, seconds)
        self._note()

    def drop(self, wait: Wait, name: str = "") -> None:
        """End a wait beside the phase."""
        self._until.pop((wait, name), None)
        self._note()

    def clear(self) -> None:
        """End all waits."""
        self._until.clear()
        self._note()

    def passed(self, now: float) -> TreatyError | None:
        """The error of the first wait that is over at `now`, or None."""
        if not self._until or now < self.next:
            return None
        (wait, _), (_, seconds) = min(self._until.items(), key=lambda item: item[1][0])
        return PeerUnavailable(WAITS[wait].code, WAITS[wait].sentence.format(seconds))

    def _note(self) -> None:
        # Once for each change: a driver asks after each message.
        self.next = math.inf
        for until, _ in self._until.values():
            self.next = min(self.next, until)


class InitiatorOptions(TypedDict, total=False):
    """`known_uri`: the URI of the hash that the Hello offers, if any. `negotiates`: it proposes a protocol where none is in
    common. `wants_tests`: it proposes test cases where both sides can. `natural`: it wants natural language alone, and its
    Hello offers no protocol. An initiator that would go on by the flow profile lists `flowProfile` in its Hello. `known_reader`:
    the peer of the offered hash read the metadata of calls before, so that early data have them."""

    limits: Limits
    known_uri: str
    known_reader: bool
    negotiates: bool
    wants_tests: bool
    natural: bool


class ResponderOptions(TypedDict, total=False):
    """`provides`: URI to protocol, of those that the policy admits. `negotiates`: it considers proposals."""

    limits: Limits
    provides: Mapping[str, Provided]
    negotiates: bool


@dataclass(eq=False)
class Core:
    """One session. Its state changes by `fire` and `end` alone, as the table in `states` says. `is_met`: judges the guards of the
    table."""

    own: Hello
    timeouts: Timeouts
    limits: Limits
    is_met: InitVar[Callable[[Guard], bool]]
    state: HelloState = HelloState.HELLO
    peer: Hello | None = None
    agreement: Agreement | None = None
    error: TreatyError | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)

    def __post_init__(self, is_met: Callable[[Guard], bool]) -> None:
        self._table = StateTable(TRANSITIONS, is_met)
        self.is_initiator = self.own.type == "sourceHello"
        """Whether this side connected."""
        self.is_final = False
        """Whether the session is over."""

    @property
    def is_natural(self) -> bool:
        """Whether natural language alone is spoken."""
        return self.agreement == NATURAL

    def both_list(self, capability: str) -> bool:
        """Whether both Hellos list it; False before there are two."""
        return self.peer is not None and capability in self.own.capabilities and capability in self.peer.capabilities

    def require(self, capability: str) -> None:
        """Raises `Refused` (`session.profile`) unless both Hellos list it."""
        if not self.both_list(capability):
            raise Refused(SessionCode.PROFILE, f"{capability} is not a capability that both sides listed.")

    def agree(self, agreement: Agreement | None) -> None:
        """Set the agreement; None while a new one is negotiated."""
        self.agreement = agreement

    def allows(self, event: Event) -> bool:
        """Whether the table has a transition for the event now."""
        return self._table.allows(self.state, event)

    def fire(self, event: Event, now: float) -> None:
        """Follow a transition to a state that is not final. Raises `UndefinedTransition`."""
        self._enter(self._table.follow(self.state, event), now)

    def fire_if_allowed(self, event: Event, now: float) -> None:
        """Follow a transition that only renews a wait, if it is there."""
        transition = self._table.find(self.state, event)
        if transition is not None:
            self._enter(transition, now)

    def _enter(self, transition: Transition, now: float) -> None:
        self.state = transition.target
        # A transition without a wait keeps the earlier deadline, so a peer cannot extend it by going in circles.
        if transition.wait is not None:
            self.deadlines.begin(transition.wait, now, self.seconds(transition.wait))

    def wait_for(self, wait: Wait, now: float, name: str = "") -> None:
        """Begin a wait beside the phase."""
        self.deadlines.add(wait, now, self.seconds(wait), name)

    def seconds(self, wait: Wait) -> float:
        """How long a wait lasts."""
        return float(getattr(self.timeouts, WAITS[wait].seconds))

    def end(self, event: Event, error: TreatyError | None) -> list[Action]:
        """Follow a transition to a final state. Raises `UndefinedTransition`."""
        self.state, self.error = self._table.follow(self.state, event).target, error
        self.is_final = True
        # No deadline outlives the session: its error would replace the one that ended it.
        self.deadlines.clear()
        return [Ended(error)]


def say(message: MetaMessage) -> SendBinary:
    """The frame of a meta message. Raises `TooLarge` or `Malformed`, as `messages.encode`."""
    return SendBinary(frame.encode(ProtocolType.META, messages.encode(message)))


def unexpected(what: str) -> Refused:
    """The error for a meta message that is not due."""
    return Refused(MetaCode.MESSAGE, f"There is no place here for {what}.")


def lost_session(reason: str, *, is_begun: bool) -> TreatyError:
    """The error where the other side closed the connection. `reason`: its code, or "". `is_begun`: whether a call may be."""
    if reason == SessionCode.BUSY and not is_begun:
        return no_room()
    # In place of an encrypted answer there is no message: its keys do not exist. The reason is that of the close alone.
    if not is_begun and told_by(reason):
        return refused_hello(reason)
    return ended_by_peer(reason, "The other side ended the session", SessionCode.PEER_LOST, SessionCode.PEER_REFUSED)


def no_room() -> PeerUnavailable:
    """The error where the other side refused the session before it was begun, for want of room."""
    return PeerUnavailable(SessionCode.BUSY, "The other side has no room for another session now.", fix="Try again later.")


def nothing_in_common(why: str) -> Refused:
    """The error where no protocol is in common."""
    return Refused(
        SessionCode.NO_COMMON_PROTOCOL,
        f"The two agents have no protocol in common, {why}",
        fix="Offer a protocol that the other side provides, provide one that is offered, or configure a language model.",
    )


def unsupported(type: ProtocolType) -> Refused:
    """The error for a frame of a type that is not a capability of both sides."""
    return Refused(FrameCode.FORM, f"PT={type:02b} is not among the capabilities of both Hellos.")
