"""What the parts of the state machine share: both Hellos, the state, the waits, and the way to say something or to end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from treaty_consensus.errors import Refused, TreatyError

from . import frame, messages
from .actions import Action, Agreement, Ended, SendBinary
from .deadlines import Deadlines, Wait
from .frame import ProtocolType
from .hello import Hello
from .limits import Limits, Timeouts
from .messages import MetaMessage


class State(StrEnum):
    """Where a session stands; the last four are final."""

    HELLO = "hello"
    NEGOTIATING = "negotiating"
    AGREED = "agreed"
    TESTING = "testing"
    RUNNING = "running"
    CLOSED = "closed"
    REJECTED = "rejected"
    ERROR = "error"
    TIMEOUT = "timeout"


FINAL = frozenset({State.CLOSED, State.REJECTED, State.ERROR, State.TIMEOUT})

NATURAL = Agreement("", None, False)
"""The agreement to speak natural language alone."""


@dataclass(eq=False)
class Core:
    """One session's. Each part changes it only as its own docstring says."""

    own: Hello
    timeouts: Timeouts
    limits: Limits
    state: State = State.HELLO
    peer: Hello | None = None
    agreement: Agreement | None = None
    error: TreatyError | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)

    @property
    def is_source(self) -> bool:
        """Whether this side connected."""
        return self.own.type == "sourceHello"

    @property
    def is_final(self) -> bool:
        """Whether the session is over."""
        return self.state in FINAL

    @property
    def is_natural(self) -> bool:
        """Whether natural language alone is spoken."""
        return self.agreement == NATURAL

    def both_list(self, capability: str) -> bool:
        """Whether both Hellos list it; False before there are two."""
        return self.peer is not None and capability in self.own.capabilities and capability in self.peer.capabilities

    def require(self, capability: str) -> None:
        """Raises `Refused` (`meta.not-agreed`) unless both Hellos list it."""
        if not self.both_list(capability):
            raise Refused("meta.not-agreed", f"{capability} is not a capability that both sides listed.")

    def enter(self, state: State, wait: Wait, now: float) -> None:
        """Go on to a state, or begin a new wait in the same one."""
        self.state = state
        seconds = {
            Wait.HELLO: self.timeouts.hello,
            Wait.CODE: self.timeouts.code,
            Wait.IDLE: self.timeouts.idle,
        }.get(wait, self.timeouts.reply)
        self.deadlines.enter(wait, now, seconds)

    def touch(self, now: float) -> None:
        """Something was said: a running session is not idle."""
        if self.deadlines.is_in(Wait.IDLE):
            self.deadlines.enter(Wait.IDLE, now, self.timeouts.idle)

    def end(self, state: State, error: TreatyError | None) -> list[Action]:
        """It is over."""
        self.state, self.error = state, error
        self.deadlines.clear()
        return [Ended(error)]


def say(message: MetaMessage) -> SendBinary:
    """The frame of a meta message. Raises `TooLarge` or `Malformed`, as `messages.encode`."""
    return SendBinary(frame.encode(ProtocolType.META, messages.encode(message)))


def unexpected(what: str) -> Refused:
    """A meta message for which this is not the time."""
    return Refused("meta.unexpected", f"There is no place here for {what}.")
