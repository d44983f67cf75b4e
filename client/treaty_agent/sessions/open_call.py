"""One call that the application made, from its beginning to its answer."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from treaty_anp.trace_context import TraceContext
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import Operation, OperationKind
from treaty_handler import Return, Value
from treaty_io.abandonable import abandonable
from treaty_io.codes import SessionCode
from treaty_io.errors import PeerUnavailable

from ..transport.parting import SessionParting
from .handler_port import HostedHandler
from .operation_errors import OutcomeUnknown, PeerOperationError


@dataclass(eq=False)
class OpenStream:
    """The items of a stream that wait for the application, with the bytes that each holds. `taken`: items that the application
    took since it asked for more last. `has_begun`: an item came."""

    items: deque[tuple[Value, int]] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    window: int = 0
    taken: int = 0
    has_begun: bool = False


@dataclass(eq=False)
class OpenCall:
    """One call.

    `due`: the end of its time.
    `sent_before`: the messages of the connection when the first handler got the call.
    `closed`: the handler has answered it or never had it.
    `left`: the caller does not wait any more.
    """

    number: str
    operation: str
    arguments: dict[str, Any]
    stream: OpenStream | None = None
    kind: OperationKind = OperationKind.REQUEST
    answer: asyncio.Future[Any] = field(default_factory=abandonable)
    had_room: bool = False
    issued: asyncio.Event = field(default_factory=asyncio.Event)
    given_to: HostedHandler | None = None
    sent_before: int | None = None
    early: bool = False
    trace: TraceContext | None = None
    due: float = math.inf
    reported: bool = False
    closed: bool = False
    left: bool = False

    @property
    def declared(self) -> Operation | None:
        """The operation in the manifest, once a handler has the call."""
        return self.given_to.role.calls.get(self.operation) if self.given_to is not None else None

    @property
    def has_begun(self) -> bool:
        """Whether an item came."""
        return self.stream is not None and self.stream.has_begun

    def is_unread(self, error: TreatyError) -> bool:
        """Return whether the peer ended the session before it read a message of this call. `error`: of the end."""
        return isinstance(error, SessionParting) and self.sent_before is not None and self.sent_before >= error.received

    def unknown(self, why: str, peer_code: str = "") -> OutcomeUnknown:
        """Return the error for a call that was sent and gets no answer."""
        error = OutcomeUnknown(self.operation, why, self.declared)
        error.peer_code = peer_code
        return error

    def late(self, seconds: float) -> TreatyError:
        """Return the error for a call that got no answer in time."""
        if self.given_to is not None:
            return self.unknown(f"No answer came within {seconds:.3g} seconds.")
        return PeerUnavailable(
            SessionCode.LATE, f"{self.operation} was not sent within {max(seconds, 0):.3g} seconds.", fix="Call again."
        )

    def timed_out(self, why: str) -> PeerOperationError:
        """Return the error for a call that took longer than the operation's own time."""
        return PeerOperationError(504, why, self.declared)

    def settle(self, outcome: Return | TreatyError) -> None:
        """Set the result. Later ones change nothing."""
        self.issued.set()
        if not self.answer.done():
            if isinstance(outcome, TreatyError):
                self.answer.set_exception(outcome)
            elif outcome.error is None:
                self.answer.set_result(outcome.value)
            else:
                self.answer.set_exception(PeerOperationError(outcome.error.code, outcome.error.message, self.declared))
        if self.stream is not None:
            self.stream.changed.set()

    async def is_ready(self, stream: OpenStream) -> bool:
        """Wait for an item of the stream; return False at its end. Raises the error that ended it."""
        while not stream.items:
            if self.answer.done():
                self.answer.result()
                return False
            stream.changed.clear()
            await stream.changed.wait()
        return True
