"""The application messages of a Hello session (PT=01): early data, and messages that wait until the session runs.

Messages of both directions keep their order. Those of the peer that come before the session runs here are delivered when it does.
Early data are the frames that an initiator sends right behind its Hello because of an offered hash.

The metadata of a call (`callContext`) go before its message, in the same frame, to a peer that reads them. Those of the peer are
for its next message; of several before it the last counts, so that there is one at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from treaty_consensus.errors import Refused, TooLarge
from treaty_io.codes import FrameCode, SessionCode

from .. import frame
from ..call_metadata import CallMetadata
from ..frame import ProtocolType
from . import messages
from .actions import Action, Deliver, SendBinary
from .core import Core, say
from .generation import Generation
from .hello import CALL_CONTEXT
from .messages import TracedMessage
from .states import Event, HelloState


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

    @property
    def is_full(self) -> bool:
        """Whether no further message of the peer can be kept."""
        return self.inbox.is_full

    def send(self, payload: bytes, early: bool, metadata: CallMetadata | None, now: float) -> list[Action]:
        """Send a message, or keep it until the session runs. See `commands.Send`."""
        core = self._core
        if core.is_natural:
            raise Refused(SessionCode.NATURAL, "This session has no protocol: only natural language is spoken in it.")
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
        """Take the metadata of the peer's next message, with it or before it. Raises `Refused` (`meta.not-agreed`), and as
        `receive`."""
        self._core.require(CALL_CONTEXT)
        if isinstance(message, TracedMessage):
            self._announced = message.metadata
            return self.receive(message.payload, now)
        self._announced = message
        return []

    def receive(self, payload: bytes, now: float) -> list[Action]:
        """Take a message of the peer. Raises `Refused` (`frame.unexpected`) or `TooLarge` (`session.inbox-full`)."""
        core = self._core
        metadata, self._announced = self._announced, None
        if self._generation.drops_early_data:
            return []
        self._spoken()
        self._generation.heard_from_peer = True
        if core.state is HelloState.RUNNING and self._generation.own:
            return [Deliver(payload, metadata)]
        if core.agreement is None or core.is_natural:
            raise Refused(FrameCode.UNEXPECTED, "An application message came, and no protocol is agreed on.")
        if self.inbox.is_full:
            raise TooLarge(SessionCode.INBOX_FULL, "Too many application messages came before the session was running.")
        self.inbox.enqueue(payload, metadata, now)
        return []

    def flush(self, now: float) -> list[Action]:
        """Send and deliver the messages that were kept, as the session runs."""
        is_reader, flushed = self._core.both_list(CALL_CONTEXT), list[Action]()
        for kept in self._outbox.take():
            flushed += _sent(kept.data, _later(kept, now) if is_reader else None)
        return [*flushed, *(Deliver(kept.data, _later(kept, now)) for kept in self.inbox.take())]

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
    return replace(metadata, timeout=max(metadata.timeout - round(1000 * (now - kept.at)), 0))
