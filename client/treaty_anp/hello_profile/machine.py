"""The state machine of the Hello profile, the same for both sides: no I/O, no clock, no randomness.

    receive(message, now)    a text or binary message of the peer
    apply(command, now)      a decision or a wish of this side, see `commands`
    tick(now)                the time; due at `deadline`
    close(), fail(error)     this side ends the session
    lost(reason)             the connection ended

Each returns the actions to perform, in their order. `now` is in seconds of any monotonic clock. The states and all transitions
are the table in `states`. A peer's message never raises: it ends the machine, after a last message that says why. After the end
every call returns no actions. A decision that is no longer due does nothing. A command that may never be given, or a text over
its cap, raises `TreatyError` and changes nothing.

The application messages of a session (PT=01) are early data, and messages that wait until it runs. Messages of both directions
keep their order. Those of the peer that come before the session runs here are delivered when it does. Early data are the frames
that an initiator sends right behind its Hello because of an offered hash.

The metadata of a call (`callContext`) go before its message, in the same frame, to a peer that reads them. Those of the peer are
for its next message; of several before it the last counts, so that there is one at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Unpack

from msgspec import structs

from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError
from treaty_consensus.printable import printable
from treaty_consensus.protocol import check_document
from treaty_io.codes import FrameCode, HelloCode, SessionCode

from .. import frame
from ..call_metadata import CallMetadata
from ..frame import ProtocolType
from ..recording import Recorder, recorded
from . import actions as a
from . import commands as c
from . import hello, messages
from .actions import Action, Agreement, Deliver, SendBinary
from .core import (
    NATURAL,
    Core,
    InitiatorOptions,
    Limits,
    ResponderOptions,
    lost_session,
    nothing_in_common,
    say,
    unexpected,
    unsupported,
)
from .generation import Generation, Repairs
from .hello import CALL_CONTEXT, Hello, Provided, refused_hello
from .messages import TracedMessage
from .negotiation import ProtocolExchange, Questions, TestExchange
from .states import FINAL, Event, Guard, HelloState, Timeouts, Wait

__all__ = ["FINAL", "HelloState", "Limits", "Machine", "Provided", "Timeouts"]

_LIMITS = Limits()
# One during the negotiation, and one after the publication. Each may cost a request to a registry.
MAX_TOLD = 2
"""URIs of published documents that a peer may say in a session."""


class Machine(Core):
    """One session. Make it by `initiator` or `responder`; not for concurrent use. Attributes are for reading."""

    def __init__(
        self,
        own: Hello,
        *,
        now: float,
        timeouts: Timeouts,
        limits: Limits = _LIMITS,
        negotiates: bool = False,
        provides: Mapping[str, Provided] | None = None,
        known_uri: str = "",
        known_reader: bool = False,
        wants_tests: bool = False,
        natural: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(own, timeouts, limits, self._is_met)
        self.recorder, self.drawn = recorder, list[str]()
        self.provides, self.known_uri = provides or {}, known_uri
        self._negotiates, self._natural, self._told = negotiates, natural, 0
        self._exchange = ProtocolExchange(
            self,
            negotiates=negotiates,
            is_provided=lambda text: bool(self._published(check_document(text.encode()))),
            agreed=self._document_agreed,
        )
        self._tests = TestExchange(self, wanted=wants_tests, run=self._run)
        self._generation = Generation(self, both_ready=self._tests.begin)
        self._repairs = Repairs(self, self._generation)
        self._questions = Questions(self)
        self.application = ApplicationMessages(self, self._generation, spoken=self._tests.never, known_reader=known_reader)
        self.deadlines.begin(Wait.HELLO, now, timeouts.hello)

    @classmethod
    def initiator(
        cls,
        own: Hello,
        *,
        now: float,
        timeouts: Timeouts,
        recorder: Recorder | None = None,
        **options: Unpack[InitiatorOptions],
    ) -> tuple[Machine, list[Action]]:
        """Make the side that connects; also return its first actions."""
        machine = cls(own, now=now, timeouts=timeouts, recorder=recorder, **options)
        actions: list[Action] = [a.SendText(own.format())]
        if recorder is not None:
            recorder.note("initiator", {"own": own, "timeouts": timeouts, **options}, now, actions)
        return machine, actions

    @classmethod
    def responder(
        cls,
        own: Hello,
        *,
        now: float,
        timeouts: Timeouts,
        recorder: Recorder | None = None,
        **options: Unpack[ResponderOptions],
    ) -> Machine:
        """Make the side that is connected to. `own`: its Hello, completed when the initiator's has come."""
        machine = cls(own, now=now, timeouts=timeouts, recorder=recorder, **options)
        if recorder is not None:
            recorder.note("responder", {"own": own, "timeouts": timeouts, **options}, now, [])
        return machine

    @property
    def deadline(self) -> float:
        """When `tick` is due; infinity after the end."""
        return self.deadlines.next

    @property
    def accepts_input(self) -> bool:
        """False while the driver should not read on: the inbox is full, and only this side's work is lacking."""
        if not self.application.inbox.is_full or not self._generation.peer:
            return True
        return self._exchange.waits_for_peer or self._tests.waits_for_peer or self._repairs.waits_for_peer

    # The verbs

    @recorded
    def receive(self, message: str | bytes, now: float) -> list[Action]:
        """Take a text or binary message of the peer."""
        if self.is_final:
            return []
        try:
            return self._receive_hello(message, now) if isinstance(message, str) else self._receive_frame(message, now)
        except TreatyError as error:
            return [*self._notice(error), *self.end(Event.FAILED, error)]

    @recorded
    def apply(self, command: c.Command, now: float) -> list[Action]:
        """Apply a decision or a wish of this side. Raises as the command's class says; then nothing happened."""
        if self.is_final:
            return []
        match command:
            case c.Propose(text, summary):
                return self._exchange.propose(text, summary, now)
            case c.Accept():
                return self._exchange.accept(now)
            case c.Reject(reason, retry_after):
                return self._exchange.reject(reason, retry_after)
            case c.CodeReady(protocol_hash):
                return self._generation.ready(protocol_hash, now)
            case c.CodeFailed(error):
                return self._generation.failed(error)
            case c.ProposeTests(text, summary):
                return self._tests.propose(text, summary, now)
            case c.AcceptTests():
                return self._tests.accept(now)
            case c.RejectTests(reason):
                return self._tests.reject(reason)
            case c.SkipTests():
                return self._tests.skip(now)
            case c.TestsPassed():
                return self._tests.passed(now)
            case c.ReportError(description):
                return self._report_error(description, now)
            case c.AcceptError():
                return self._repairs.accept(now)
            case c.RejectError(reason):
                return self._repairs.reject(reason, now)
            case c.Ask(message_id, text):
                return self._questions.ask(message_id, text, now)
            case c.Answer(message_id, text):
                return self._questions.answer(message_id, text, now)
            case c.Send(payload, early, metadata):
                return self.application.send(payload, early, metadata, now)
            case c.SendMeta(message):
                running = self.state is HelloState.RUNNING and not self.is_natural
                return self._said(say(message), now) if running else []
            case c.TellPublished(uri):
                listed = self.both_list(hello.PROTOCOL_PUBLISHED)
                return self._said(say(messages.ProtocolPublished(uri)), now) if listed else []
            case c.SendVerification(payload):
                self.require(hello.VERIFICATION_PROTOCOL)
                data = frame.encode(ProtocolType.VERIFICATION, payload)
                return self._said(a.SendBinary(data), now) if self._may_verify else []
            case c.Say(text):
                self.require(hello.NATURAL_LANGUAGE_PROTOCOL)
                return self._said(a.SendBinary(frame.encode(ProtocolType.NATURAL_LANGUAGE, frame.encode_text(text))), now)

    @recorded
    def tick(self, now: float) -> list[Action]:
        """Let time pass. Does nothing before `deadline`."""
        error = self.deadlines.passed(now)
        if error is None:
            return []
        return [*self._goodbye(f"{error.code}: {error.message}"), *self.end(Event.DEADLINE_PASSED, error)]

    @recorded
    def close(self) -> list[Action]:
        """End the session in order."""
        return [] if self.is_final else self.end(Event.CLOSED, None)

    @recorded
    def fail(self, error: TreatyError) -> list[Action]:
        """End the session, as this side cannot go on."""
        # The code alone, as the message may name things of this machine.
        return [] if self.is_final else [*self._goodbye(error.code), *self.end(Event.FAILED, error)]

    @recorded
    def lost(self, reason: str = "") -> list[Action]:
        """End the session, as the connection ended. `reason`: the peer's, or ""."""
        if self.is_final:
            return []
        if self.allows(Event.LEFT):
            return self.end(Event.LEFT, nothing_in_common("and the other side proposed none."))
        error = lost_session(reason, is_begun=self.state not in (HelloState.HELLO, HelloState.AGREED))
        return self.end(Event.LOST, error if reason or self.state is not HelloState.RUNNING else None)

    def _notice(self, error: TreatyError) -> list[Action]:
        """The last message to a peer that broke a rule, in a message that it understands in this state."""
        sentence = f"{error.code}: {error.message}"
        if self.state is HelloState.HELLO:
            return [self._exchange.refusal(sentence)]
        return [*self._goodbye(sentence)] or [*self._repairs.notice(sentence)]

    def _goodbye(self, reason: str) -> list[a.SendBinary]:
        """The last message of a negotiation that this side ends. The close of the connection alone would leave a peer waiting
        that does not look at it, as the official SDK."""
        return [self._exchange.refusal(reason)] if self.state is HelloState.NEGOTIATING else []

    # Commands

    def _report_error(self, description: str, now: float) -> list[Action]:
        self.require(hello.FIX_ERROR_NEGOTIATION)
        heard = self._generation.was_ready and self._generation.heard_from_peer and not self._tests.may_come
        is_due = (heard and self.state is HelloState.RUNNING) or self._tests.are_due
        return self._repairs.report(description, now) if is_due else []

    def _said(self, action: a.SendBinary, now: float) -> list[Action]:
        self.fire_if_allowed(Event.ACTIVITY, now)
        return [action]

    # Hellos

    def _receive_hello(self, text: str | bytes, now: float) -> list[Action]:
        if self.state is not HelloState.HELLO:
            raise Malformed(HelloCode.FORM, "After the Hellos every message is binary.")
        if not self.is_initiator:
            peer = hello.parse(text, "sourceHello")
            self.own, agreement = hello.choose(self.own, peer, self.provides)
            self.peer = peer
            return [a.SendText(self.own.format()), *self._begin(agreement, now)]
        peer = hello.parse(text, "destinationHello")
        # Checked before it is believed: until then no field of this Hello has an effect.
        agreement = hello.validate_answer(self.own, peer, self.known_uri)
        self.peer = peer
        if agreement is None or not agreement.confirmed:
            self.application.drop_unsent()
        return self._begin(agreement, now)

    def _begin(self, agreement: Agreement | None, now: float) -> list[Action]:
        """Go on from the Hellos: by their agreement, else by the flow profile, else by negotiating, if this side does."""
        if agreement is not None:
            if agreement.confirmed:
                self._tests.never()
            event = Event.HASH_CONFIRMED if agreement.confirmed else Event.PROTOCOL_SELECTED
            return self._generation.begin(event, agreement, now)
        # Before any proposal: the first message of the flow profile is the initiator's next one.
        if self.both_list(hello.FLOW_PROFILE):
            self.end(Event.FLOW_PROFILE, None)
            return [a.SwitchProfile()]
        if not self.is_initiator:
            self._exchange.open(Event.PEER_TURN, now)
            return []
        if self._natural:
            if not self.both_list(hello.NATURAL_LANGUAGE_PROTOCOL):
                error = Refused(SessionCode.PROFILE, "The other side does not speak natural language.")
                return self.end(Event.NOT_AGREED, error)
            return self._speak_naturally(now)
        if not self._negotiates:
            return self.end(Event.NOT_AGREED, nothing_in_common("and this one has no language model to negotiate one."))
        self._exchange.open(Event.OWN_TURN, now)
        return [a.Draft()]

    def _speak_naturally(self, now: float) -> list[Action]:
        self.fire(Event.NATURAL_LANGUAGE, now)
        self.agree(NATURAL)
        return [a.Running()]

    def _document_agreed(self, text: str, now: float) -> list[Action]:
        digest = check_document(text.encode())
        published = "" if self._negotiates else self._published(digest)
        agreement = Agreement(published, digest, False) if published else Agreement("", digest, False, text)
        return self._generation.begin(Event.DOCUMENT_AGREED, agreement, now)

    def _published(self, digest: str) -> str:
        """The URI of the provided protocol that has this document, or ""."""
        return next((uri for uri, provided in self.provides.items() if provided.protocol_hash == digest), "")

    def _run(self, event: Event, now: float) -> list[Action]:
        """Run, and send and deliver the messages that were kept."""
        self.fire(event, now)
        return [a.Running(), *self.application.flush(now)]

    # Frames

    def _receive_frame(self, message: bytes, now: float) -> list[Action]:
        if self.state is HelloState.HELLO:
            return self._receive_first(message, now)
        type, payload = frame.decode(message)
        self.fire_if_allowed(Event.ACTIVITY, now)
        match type:
            case ProtocolType.META:
                return self._receive_meta(payload, now)
            case ProtocolType.APPLICATION:
                return self.application.receive(payload, now)
            case ProtocolType.NATURAL_LANGUAGE:
                return self._receive_text(payload, now)
            case ProtocolType.VERIFICATION:
                return self._receive_verification(payload)

    def _receive_first(self, message: bytes, now: float) -> list[Action]:
        """Take a binary message before the peer's Hello: a Hello in bytes, or the refusal of this side's Hello."""
        # A Hello is a JSON object. No frame has this first byte: its reserved bits are sent as 0.
        if message.lstrip(b" \t\r\n").startswith(b"{"):
            return self._receive_hello(message, now)
        type, payload = frame.decode(message)
        first_message = messages.parse(payload) if self.is_initiator and type is ProtocolType.META else None
        if isinstance(first_message, messages.ProtocolNegotiation) and first_message.status == "rejected":
            return self.end(Event.FAILED, refused_hello(printable(first_message.modification_summary or "no reason given", 500)))
        raise Malformed(HelloCode.FORM, "A Hello comes before anything else.")

    def _receive_meta(self, payload: bytes, now: float) -> list[Action]:
        match messages.parse(payload):
            case messages.ProtocolNegotiation() as message:
                if self.allows(Event.PEER_TURN) and self.is_natural:  # the initiator spoke before it proposed
                    self._exchange.open(Event.PEER_TURN, now)
                    self.agree(None)
                return self._exchange.receive(message, now)
            case messages.CodeGeneration() as message:
                return self._generation.receive(message, now)
            case messages.TestCasesNegotiation() as message:
                return self._tests.receive(message, now)
            case messages.FixErrorNegotiation() as message:
                confirmed = self.agreement is not None and self.agreement.confirmed
                repairable = (self._generation.was_ready or confirmed) and not self._tests.is_open
                return self._repairs.receive(message, now, repairable=repairable)
            case messages.NaturalLanguageNegotiation() as message:
                return self._questions.receive(message)
            case messages.ProtocolPublished(uri):
                self.require(hello.PROTOCOL_PUBLISHED)
                self._told += 1
                if self._told > MAX_TOLD:
                    raise unexpected("one more URI")
                return [a.Published(uri)]
            case CallMetadata() | messages.TracedMessage() as message:
                return self.application.announce(message, now)
            case message:
                self.require(hello.REPORT_COSIGNATURE)
                if not ((self.state is HelloState.RUNNING and not self.is_natural) or self._generation.was_ready):
                    raise unexpected("a report: it is about a session that runs")
                return [a.Meta(message)]

    def _receive_text(self, payload: bytes, now: float) -> list[Action]:
        if not self.both_list(hello.NATURAL_LANGUAGE_PROTOCOL):
            raise unsupported(ProtocolType.NATURAL_LANGUAGE)
        text = a.DeliverText(frame.decode_text(payload))
        return [*(self._speak_naturally(now) if self.allows(Event.NATURAL_LANGUAGE) else []), text]

    def _receive_verification(self, payload: bytes) -> list[Action]:
        if not self.both_list(hello.VERIFICATION_PROTOCOL):
            raise unsupported(ProtocolType.VERIFICATION)
        if self._may_verify:
            return [a.DeliverVerification(payload)]
        if self._tests.agreed is None:
            raise Refused(FrameCode.FORM, "A verification message came, and no test cases were agreed on.")
        return []  # it crossed an error report, and is about code that is being repaired

    @property
    def _may_verify(self) -> bool:
        return self._tests.agreed is not None and (self.state is HelloState.RUNNING or self._tests.are_due)

    # The table

    def end(self, event: Event, error: TreatyError | None) -> list[Action]:
        """See `Core.end`; the messages that were kept are dropped."""
        self.application.drop()
        return super().end(event, error)

    def _is_met(self, guard: Guard) -> bool:
        match guard:
            case Guard.NOTHING_PROPOSED:
                return not self.is_initiator and not self._exchange.said
            case Guard.NATURAL_RESPONDER:
                return not self.is_initiator and self.is_natural
            case Guard.TESTS_MAY_COME:
                return self._tests.may_come
            case Guard.TESTS_RUN:
                return self.deadlines.is_in(Wait.TESTS)
            case Guard.IDLE:
                return self.deadlines.is_in(Wait.IDLE)


