"""Give events to the handler of one session, and perform its effects.

    Send      to the peer of the session, as an application message
    Invoke    the business function of that name (`invocations`)
    Request   more items of a function that streams
    Cancel    stops a function
    Emit      gives an item to the local caller of a stream
    Return    answers the local caller
    SetTimer  on the host's clock
    Persist   in the session store
    End       ends the session
    Audit     in the log of this module, already escaped

All methods that give events are called from one task, the task of the connection, one at a time. A timer and a function's answer
are posted to that task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.handler import Role
from treaty_handler import (
    Audit,
    Call,
    Cancel,
    Cancelled,
    Close,
    Effect,
    Emit,
    End,
    Event,
    Invoke,
    Opened,
    PeerLost,
    Persist,
    Received,
    Request,
    Requested,
    Return,
    Send,
    SetTimer,
    Timer,
)

from ..anp.call_metadata import CallMetadata
from ..codes import SessionCode
from ..sandbox.interface import RunningHandler, Runtime
from .activity import Activity
from .handler_port import HandlerContext, HandlerPort, SendNamed
from .handler_state import HandlerState, NullState, SessionStore
from .interfaces import Capacity, SpokenProtocol
from .invocations import LOCAL_FAULTS, InvocationPort, Invocations, OnServed
from .middleware import CallPipeline
from .operation_errors import FunctionFailures, FunctionFault
from .operations import Functions, OperationHandlers

ATTEMPTS = 2
"""Times that an event which cannot be refused waits for a worker. Then the session ends."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Cause:
    """The call of the local application, or the message of the peer, that led to an event.

    `early`, `operation`: of the call. `sent`: the metadata of the call, for the messages that follow from it. `received`: the
    metadata of the message, for the functions that follow from it.
    """

    early: bool = False
    operation: str = ""
    sent: CallMetadata | None = None
    received: CallMetadata | None = None


_NO_CAUSE = _Cause()


