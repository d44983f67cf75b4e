"""Start the handlers of an agent's sessions: one for each session, or one for all sessions of a shared role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from treaty_consensus.errors import Refused
from treaty_consensus.handler import Role
from treaty_io.codes import SessionCode
from treaty_io.identity import UNNAMED, ClaimedPeer, PeerIdentity, ProvedPeer
from treaty_sandbox.in_process import LocalSession
from treaty_sandbox.interface import Runtime

from .activity import Activity
from .agreements import is_negotiated
from .handler_context import HandlerContext, HandlerPort, OnServed, SendNamed, SendTo
from .handler_host import HandlerHost, HostedHandler
from .handler_state import HandlerState, NullState, SessionStore
from .interfaces import Capacity, SpokenProtocol
from .invocations import MAX_SHARED
from .middleware import CallPipeline
from .operation_errors import FunctionFault
from .operations import Functions, OperationHandlers
from .room_file import RoomFile
from .shared_handler import MemberHandler, SharedHandler, SharedSettings


class ServedRole(Protocol):
    """Find this side's role in a protocol and its functions. `request`: the use of the handler."""

    def __call__(self, protocol: SpokenProtocol, request: HostRequest) -> tuple[Role, OperationHandlers]:
        """Return the role and the functions. Raises `Refused` (`session.role`) or `NotFound` (`agent.function`)."""


class HostRequest(msgspec.Struct, frozen=True):
    """Describe the use of a new handler.

    `role`: the name of the role, or "" for the only one of this side. `peer_role`: the one that the peer says it has, or "".
    `serving`: the functions of this session alone, or None for those that the agent provides.
    `parameters`: the agreed parameters.
    `answers`: replace the business functions of a handler under test, which stores nothing.
    `send_named`: send messages with an action: the stream that the handler names, else the operation that it was called for.
    `on_served`: called after each business function.
    """

    peer: PeerIdentity
    is_initiator: bool
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    role: str = ""
    peer_role: str = ""
    serving: Functions | None = None
    answers: OperationHandlers | None = None
    send_named: SendNamed | None = None
    on_served: OnServed | None = None


RESPONDER = HostRequest(UNNAMED, False)
"""A session that another agent opens, before that agent is known."""