class WaitingMessage(NamedTuple):
    """A message that is kept: a frame to send, or the payload to deliver. `at`: since when."""

    data: bytes
    metadata: CallMetadata | None
    at: float


class MessageQueue:
    """Application messages that wait until the session runs. Bounded, as the peer decides how many there are."""

    def __init__(self, *, frames: int, size: int) -> None:
        self._max_frames, self._max_size = frames, size
        self._messages: list[WaitingMessage] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        """Whether one more is too many. The message that fills the queue may go beyond its bytes."""
        return len(self._messages) >= self._max_frames or self.size >= self._max_size

    def enqueue(self, message: bytes, metadata: CallMetadata | None, now: float) -> None:
        """Keep one more; check `is_full` first."""
        self._messages.append(WaitingMessage(message, metadata, now))
        self.size += len(message)

    def take(self) -> list[WaitingMessage]:
        """Remove and return all messages, in their order."""
        messages, self._messages, self.size = self._messages, [], 0
        return messages


class ApplicationMessages:
    """The application messages of one session. `spoken`: called when the peer sends one that counts. `known_reader`: whether the
    peer of the offered hash read metadata before. `inbox`: for reading."""

    def __init__(self, core: Core, generation: Generation, *, spoken: Callable[[], None], known_reader: bool = False) -> None:
        limits = core.limits
        self._core, self._generation, self._spoken = core, generation, spoken
        # Two queues, so that a peer that sends much cannot take the room of this side's own messages.
        self.inbox = MessageQueue(frames=limits.waiting_frames, size=limits.waiting_bytes)
        self._outbox = MessageQueue(frames=limits.waiting_frames, size=limits.waiting_bytes)
        self._early, self._known_reader = 0, known_reader
        self._announced: CallMetadata | None = None

    def send(self, payload: bytes, early: bool, metadata: CallMetadata | None, now: float) -> list[Action]:
        """Send a message, or keep it until the session runs. See `commands.Send`."""
        core = self._core
        if core.is_natural:
            raise Refused(SessionCode.PROFILE, "This session has no protocol: only natural language is spoken in it.")
        try:
            data = frame.encode(ProtocolType.APPLICATION, payload)
        except TooLarge as error:
            return core.end(Event.FAILED, error)
        if core.state is HelloState.RUNNING and self._generation.own:
            core.fire_if_allowed(Event.ACTIVITY, now)
            return _sent(data, metadata if core.both_list(CALL_CONTEXT) else None)
        offered = core.is_initiator and core.state is HelloState.HELLO and core.own.used_protocol_hash is not None
        # Nothing overtakes a message that waits: the handler of the other side relies on the order.
        if early and offered and not self._outbox and self._early < core.limits.early_frames:
            self._early += 1
            return _sent(data, metadata if self._known_reader else None)
        if self._outbox.is_full:
            return core.end(Event.FAILED, TooLarge(SessionCode.OUTBOX_FULL, "Too much was said before the session was running."))
        self._outbox.enqueue(data, metadata, now)
        return []

    def announce(self, message: CallMetadata | TracedMessage, now: float) -> list[Action]:
        """Take the metadata of the peer's next message, with it or before it. Raises `Refused` (`session.profile`), and as
        `receive`."""
        self._core.require(CALL_CONTEXT)
        if isinstance(message, TracedMessage):
            self._announced = message.metadata
            return self.receive(message.payload, now)
        self._announced = message
        return []

    def receive(self, payload: bytes, now: float) -> list[Action]:
        """Take a message of the peer. Raises `Refused` (`frame.form`) or `TooLarge` (`session.inbox-full`)."""
        core = self._core
        metadata, self._announced = self._announced, None
        if self._generation.drops_early_data:
            return []
        self._spoken()
        self._generation.note_message()
        if core.state is HelloState.RUNNING and self._generation.own:
            return [Deliver(payload, metadata)]
        if core.agreement is None or core.is_natural:
            raise Refused(FrameCode.FORM, "An application message came, and no protocol is agreed on.")
        if self.inbox.is_full:
            raise TooLarge(SessionCode.INBOX_FULL, "Too many application messages came before the session was running.")
        self.inbox.enqueue(payload, metadata, now)
        return []

    def flush(self, now: float) -> list[Action]:
        """Send and deliver the messages that were kept, as the session runs."""
        is_reader, flushed = self._core.both_list(CALL_CONTEXT), list[Action]()
        for waiting in self._outbox.take():
            flushed += _sent(waiting.data, _later(waiting, now) if is_reader else None)
        return [*flushed, *(Deliver(waiting.data, _later(waiting, now)) for waiting in self.inbox.take())]

    def drop_unsent(self) -> None:
        """Drop this side's messages: they were for a protocol that was not confirmed."""
        self._outbox.take()

    def drop(self) -> None:
        """Drop all messages that were kept."""
        self.inbox.take()
        self._outbox.take()


def _sent(data: bytes, metadata: CallMetadata | None) -> list[Action]:
    """Return the actions for a frame. It shares the frame of its metadata: another message would cost both sides a third more."""
    if metadata is None:
        return [SendBinary(data)]
    traced = messages.encode(TracedMessage(metadata, data[1:]))
    if len(traced) > frame.MAX_PAYLOAD:
        return [say(metadata), SendBinary(data)]
    return [SendBinary(frame.encode(ProtocolType.META, traced))]


def _later(kept: WaitingMessage, now: float) -> CallMetadata | None:
    """Return the metadata of a message that was kept: the caller has waited meanwhile."""
    metadata = kept.metadata
    if metadata is None or metadata.timeout is None:
        return metadata
    return structs.replace(metadata, timeout=max(metadata.timeout - round(1000 * (now - kept.at)), 0))