class HandlerHost:
    """The host of one handler. Always call `close`."""

    def __init__(
        self,
        handler: RunningHandler,
        context: HandlerContext,
        functions: OperationHandlers,
        store: HandlerState,
        port: HandlerPort,
    ) -> None:
        self.role = context.role
        self.is_open = False
        self._handler, self._context, self._store = handler, context, store
        self._port = port
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._invocations = Invocations(
            functions,
            InvocationPort(
                port.post,
                port.wait_writable,
                self._give,
                _now,
                context.on_served,
                context.capacity,
                context.activity.functions,
                context.pipeline,
                FunctionFailures(context.peer, context.on_fault),
            ),
        )
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        # The messages of a handler that has retired; None before.
        self._last: list[tuple[Send, _Cause]] | None = None
        context.activity.sessions[context.is_initiator] += 1

    def is_working(self, *, streams: bool) -> bool:
        """Return whether a function runs, or waits to run. `streams`: those of streams count, as far as they need no message of
        the peer."""
        return self._invocations.is_working(streams=streams)

    async def open(self) -> None:
        """Give the first event. Raises `TreatyError`."""
        stored = await self._store.load()
        await self._give(Opened(stored=stored, parameters=dict(self._context.parameters), at=_now()))
        self.is_open = True

    async def received(self, payload: bytes, *, stream: str = "", metadata: CallMetadata | None = None) -> None:
        """Give a message of the peer. `stream`: its action, where messages have one. `metadata`: of the call that the message
        belongs to. Raises `TreatyError`."""
        await self._give(Received(peer=self._context.peer, data=payload, stream=stream, at=_now()), _Cause(received=metadata))

    async def call(
        self, call: str, operation: str, arguments: dict[str, Any], *, early: bool, metadata: CallMetadata | None = None
    ) -> None:
        """Give a call of the local application. `early`: resulting messages may be sent before the hash is confirmed.
        `metadata`: sent with them. A fault of the caller answers the call. Raises `TreatyError` for other errors."""
        try:
            event = Call(call=call, operation=operation, arguments=arguments, at=_now())
            await self._give(event, _Cause(early, operation, sent=metadata))
        except TreatyError as error:
            # Not delivered for want of room: the call was not begun either.
            if error.code not in LOCAL_FAULTS and error.code != SessionCode.BUSY:
                raise
            self._port.answer(call, error)

    async def requested(self, call: str, operation: str, count: int, *, early: bool) -> None:
        """Report that the local application takes more items of a stream. `early`: as in `call`. Raises `TreatyError`."""
        await self._give(Requested(call=call, count=count, at=_now()), _Cause(early, operation))

    async def cancelled(self, call: str, operation: str, *, early: bool) -> None:
        """Report that the local application gave a call up. `early`: as in `call`. Raises `TreatyError`."""
        # The rules would not deliver it, but the session might get a worker for it.
        if self._context.interface >= 2:
            await self._give(Cancelled(call=call, at=_now()), _Cause(early, operation))

    async def peer_lost(self) -> None:
        """Report the loss of the connection. Raises `TreatyError`."""
        await self._give(PeerLost(peer=self._context.peer, at=_now()))

    async def say_goodbye(self) -> None:
        """Report that this side ends the session, or send the last messages of a retired handler. Raises `TreatyError`."""
        await self._give(Close(at=_now()))
        for effect, cause in self._last or ():
            await self._send(effect, replace(cause, early=False))

    async def retire(self) -> None:
        """Report the end of the session, which stays open without the handler. Later events have no effect. The handler's last
        messages wait for `say_goodbye`: the peer might end the session at them."""
        self._last = []
        # The application has left, so an error of the handler changes nothing.
        with suppress(TreatyError):
            await self._give(Close(at=_now()))
        self._closed = True

    async def close(self) -> None:
        """Cancel timers and functions, and close the handler, in bounded time. Steps that they posted before have no effect. Safe
        to repeat: every caller waits for the end of the first."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        # Shielded: a retired handler is closed beside the session, whose end cancels that task.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._closed = True
        self._context.activity.sessions[self._context.is_initiator] -= 1
        for timer in self._timers.values():
            timer.cancel()
        await asyncio.gather(self._invocations.close(), self._handler.close())

    async def _give(self, event: Event, cause: _Cause | None = None) -> None:
        if self._closed:
            return
        for last in (False,) * (ATTEMPTS - 1) + (True,):
            try:
                effects = await self._handle(event)
                break
            except Unavailable as error:
                # The event was not delivered. The application's call is refused, which a message of the peer cannot be.
                if error.code != SessionCode.BUSY or isinstance(event, Call) or last:
                    raise
        # In order: `Persist` is durable before a later `Send` leaves.
        for effect in effects:
            await self._do(effect, cause or _NO_CAUSE)

    async def _handle(self, event: Event) -> Sequence[Effect]:
        try:
            # A handler that hangs ends its own session, not the agent.
            async with asyncio.timeout(self._context.handler_time):
                return await self._handler.handle(event)
        except TimeoutError as error:
            raise Unavailable(SessionCode.HANDLER_TIMEOUT, "The protocol's handler did not answer in time.") from error

    async def _do(self, effect: Effect, cause: _Cause) -> None:
        match effect:
            case Send() if self._last is not None:
                self._last.append((effect, cause))
            case Send():
                await self._send(effect, cause)
            case Invoke():
                # A handler does no I/O, so the functions that it invokes at a message belong to that message.
                self._invocations.begin(effect, self.role.invokes[effect.operation], self._port.origin(), cause.received)
            case Request():
                self._invocations.request(effect)
            case Cancel():
                self._invocations.cancel(effect)
            case Emit():
                self._port.item(effect.call, effect.value)
            case Return():
                self._port.answer(effect.call, effect)
            case SetTimer():
                self._set_timer(effect)
            case Persist(key=key, value=value):
                await self._store.put(key, value)
            case End() if self._last is not None:
                pass  # the session ends at the next `say_goodbye`
            case End(status=status):
                failed = Refused(SessionCode.FAILED, "The protocol's handler ended the session as failed.")
                await self._port.end(failed if status == "failed" else None)
            case Audit(text=text):
                _log.info("%s with %s: %s", self.role.name, self._context.peer, text)

    async def _send(self, effect: Send, cause: _Cause) -> None:
        if self._context.send_named is not None:
            await self._context.send_named(effect.data, effect.stream or cause.operation, cause.sent)
        elif effect.stream:
            raise Refused(SessionCode.STREAM, "This handler uses several streams, but a connection has only one.")
        else:
            await self._port.send(effect.data, early=cause.early, metadata=cause.sent)

    def _set_timer(self, effect: SetTimer) -> None:
        before = self._timers.pop(effect.name, None)
        if before is not None:
            before.cancel()
        if effect.seconds is None:
            return
        loop = asyncio.get_running_loop()
        handle: asyncio.TimerHandle = loop.call_later(
            effect.seconds, lambda: self._port.post(partial(self._ring, effect.name, handle))
        )
        self._timers[effect.name] = handle

    async def _ring(self, name: str, handle: asyncio.TimerHandle) -> None:
        if self._timers.get(name) is handle:  # else it was replaced or cancelled after it expired
            del self._timers[name]
            await self._give(Timer(name=name, at=_now()))


class ServedRole(Protocol):
    """Find this side's role in a protocol and its functions. `request`: the use of the handler."""

    def __call__(self, protocol: SpokenProtocol, request: HostRequest) -> tuple[Role, OperationHandlers]:
        """Return the role and the functions. Raises `Refused` (`session.role`) or `NotFound` (`agent.function-missing`)."""


