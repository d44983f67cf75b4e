"""What the state machine makes of a peer's messages: the Hellos, then frames of four types, each for its part of the machine."""

from __future__ import annotations

from collections.abc import Mapping

from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError
from treaty_consensus.protocol import check_document

from . import frame, messages
from .actions import Action, Agreement, Deliver, DeliverText, DeliverVerification, Draft, Meta, Running, SendBinary, SendText
from .core import NATURAL, Core, State, unexpected
from .deadlines import Wait
from .frame import ProtocolType
from .generation import Generation
from .handshake import Provided, believe, choose
from .hello import NATURAL_LANGUAGE_PROTOCOL, REPORT_COSIGNATURE, VERIFICATION_PROTOCOL, Hello, parse
from .limits import Limits, Timeouts
from .messages import (
    CodeGeneration,
    FixErrorNegotiation,
    NaturalLanguageNegotiation,
    ProtocolNegotiation,
    TestCasesNegotiation,
)
from .negotiation import ProtocolTalks
from .questions import Questions
from .repair import Repairs
from .testing import TestTalks
from .waiting import Waiting


class Reception(Core):
    """The machine without the methods that its driver calls."""

    def __init__(
        self,
        own: Hello,
        *,
        now: float,
        timeouts: Timeouts,
        limits: Limits,
        negotiates: bool,
        provides: Mapping[str, Provided] | None = None,
        known_uri: str = "",
        wants_tests: bool = False,
        natural: bool = False,
    ) -> None:
        super().__init__(own, timeouts, limits)
        self.provides, self.known_uri = provides or {}, known_uri
        self._negotiates, self._natural = negotiates, natural
        self._inbox = Waiting(frames=limits.waiting_frames, size=limits.waiting_bytes)
        self._outbox = Waiting(frames=limits.waiting_frames, size=limits.waiting_bytes)
        self._talks = ProtocolTalks(self, negotiates=negotiates, agreed=self._agreed_on)
        self._tests = TestTalks(self, wanted=wants_tests, run=self._run)
        self._generation = Generation(self, both_ready=self._tests.begin)
        self._repairs = Repairs(self, self._generation)
        self._questions = Questions(self)
        self.enter(State.HELLO, Wait.HELLO, now)

    def _receive(self, message: str | bytes, now: float) -> list[Action]:
        """A message of the peer; one that breaks a rule ends the session."""
        try:
            return self._receive_hello(message, now) if isinstance(message, str) else self._receive_frame(message, now)
        except TreatyError as error:
            return [*self._repairs.notice(error), *self.end(State.ERROR, error)]

    # Hellos

    def _receive_hello(self, text: str, now: float) -> list[Action]:
        if self.state is not State.HELLO:
            raise Malformed("hello.repeated", "After the Hellos every message is binary.")
        if not self.is_source:
            hello = parse(text, "sourceHello")
            self.own, agreement = choose(self.own, hello, self.provides)
            self.peer = hello
            return [SendText(self.own.format()), *self._begin(agreement, now)]
        hello = parse(text, "destinationHello")
        agreement = believe(self.own, hello, self.known_uri)
        self.peer = hello
        if agreement is None or not agreement.confirmed:
            self._outbox.take()
        return self._begin(agreement, now)

    def _begin(self, agreement: Agreement | None, now: float) -> list[Action]:
        """Go on from the Hellos: with what they agree to, else by negotiating, if this side does."""
        if agreement is not None:
            if agreement.confirmed:
                self._tests.never()
            return self._generation.begin(agreement, now)
        if not self.is_source:
            self._talks.open(own_turn=False, now=now)
            return []
        if self._natural:
            if not self.both_list(NATURAL_LANGUAGE_PROTOCOL):
                error = Refused("session.not-natural", "The other side does not speak natural language.")
                return self.end(State.REJECTED, error)
            return self._speak_naturally(now)
        if not self._negotiates:
            return self.end(State.REJECTED, nothing_in_common("and this one has no language model to negotiate one."))
        self._talks.open(own_turn=True, now=now)
        return [Draft()]

    def _speak_naturally(self, now: float) -> list[Action]:
        self.agreement = NATURAL
        self.enter(State.RUNNING, Wait.IDLE, now)
        return [Running()]

    def _agreed_on(self, text: str, now: float) -> list[Action]:
        """Both sides agreed on the text of a protocol."""
        return self._generation.begin(Agreement("", check_document(text.encode()), False, text), now)

    def _run(self, now: float) -> list[Action]:
        """What waited goes its way."""
        self.enter(State.RUNNING, Wait.IDLE, now)
        return [Running(), *map(SendBinary, self._outbox.take()), *map(Deliver, self._inbox.take())]

    # Frames

    def _receive_frame(self, message: bytes, now: float) -> list[Action]:
        if self.state is State.HELLO:
            raise Malformed("hello.missing", "A Hello comes before anything else.")
        type, payload = frame.decode(message)
        self.touch(now)
        match type:
            case ProtocolType.META:
                return self._receive_meta(payload, now)
            case ProtocolType.APPLICATION:
                return self._receive_application(payload)
            case ProtocolType.NATURAL_LANGUAGE:
                return self._receive_text(payload, now)
            case ProtocolType.VERIFICATION:
                return self._receive_verification(payload)

    def _receive_meta(self, payload: bytes, now: float) -> list[Action]:
        match messages.parse(payload):
            case ProtocolNegotiation() as message:
                if self.is_natural and not self.is_source:  # it spoke before it proposed
                    self.agreement = None
                    self._talks.open(own_turn=False, now=now)
                return self._talks.receive(message, now)
            case CodeGeneration() as message:
                return self._generation.receive(message, now)
            case TestCasesNegotiation() as message:
                return self._tests.receive(message, now)
            case FixErrorNegotiation() as message:
                confirmed = self.agreement is not None and self.agreement.confirmed
                mendable = (self._generation.was_ready or confirmed) and not self._tests.is_open
                return self._repairs.receive(message, now, mendable=mendable)
            case NaturalLanguageNegotiation() as message:
                return self._questions.receive(message)
            case message:
                self.require(REPORT_COSIGNATURE)
                if not self._is_about_something:
                    raise unexpected("a report: it is about a session that runs")
                return [Meta(message)]

    def _receive_application(self, payload: bytes) -> list[Action]:
        if self._is_dropped_early_data():
            return []
        self._tests.never()
        self._generation.heard_from_peer = True
        if self.state is State.RUNNING and self._generation.own:
            return [Deliver(payload)]
        if self.agreement is None or self.is_natural:
            raise Refused("frame.unexpected", "An application message came, and no protocol is agreed on.")
        if self._inbox.is_full:
            raise TooLarge("session.inbox-full", "Too many application messages came before the session was running.")
        self._inbox.put(payload)
        return []

    def _receive_text(self, payload: bytes, now: float) -> list[Action]:
        if not self.both_list(NATURAL_LANGUAGE_PROTOCOL):
            raise _unsupported(ProtocolType.NATURAL_LANGUAGE)
        text = DeliverText(frame.decode_text(payload))
        if self.state is State.NEGOTIATING and not self.is_source and not self._talks.said:
            return [*self._speak_naturally(now), text]
        return [text]

    def _receive_verification(self, payload: bytes) -> list[Action]:
        if not self.both_list(VERIFICATION_PROTOCOL):
            raise _unsupported(ProtocolType.VERIFICATION)
        if self._may_verify:
            return [DeliverVerification(payload)]
        if self._tests.agreed is None:
            raise Refused("frame.unexpected", "A verification message came, and no test cases were agreed on.")
        return []  # it crossed an error report, and is about code that is being mended

    @property
    def _is_about_something(self) -> bool:
        """Whether a protocol is spoken, or was before its code was mended."""
        return (self.state is State.RUNNING and not self.is_natural) or self._generation.was_ready

    @property
    def _may_verify(self) -> bool:
        return self._tests.agreed is not None and (self.state is State.RUNNING or self._tests.are_due)

    def _is_dropped_early_data(self) -> bool:
        """Whether a PT=01 frame now is one the source sent on the strength of a hash that was not confirmed."""
        offered = self.peer.used_protocol_hash if self.peer and not self.is_source else None
        confirmed = self.agreement is not None and self.agreement.confirmed
        return offered is not None and not confirmed and not self._generation.heard_from_peer

    def end(self, state: State, error: TreatyError | None) -> list[Action]:
        """See `Core.end`; what waited is dropped."""
        self._inbox.take()
        self._outbox.take()
        return super().end(state, error)


def nothing_in_common(why: str) -> Refused:
    return Refused(
        "session.no-common-protocol",
        f"The two agents have no protocol in common, {why}",
        fix="Offer a protocol that the other side provides, provide one that is offered, or configure a language model.",
    )


def _unsupported(type: ProtocolType) -> Refused:
    return Refused("frame.unsupported-type", f"PT={type:02b} is not among the capabilities of both Hellos.")
