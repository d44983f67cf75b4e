"""The application messages of a Hello session (PT=01): early data, and messages that wait until the session runs.

Messages of both directions keep their order. Those of the peer that come before the session runs here are delivered when it does.
Early data are the frames that an initiator sends right behind its Hello because of an offered hash.
"""

from __future__ import annotations

from collections.abc import Callable

from treaty_consensus.errors import Refused, TooLarge

from ...codes import FrameCode, SessionCode
from .. import frame
from ..frame import ProtocolType
from .actions import Action, Deliver, SendBinary
from .core import Core
from .generation import Generation
from .states import Event, HelloState


class MessageQueue:
    """Application messages that wait until the session runs. Bounded, as the peer decides how many there are."""

    def __init__(self, *, frames: int, size: int) -> None:
        self._max_frames, self._max_size = frames, size
        self._messages: list[bytes] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        """Whether one more is too many. The message that fills the queue may go beyond its bytes."""
        return len(self._messages) >= self._max_frames or self.size >= self._max_size

    def enqueue(self, message: bytes) -> None:
        """Keep one more; check `is_full` first."""
        self._messages.append(message)
        self.size += len(message)

    def take(self) -> list[bytes]:
        """Remove and return all messages, in their order."""
        messages, self._messages, self.size = self._messages, [], 0
        return messages


class ApplicationMessages:
    """The application messages of one session. `spoken`: called when the peer sends one that counts. `inbox`: for reading."""

    def __init__(self, core: Core, generation: Generation, *, spoken: Callable[[], None]) -> None:
        limits = core.limits
        self._core, self._generation, self._spoken = core, generation, spoken
        # Two queues, so that a peer that sends much cannot take the room of this side's own messages.
        self.inbox = MessageQueue(frames=limits.waiting_frames, size=limits.waiting_bytes)
        self._outbox = MessageQueue(frames=limits.waiting_frames, size=limits.waiting_bytes)
        self._early = 0

    @property
    def is_full(self) -> bool:
        """Whether no further message of the peer can be kept."""
        return self.inbox.is_full

    def send(self, payload: bytes, early: bool, now: float) -> list[Action]:
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
            return [SendBinary(data)]
        offered = core.is_initiator and core.state is HelloState.HELLO and core.own.used_protocol_hash is not None
        # Nothing overtakes a message that waits: the handler of the other side relies on the order.
        if early and offered and not self._outbox and self._early < core.limits.early_frames:
            self._early += 1
            return [SendBinary(data)]
        if self._outbox.is_full:
            return core.end(Event.FAILED, TooLarge(SessionCode.OUTBOX_FULL, "Too much was said before the session was running."))
        self._outbox.enqueue(data)
        return []

    def receive(self, payload: bytes) -> list[Action]:
        """Take a message of the peer. Raises `Refused` (`frame.unexpected`) or `TooLarge` (`session.inbox-full`)."""
        core = self._core
        if self._generation.drops_early_data:
            return []
        self._spoken()
        self._generation.heard_from_peer = True
        if core.state is HelloState.RUNNING and self._generation.own:
            return [Deliver(payload)]
        if core.agreement is None or core.is_natural:
            raise Refused(FrameCode.UNEXPECTED, "An application message came, and no protocol is agreed on.")
        if self.inbox.is_full:
            raise TooLarge(SessionCode.INBOX_FULL, "Too many application messages came before the session was running.")
        self.inbox.enqueue(payload)
        return []

    def flush(self) -> list[Action]:
        """Send and deliver the messages that were kept, as the session runs."""
        return [*map(SendBinary, self._outbox.take()), *map(Deliver, self.inbox.take())]

    def drop_unsent(self) -> None:
        """Drop this side's messages: they were for a protocol that was not confirmed."""
        self._outbox.take()

    def drop(self) -> None:
        """Drop all messages that were kept."""
        self.inbox.take()
        self._outbox.take()