@dataclass(frozen=True)
class HostRequest:
    """Describe the use of a new handler.

    `role`: the name of the role, or "" for the only one of this side. `peer_role`: the one that the peer says it has, or "".
    `serving`: the functions of this session alone, or None for those that the agent provides.
    `parameters`: the agreed parameters.
    `answers`: replace the business functions of a handler under test, which stores nothing.
    `send_named`: send messages with an action: the stream that the handler names, else the operation that it was called for.
    `on_served`: called after each business function.
    """

    peer: str
    is_initiator: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)
    role: str = ""
    peer_role: str = ""
    serving: Functions | None = None
    answers: OperationHandlers | None = None
    send_named: SendNamed | None = None
    on_served: OnServed | None = None


RESPONDER = HostRequest("", False)
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

    async def host(self, port: HandlerPort, protocol: SpokenProtocol, request: HostRequest) -> HandlerHost:
        """Return a handler for a session, before its first event. Raises `TreatyError`."""
        role, functions = self._served(protocol, request)
        handler = await self._runtime.open(protocol.package, role.name, local=self._local, peer=request.peer)
        context = HandlerContext(
            request.peer,
            role,
            self._handler_time if protocol.package.is_declarative else self._handler_time + self._worker_wait,
            request.parameters,
            request.send_named,
            request.on_served,
            protocol.package.manifest.interface,
            request.is_initiator,
            self._capacity,
            self.activity,
            # A handler under test runs no function of the application, and its test cases are no calls.
            self.pipeline if request.answers is None else CallPipeline(),
            partial(self._on_fault, protocol, request) if self._on_fault and request.answers is None else None,
        )
        if request.answers is not None:
            return HandlerHost(handler, context, request.answers, NullState(), port)
        # Peers that do not name themselves must not see each other's state.
        state = self._store(protocol, role, request) if request.peer else NullState()
        return HandlerHost(handler, context, functions, state, port)

    async def carry(self, former: SpokenProtocol, protocol: SpokenProtocol, request: HostRequest) -> None:
        """Copy the stored state of a former handler for the new one, which fits the peer's role. Of a key that both have, the
        former handler's value is newer and replaces the other; other values of the new one stay. The former handler is closed
        already. Raises `TreatyError`."""
        stores = []
        for spoken in (former, protocol):
            role, _ = self._served(spoken, replace(request, peer_role=""))
            stores.append(self._store(spoken, role, request))
        kept, own = [await store.load() for store in stores]
        # A crash in between leaves some of the values, whole ones; the next change of the protocol copies the rest.
        for key, value in kept.items():
            if own.get(key) != value:
                await stores[1].put(key, value)

    def _store(self, protocol: SpokenProtocol, role: Role, request: HostRequest) -> SessionStore:
        return SessionStore(self._home, wheel=protocol.package.digest, role=role.name, local=self._local, peer=request.peer)


def _now() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000
