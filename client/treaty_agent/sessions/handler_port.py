"""The interface of a session to the host of its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from treaty_anp.call_metadata import CallMetadata
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import Role
from treaty_handler import INTERFACE, Return, Send, Value
from treaty_io.identity import PeerIdentity

from .activity import Activity
from .call_context import CallOrigin
from .interfaces import Capacity, Step
from .invocations import OnServed
from .middleware import CallPipeline
from .operation_errors import OnFault


class HandlerPort(Protocol):
    """The functions that a handler's host uses from its session."""

    @property
    def backlog(self) -> int:
        """The bytes that wait to be sent to the peer."""

    def post(self, step: Step) -> None:
        """Run a step in the connection's task, after all earlier steps."""

    def origin(self) -> CallOrigin:
        """Return what the calls of the session have in common."""

    async def send(self, payload: bytes, *, early: bool, metadata: CallMetadata | None = None) -> None:
        """Send an application message. `metadata`: those of the call that led to it."""

    async def wait_writable(self) -> None:
        """Wait until there is room for another message to the peer."""

    def item(self, call: str, value: Value) -> None:
        """Give the local application an item of a stream."""

    def answer(self, call: str, outcome: Return | TreatyError) -> None:
        """Report the outcome of a call of the local application."""

    async def end(self, error: TreatyError | None) -> None:
        """End the session."""


SendNamed: TypeAlias = Callable[[bytes, str, CallMetadata | None], Awaitable[None]]
"""Send an application message with an action, and the metadata of the call that led to it."""

SendTo: TypeAlias = Callable[[Send, str, CallMetadata | None], Awaitable[None]]
"""Send an application message to one peer of a shared session. The operation and the metadata are those of the call that led to
it."""


class HostedHandler(Protocol):
    """The handler of a session, as its connection uses it: a `HandlerHost`, or a `MemberHandler` in a shared role.

    `is_open`: whether the handler has begun. Methods that give an event raise `TreatyError`, and end the session by it.
    """

    role: Role
    is_open: bool

    def is_working(self, *, streams: bool) -> bool:
        """Return whether a function runs, or waits to run. `streams`: those of streams count, as far as they need no message of
        the peer."""

    @property
    def is_readable(self) -> bool:
        """Whether the next message of the peer may be read."""

    async def open(self) -> None:
        """Begin."""

    async def received(self, payload: bytes, *, stream: str = "", metadata: CallMetadata | None = None) -> None:
        """Take a message of the peer. `stream`: its action, where messages have one. `metadata`: of its call."""

    async def call(
        self, call: str, operation: str, arguments: dict[str, Any], *, early: bool, metadata: CallMetadata | None = None
    ) -> None:
        """Take a call of the local application. `early`: resulting messages may be sent before the hash is confirmed."""

    async def requested(self, call: str, operation: str, count: int, *, early: bool) -> None:
        """Note that the local application takes more items of a stream."""

    async def cancelled(self, call: str, operation: str, *, early: bool) -> None:
        """Note that the local application gave a call up."""

    async def peer_lost(self) -> None:
        """Note the loss of the connection."""

    async def say_goodbye(self) -> None:
        """Note that this side ends the session."""

    async def retire(self) -> None:
        """End the session for its application; it stays open without the handler. Raises nothing."""

    async def close(self) -> None:
        """Release everything, in bounded time. Safe to repeat."""


@dataclass(frozen=True)
class HandlerContext:
    """The peer, the role and the limits of one handler.

    `handler_time`: seconds that the handler may take for one event.
    `parameters`: the agreed parameters, for its `Opened`.
    `send_named`, `on_served`: as in `HostRequest`. `send_to`: send to the peers of a shared role.
    `interface`: the handler's version of the interface.
    `pipeline`: the middleware around each function.
    `on_fault`: called for each failure of a business function that its operator should know.
    `capacity`: how much the functions of the session may do.
    `activity`: the counts of the agent.
    """

    peer: PeerIdentity
    role: Role
    handler_time: float
    parameters: Mapping[str, Any] = field(default_factory=dict)
    send_named: SendNamed | None = None
    on_served: OnServed | None = None
    interface: int = INTERFACE
    is_initiator: bool = False
    capacity: Capacity = field(default_factory=Capacity)
    activity: Activity = field(default_factory=Activity)
    pipeline: CallPipeline = field(default_factory=CallPipeline)
    on_fault: OnFault | None = None
    send_to: SendTo | None = None
