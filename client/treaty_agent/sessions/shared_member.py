"""The part of one connection in a shared session (`shared_handler`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from treaty_anp.call_metadata import CallMetadata
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler import Role
from treaty_handler import Send
from treaty_io.codes import SessionCode
from treaty_io.identity import ClaimedPeer, PeerIdentity, ProvedPeer

from .handler_port import HandlerPort, SendNamed


class SharedMember(NamedTuple):
    """A member of a shared session. `peer`: a `ProvedPeer` if it proved its DID. `role`: its role."""

    peer: ProvedPeer | ClaimedPeer
    role: str


class Membership(Protocol):
    """The functions that a member uses from its shared session. `role`: this side's."""

    role: Role

    async def join(self, member: MemberHandler) -> None:
        """Add a member, and return when the handler knows it. Raises `TreatyError`; then it is no member."""

    async def received(self, member: MemberHandler, payload: bytes, stream: str, metadata: CallMetadata | None) -> None:
        """Give a message of a member to the handler. Raises `TreatyError` for a message that it did not get."""

    def is_readable_for(self, member: MemberHandler) -> bool:
        """Return whether there is room for the functions of another message of a member."""

    def working_for(self, member: MemberHandler, *, streams: bool) -> int:
        """Return the number of functions that messages of a member led to. `streams`: as in `HostedHandler.is_working`."""

    def leave(self, member: MemberHandler) -> None:
        """Remove a member; safe to repeat. The handler is told after all earlier events."""


class MemberHandler:
    """The part of one connection in a shared session. Implements `HostedHandler`. It never gives effects of its own.

    `port`: the connection's session. `described`: the member; known when it joins.
    """

    def __init__(
        self,
        shared: Membership,
        port: HandlerPort,
        peer: PeerIdentity,
        role: str,
        *,
        send_named: SendNamed | None,
        ended: Callable[[], None],
    ) -> None:
        """Join nothing yet. `role`: the peer's. `send_named`: as in `HandlerContext`. `ended`: called once, at the end."""
        self.role, self.port = shared.role, port
        self.is_open = False
        self.described = SharedMember(peer, role)
        self.place = ""
        self._shared, self._send_named, self._ended = shared, send_named, ended
        self._waiting: asyncio.Future[None] | None = None
        self._is_closed = self._is_awaited = self._is_held = False

    @property
    def is_readable(self) -> bool:
        # The connection reads on when there is room, so it is told.
        self._is_held = not self._shared.is_readable_for(self)
        return not self._is_held

    @property
    def did(self) -> str:
        """The member's DID, which is unique in the session."""
        return self.described.peer.did

    @property
    def backlog(self) -> int:
        """The bytes that wait to be sent to the member."""
        return self.port.backlog

    def is_working(self, *, streams: bool) -> bool:
        # The connection may end when this is over, so it is told.
        self._is_awaited = self._shared.working_for(self, streams=streams) > 0
        return self._is_awaited

    async def open(self) -> None:
        """Join. Raises `TreatyError`."""
        self.described = self.described._replace(peer=self.port.origin().peer)
        await self._shared.join(self)
        self.is_open = True

    async def received(self, payload: bytes, *, stream: str = "", metadata: CallMetadata | None = None) -> None:
        await self._shared.received(self, payload, stream, metadata)

    async def call(
        self, call: str, operation: str, arguments: dict[str, Any], *, early: bool, metadata: CallMetadata | None = None
    ) -> None:
        """Refuse the call: the session is not this connection's alone."""
        fault = Refused(
            SessionCode.OPERATION,
            f"The role {self.role.name} is shared, so a call goes to its one session.",
            fix=f"Call it there: await agent.shared(URI).call({operation!r}, …).",
        )
        self.port.answer(call, fault)

    async def requested(self, call: str, operation: str, count: int, *, early: bool) -> None:
        pass

    async def cancelled(self, call: str, operation: str, *, early: bool) -> None:
        pass

    async def peer_lost(self) -> None:
        self._shared.leave(self)

    async def say_goodbye(self) -> None:
        self._shared.leave(self)

    async def retire(self) -> None:
        self._shared.leave(self)

    async def close(self) -> None:
        self._shared.leave(self)
        if not self._is_closed:
            self._is_closed = True
            self._ended()

    # Called by the shared session

    async def send(self, effect: Send, operation: str, metadata: CallMetadata | None) -> None:
        """Queue a message to the peer. Raises `TreatyError`, such as `session.slow-peer`."""
        if self._send_named is not None:
            await self._send_named(effect.data, effect.stream or operation, metadata)
        elif effect.stream:
            raise Refused(SessionCode.STREAM, "This handler uses several streams, but a connection has only one.")
        else:
            await self.port.send(effect.data, early=False, metadata=metadata)

    def begin(self) -> asyncio.Future[None]:
        """Return the future of an event of this member. There is one at a time: the connection waits for it."""
        self._waiting = asyncio.get_running_loop().create_future()
        return self._waiting

    def settle(self, error: TreatyError | None) -> None:
        """End the wait for an event that will not be given."""
        if self._waiting is not None and not self._waiting.done():
            if error is None:
                self._waiting.set_result(None)
            else:
                self._waiting.set_exception(error)

    def fail(self, error: TreatyError) -> None:
        """End the connection's session by an error."""

        async def step() -> None:
            raise error

        self.port.post(step)

    def note_step(self) -> None:
        """Let the connection decide again whether it may read or end, if it waits for that."""
        # A stream may go on: the connection knows how long it waits for one.
        may_end = self._is_awaited and not self._shared.working_for(self, streams=False)
        if may_end or (self._is_held and self._shared.is_readable_for(self)):
            self._is_awaited = self._is_held = False
            self.port.post(_nothing)


async def _nothing() -> None:
    """Do nothing; after this step the connection decides again."""
