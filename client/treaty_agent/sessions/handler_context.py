"""Define what a handler's host and its functions know of their session: the peer, the role, the limits and the way out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from treaty_anp.call_metadata import CallMetadata
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import Role
from treaty_handler import INTERFACE, Return, Send, Value
from treaty_io.identity import PeerIdentity
from treaty_io.shared_timer import SharedTimer

from .activity import Activity
from .call_context import CallOrigin
from .interfaces import Capacity, Step
from .middleware import CallPipeline
from .operation_errors import OnFault

OnServed: TypeAlias = Callable[[float, bool], None]
"""Take the seconds until a business function answered, and whether it succeeded."""


class HandlerPort(Protocol):
    """The functions that a handler's host uses from its session. `timer`: of the session's deadlines."""

    timer: SharedTimer

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

    def answer(self, call: str, outcome: Return | TreatyError, *, silent: bool = False) -> None:
        """Report the outcome of a call of the local application. `silent`: the handler failed it because nobody answered."""

    def served_call(self) -> None:
        """Note that a call of the peer was served. Only called where this side began the session: it proposes the report."""

    async def end(self, error: TreatyError | None) -> None:
        """End the session."""


SendNamed: TypeAlias = Callable[[bytes, str, CallMetadata | None], Awaitable[None]]
"""Send an application message with an action, and the metadata of the call that led to it."""

SendTo: TypeAlias = Callable[[Send, str, CallMetadata | None], Awaitable[None]]
"""Send an application message to one peer of a shared session. The operation and the metadata are those of the call that led to
it."""


class HandlerContext(msgspec.Struct, frozen=True):
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
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    send_named: SendNamed | None = None
    on_served: OnServed | None = None
    interface: int = INTERFACE
    is_initiator: bool = False
    capacity: Capacity = msgspec.field(default_factory=Capacity)
    activity: Activity = msgspec.field(default_factory=Activity)
    pipeline: CallPipeline = msgspec.field(default_factory=CallPipeline)
    on_fault: OnFault | None = None
    send_to: SendTo | None = None
