"""Give events to the handler of one session, and perform its effects.

    Send      to the peer of the session, as an application message; in a shared role to one of its peers
    Multicast likewise to several of them
    Invoke    the business function of that name (`invocations`)
    Request   more items of a function that streams
    Cancel    stops a function
    Emit      gives an item to the local caller of a stream
    Return    answers the local caller
    SetTimer  on the host's clock
    Persist   in the session store
    End       ends the session
    Audit     in the log of this module, already escaped

A shared session is kept on disk (`room_file`): after each event, after its `Persist` and `SetTimer`, and before all effects that
others see. So nothing that they were told is lost when this process is killed.

All methods that give events are called from one task, the task of the connection, one at a time. A timer and a function's answer
are posted to that task.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from treaty_anp.call_metadata import CallMetadata
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
    Failure,
    Invoke,
    Multicast,
    Opened,
    PeerJoined,
    PeerLost,
    Persist,
    Received,
    Renegotiated,
    Request,
    Requested,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
)
from treaty_io.alarm import Alarm
from treaty_io.awake_timeout import AwakeTimeout
from treaty_io.codes import SandboxCode, SessionCode
from treaty_io.identity import PeerIdentity, ProvedPeer
from treaty_io.line_limit import limited_logger
from treaty_sandbox.in_process import LocalSession
from treaty_sandbox.interface import RunningHandler
from treaty_sandbox.kept_session import KeptSession
from treaty_sandbox.validation import MAX_SECONDS

from .handler_context import HandlerContext, HandlerPort
from .handler_state import HandlerState
from .invocations import LOCAL_FAULTS, Invocations, event_time
from .operations import OperationHandlers
from .room_file import RoomFile

ATTEMPTS = 2
"""Times that an event which cannot be refused waits for a worker. Then the session ends."""
_log = limited_logger(__name__)


class _Cause(msgspec.Struct, frozen=True):
    """The call of the local application, or the message of the peer, that led to an event.

    `silence`: the status that a handler returns at this event for a call that nobody answered; None where the peer may have.
    `early`, `operation`: of the call. `sent`: the metadata of the call, for the messages that follow from it. `received`: the
    metadata of the message, for the functions that follow from it.
    """

    early: bool = False
    operation: str = ""
    sent: CallMetadata | None = None
    received: CallMetadata | None = None
    silence: int | None = None


_NO_CAUSE = _Cause()
# At these events no message of the peer is read, so the failure is this side's own word, not an answer.
_LATE, _LEFT = _Cause(silence=504), _Cause(silence=503)


class HandlerHost:
    """The host of one handler. Implements `HostedHandler`. Always call `close`."""

    def __init__(
        self,
        handler: RunningHandler,
        context: HandlerContext,
        functions: OperationHandlers,
        store: HandlerState,
        port: HandlerPort,
        room: RoomFile | None = None,
    ) -> None:
        """`room`: of a shared session, which the caller has taken up and releases."""
        self.role = context.role
        self.is_open = False
        self._handler, self._context, self._store = handler, context, store
        self._port, self._room = port, room
        # The functions of a former process that have no `Result` yet.
        self._orphans: frozenset[str] = frozenset()
        # The times of timers in milliseconds since 1970, as the room has them: one that is not set again changes nothing in it.
        self._walls: dict[float, int] = {}
        # One alarm for all timers, made for the first: so they keep their order after a pause of this process.
        self._timers: dict[str, float] = {}
        self._alarm: Alarm | None = None
        self._due_at = math.inf
        self._functions = functions
        # Made at the first `Invoke`: a handler that only calls the other side has none.
        self._invocations: Invocations | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        # The messages of a handler that has retired; None before.
        self._last: list[tuple[Send, _Cause]] | None = None
        context.activity.sessions[context.is_initiator] += 1

    @property
    def is_readable(self) -> bool:
        return True  # the functions of further messages wait for their turn

    def is_working(self, *, streams: bool) -> bool:
        return self.working(streams=streams) > 0

    def working(self, *, streams: bool, peer: PeerIdentity | None = None) -> int:
        """Return the number of functions that run, or wait to run. `streams`: those of streams count, as far as they need no
        message of the peer. `peer`: only those that messages of this peer led to."""
        return self._invocations.working(streams=streams, peer=peer) if self._invocations is not None else 0

    async def open(self) -> None:
        """Give the first event, or go on with a session of a former process. Raises `TreatyError`."""
        if self._room is not None and self._room.kept is not None:
            await self._go_on(self._room.kept)
            self.is_open = True
            return
        stored, is_proved = await self._store.load(), isinstance(self._context.peer, ProvedPeer)
        await self._give(Opened(stored=stored, parameters=dict(self._context.parameters), is_proved=is_proved, at=event_time()))
        self.is_open = True

    async def renegotiated(self, parameters: Mapping[str, Any]) -> None:
        """Report other parameters. Raises `TreatyError`."""
        # The rules would not deliver it, but the session might get a worker for it.
        if self._context.interface >= 4:
            await self._give(Renegotiated(parameters=dict(parameters), at=event_time()))

    async def joined(self, peer: PeerIdentity, role: str) -> None:
        """Report a new peer of a shared role. Raises `TreatyError`."""
        await self._give(PeerJoined(peer=peer.did, role=role, is_proved=isinstance(peer, ProvedPeer), at=event_time()))

    async def received(self, payload: bytes, *, stream: str = "", metadata: CallMetadata | None = None, peer: str = "") -> None:
        """Give a message of the peer. `stream`: its action, where messages have one. `metadata`: of the call that the message
        belongs to. `peer`: in a shared role, the one that sent it. Raises `TreatyError`."""
        event = Received(peer=peer or self._context.peer.did, data=payload, stream=stream, at=event_time())
        await self._give(event, _Cause(received=metadata))

    async def call(
        self, call: str, operation: str, arguments: dict[str, Any], *, early: bool, metadata: CallMetadata | None = None
    ) -> None:
        """Give a call of the local application. `early`: resulting messages may be sent before the hash is confirmed.
        `metadata`: sent with them. A fault of the caller answers the call. Raises `TreatyError` for other errors."""
        try:
            event = Call(call=call, operation=operation, arguments=arguments, at=event_time())
            await self._give(event, _Cause(early, operation, sent=metadata))
        except TreatyError as error:
            # Not delivered for want of room: the call was not begun either.
            if error.code not in LOCAL_FAULTS and error.code != SessionCode.BUSY:
                raise
            self._port.answer(call, error)

    async def requested(self, call: str, operation: str, count: int, *, early: bool) -> None:
        """Report that the local application takes more items of a stream. `early`: as in `call`. Raises `TreatyError`."""
        await self._give(Requested(call=call, count=count, at=event_time()), _Cause(early, operation))

    async def cancelled(self, call: str, operation: str, *, early: bool) -> None:
        """Report that the local application gave a call up. `early`: as in `call`. Raises `TreatyError`."""
        # The rules would not deliver it, but the session might get a worker for it.
        if self._context.interface >= 2:
            await self._give(Cancelled(call=call, at=event_time()), _Cause(early, operation))

    async def peer_lost(self, peer: str = "") -> None:
        """Report the loss of the connection. `peer`: in a shared role, the one that left. Raises `TreatyError`."""
        await self._give(PeerLost(peer=peer or self._context.peer.did, at=event_time()), _LEFT)

    async def say_goodbye(self) -> None:
        """Report that this side ends the session, or send the last messages of a retired handler. Raises `TreatyError`."""
        await self._give(Close(at=event_time()))
        for effect, cause in self._last or ():
            await self._send(effect, msgspec.structs.replace(cause, early=False))

    async def retire(self) -> None:
        """Report the end of the session, which stays open without the handler. Later events have no effect. The handler's last
        messages wait for `say_goodbye`: the peer might end the session at them."""
        self._last = []
        # The application has left, so an error of the handler changes nothing.
        with suppress(TreatyError):
            await self._give(Close(at=event_time()))
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
        if self._alarm is not None:
            self._alarm.cancel()
        if self._invocations is None or not self._invocations.is_running:
            await self._handler.close()
        else:
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
        if self._room is not None:
            effects = await self._kept(self._room, event, effects)
        # In order: `Persist` is durable before a later `Send` leaves.
        for effect in effects:
            await self._do(effect, cause or _NO_CAUSE)

    async def _go_on(self, kept: KeptSession) -> None:
        """Tell the handler that the members, functions and calls of a former process are gone. Its timers go on."""
        now, wall = asyncio.get_running_loop().time(), event_time()
        for name, due in kept.timers.items():
            # The clock may have been set back meanwhile: no handler waits for longer than it may ask for.
            left = min(max(due - wall, 0) / 1000, MAX_SECONDS)
            self._walls[now + left] = due
            self._ring_for(name, now + left)
        self._orphans = frozenset(kept.invokes)
        for peer in kept.peers:
            await self.peer_lost(peer)
        gone = Failure(code=503, message="The agent was restarted. It is unknown whether the function was done.")
        for call in kept.invokes:
            if call in self._orphans:  # else the handler has cancelled it
                self._orphans -= {call}
                await self._give(Result(call=call, error=gone, at=event_time()))
        for call in kept.calls:
            await self._give(Cancelled(call=call, at=event_time()))

    async def _kept(self, room: RoomFile, event: Event, effects: Sequence[Effect]) -> list[Effect]:
        """Perform the effects that belong to the state, and keep the session. Return the effects that are left."""
        for effect in effects:
            if isinstance(effect, Persist | SetTimer):
                await self._do(effect, _NO_CAUSE)
        kept = self._handler.kept
        if kept is not None:
            await room.write(msgspec.structs.replace(kept, timers=self._wall_times()))
        else:
            # An older session would come back after a restart, without the things that members were told since.
            room.remove()
            if not isinstance(event, Close) and not any(isinstance(effect, End) for effect in effects):
                _log.warning("The session of %s has no snapshot within the cap. It ends with this process", self.role.name)
        return [effect for effect in effects if not isinstance(effect, Persist | SetTimer)]

    def _wall_times(self) -> dict[str, int]:
        now, wall = asyncio.get_running_loop().time(), event_time()
        self._walls = {due: self._walls.get(due) or wall + round(1000 * (due - now)) for due in self._timers.values()}
        return {name: self._walls[due] for name, due in self._timers.items()}

    async def _handle(self, event: Event) -> Sequence[Effect]:
        if isinstance(self._handler, LocalSession):
            return await self._handler.handle(event)  # it never waits, so nothing could interrupt it
        try:
            # A handler that hangs ends its own session, not the agent.
            async with AwakeTimeout(self._context.handler_time):
                return await self._handler.handle(event)
        except TimeoutError as error:
            raise Unavailable(SandboxCode.LIMIT, "The protocol's handler did not answer in time.") from error

    async def _do(self, effect: Effect, cause: _Cause) -> None:
        match effect:
            case Send() if self._last is not None:
                self._last.append((effect, cause))
            case Send():
                await self._send(effect, cause)
            case Multicast(peers=peers, data=data, stream=stream):
                for peer in peers:
                    await self._do(Send(peer=peer, data=data, stream=stream), cause)
            case Invoke():
                self._invocations = self._invocations or Invocations(self._functions, self._context, self._port, self._give)
                # A handler does no I/O, so the functions that it invokes at a message belong to that message.
                self._invocations.begin(effect, self.role.invokes[effect.operation], self._port.origin(), cause.received)
            case Request(call=call) if call in self._orphans:
                pass  # its `Result` follows
            case Cancel(call=call) if call in self._orphans:
                self._orphans -= {call}
            case Request() if self._invocations is not None:
                self._invocations.request(effect)
            case Cancel() if self._invocations is not None:
                self._invocations.cancel(effect)
            case Emit():
                self._port.item(effect.call, effect.value)
            case Return(error=failure):
                silent = failure is not None and failure.code == cause.silence
                self._port.answer(effect.call, effect, silent=silent)
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
        if self._context.send_to is not None:
            await self._context.send_to(effect, cause.operation, cause.sent)
        elif self._context.send_named is not None:
            await self._context.send_named(effect.data, effect.stream or cause.operation, cause.sent)
        elif effect.stream:
            raise Refused(SessionCode.PROFILE, "This handler uses several streams, but a connection has only one.")
        else:
            await self._port.send(effect.data, early=cause.early, metadata=cause.sent)

    def _set_timer(self, effect: SetTimer) -> None:
        if effect.seconds is None:
            self._timers.pop(effect.name, None)
            return
        self._ring_for(effect.name, asyncio.get_running_loop().time() + effect.seconds)

    def _ring_for(self, name: str, due: float) -> None:
        self._timers[name] = due
        # A timer that was cancelled or put off rings in vain. To look for the first here would cost each `SetTimer` all timers.
        if due < self._due_at:
            self._ring_at(due)

    def _ring_at(self, due: float) -> None:
        self._alarm, self._due_at = self._alarm or Alarm(self._ring, self._port.timer), due
        self._alarm.set(due)

    def _ring(self) -> None:
        # The alarm may ring a little early.
        now = max(self._due_at, asyncio.get_running_loop().time())
        for due, name in sorted((due, name) for name, due in self._timers.items() if due <= now):
            self._port.post(partial(self._expire, name, due))
        self._ring_at(min((due for due in self._timers.values() if due > now), default=math.inf))

    async def _expire(self, name: str, due: float) -> None:
        if self._timers.get(name) == due:  # else it was replaced or cancelled after it expired
            del self._timers[name]
            await self._give(Timer(name=name, at=event_time()), _LATE)


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

    async def renegotiated(self, parameters: Mapping[str, Any]) -> None:
        """Note the parameters that are agreed on now."""

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