class HandlerHosts:
    """Start the handlers of an agent's sessions in a runtime, with their state below `home`. For one event loop."""

    def __init__(
        self,
        local: str,
        home: Path,
        runtime: Runtime,
        served: ServedRole,
        *,
        handler_time: float = 10.0,
        worker_wait: float = 0.0,
        capacity: Capacity | None = None,
        activity: Activity | None = None,
        pipeline: CallPipeline | None = None,
        on_fault: Callable[[SpokenProtocol, HostRequest, FunctionFault], None] | None = None,
    ) -> None:
        """Start no handler yet. `handler_time`, `capacity`, `activity`, `pipeline`, `on_fault`: as in `HandlerContext`.
        `worker_wait`: seconds that an event of a handler with code may wait for a worker before."""
        self._local, self._home, self._runtime, self._served = local, home, runtime, served
        self._handler_time, self._worker_wait = handler_time, worker_wait
        self._capacity, self.activity = capacity or Capacity(), activity or Activity()
        self.pipeline, self._on_fault = pipeline or CallPipeline(), on_fault
        self._shared: dict[tuple[str, str], SharedHandler] = {}
        # Those that take no further members wait here for their end.
        self._open: set[SharedHandler] = set()

    async def host(self, port: HandlerPort, protocol: SpokenProtocol, request: HostRequest) -> HostedHandler:
        """Return a handler for a session, before its first event; in a shared role, a part in the one for all sessions. Raises
        `TreatyError`."""
        role, functions = self._served(protocol, request)
        if not role.is_shared:
            return await self._start(port, protocol, role, functions, request)
        if request.is_initiator or request.answers is not None or is_negotiated(protocol):
            raise Refused(
                SessionCode.ROLE,
                f"The role {role.name} is shared: one session for all agents that connect, of a published protocol alone.",
                fix="Provide the role, and let the other agents connect.",
            )
        peer_role = request.peer_role or role.peer
        shared = self.shared(protocol, role)
        self.activity.sessions[False] += 1

        def ended() -> None:
            self.activity.sessions[False] -= 1

        return MemberHandler(shared, port, request.peer, peer_role, send_named=request.send_named, ended=ended)

    def shared(self, protocol: SpokenProtocol, role: Role) -> SharedHandler:
        """Return the session of a shared role; a new one begins if there is none."""
        key, digest, room = (protocol.uri, role.name), protocol.package.digest, self._room(protocol, role)
        shared = self._shared.get(key)
        if shared is not None and shared.settings.digest == digest:
            return shared
        if shared is not None:
            shared.outdate()  # another handler was verified since

        async def start(port: HandlerPort, send_to: SendTo) -> HandlerHost:
            request = HostRequest(UNNAMED, False, role=role.name)
            _, functions = self._served(protocol, request)
            return await self._start(port, protocol, role, functions, request, send_to, room)

        def ended(ended: SharedHandler) -> None:
            self._open.discard(ended)
            if self._shared.get(key) is ended:
                del self._shared[key]

        settings = SharedSettings(protocol.uri, role, digest, room, self._capacity, self.pipeline, start)
        shared = self._shared[key] = SharedHandler(settings, ended)
        self._open.add(shared)
        return shared

    async def reopen(self, protocol: SpokenProtocol) -> None:
        """Go on with the shared session that a former process of this home kept, if there is one. Raises `TreatyError`."""
        role, _ = self._served(protocol, RESPONDER)
        if role.is_shared and self._room(protocol, role).exists:
            await self.shared(protocol, role).begun()

    def outdate(self, uri: str) -> None:
        """End the shared sessions of a protocol when their last members have left."""
        for shared in list(self._open):
            if shared.settings.protocol == uri:
                shared.outdate()

    async def end(self, uri: str) -> None:
        """End the shared sessions of a protocol. Never raises."""
        await asyncio.gather(*(shared.close(rests=False) for shared in list(self._open) if shared.settings.protocol == uri))

    async def close(self) -> None:
        """End the work of the agent. Shared sessions that are kept rest, the others end. Never raises."""
        await asyncio.gather(*(shared.close(rests=True) for shared in list(self._open)))

    def _room(self, protocol: SpokenProtocol, role: Role) -> RoomFile:
        return RoomFile(self._home, protocol.uri, role.name, self._local, protocol.package.digest)

    async def _start(
        self,
        port: HandlerPort,
        protocol: SpokenProtocol,
        role: Role,
        functions: OperationHandlers,
        request: HostRequest,
        send_to: SendTo | None = None,
        room: RoomFile | None = None,
    ) -> HandlerHost:
        kept = room.kept if room is not None else None
        handler = await self._runtime.open(protocol.package, role.name, local=self._local, peer=request.peer.did, kept=kept)
        context = HandlerContext(
            request.peer,
            role,
            self._handler_time if protocol.package.is_declarative else self._handler_time + self._worker_wait,
            request.parameters,
            request.send_named,
            request.on_served,
            protocol.package.manifest.interface,
            request.is_initiator,
            # `SharedHandler` bounds the functions of each member.
            self._capacity if send_to is None else replace(self._capacity, functions=MAX_SHARED),
            # The members of a shared session are counted, each as one.
            self.activity if send_to is None else Activity(functions=self.activity.functions),
            # A handler under test runs no function of the application, and its test cases are no calls.
            self.pipeline if request.answers is None else CallPipeline(),
            partial(self._on_fault, protocol, request) if self._on_fault and request.answers is None else None,
            send_to,
        )
        if request.answers is not None:
            return HandlerHost(handler, context, request.answers, NullState(), port)
        if protocol.package.is_declarative and isinstance(handler, LocalSession):
            return HandlerHost(handler, context, functions, NullState(), port)  # forms keep nothing
        store = self._state(protocol, role, request, is_shared=send_to is not None)
        return HandlerHost(handler, context, functions, store, port, room)

    async def carry(self, previous: SpokenProtocol, protocol: SpokenProtocol, request: HostRequest) -> None:
        """Copy the stored state of a former handler for the new one, which fits the peer's role. Of a key that both have, the
        former handler's value is newer and replaces the other; other values of the new one stay. The former handler is closed
        already. Raises `TreatyError`."""
        stores = []
        for spoken in (previous, protocol):
            role, _ = self._served(spoken, msgspec.structs.replace(request, peer_role=""))
            stores.append(self._state(spoken, role, request))
        states, own = [await store.load() for store in stores]
        # A crash in between leaves some of the values, whole ones; the next change of the protocol copies the rest.
        for key, value in states.items():
            if own.get(key) != value:
                await stores[1].put(key, value)

    def _state(self, protocol: SpokenProtocol, role: Role, request: HostRequest, *, is_shared: bool = False) -> HandlerState:
        names = (self._home, protocol.package.digest, role.name, self._local)
        if is_shared:
            return SessionStore.of_all(*names)
        match request.peer:
            case ProvedPeer() as peer:
                return SessionStore.of_proved(*names, peer)
            case ClaimedPeer(did=""):
                return NullState()  # peers that do not name themselves must not see each other's state
            case ClaimedPeer() as peer:
                return SessionStore.of_claimed(*names, peer)
