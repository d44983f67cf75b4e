"""Give events to the handler of one session, and perform its effects.

    Send      to the peer of the session, as an application message
    Invoke    the business function of that name; its answer returns as `Result`
    Return    answers the local caller
    SetTimer  on the host's clock
    Persist   in the session store
    End       ends the session
    Audit     in the log of this module, already escaped

All methods that give events are called from one task, the task of the connection, one at a time. A timer and a function's answer
are posted to that task.

The state of a handler between sessions is below HOME (docs/specification/home.md):

    HOME/sessions/HEX(SHA-256(JCS([wheel digest, role, local DID, peer DID])))/HEX(key)      the value's bytes

A handler sees only the state of its own earlier sessions in that role, with that peer. The sandbox limits the state of one
session. The caps here limit concurrent sessions and strangers, who may claim any DID in the plain Hello profile. A value is
written durably and as a whole before `put` returns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from treaty_consensus import canonical
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.handler import Operation, Role
from treaty_handler import (
    Audit,
    Call,
    Close,
    Effect,
    End,
    Event,
    Failure,
    Invoke,
    Opened,
    PeerLost,
    Persist,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
)

from .. import durable
from ..codes import OperationCode, SessionCode
from ..sandbox.interface import RunningHandler, Runtime
from ..sandbox.validation import MAX_STORED, MAX_STORED_KEYS
from .interfaces import SpokenProtocol, Step
from .operations import OperationHandlers

MAX_RUNNING = 16
"""Business functions of one session that run at the same time; others wait, so that a peer cannot start any number."""
MAX_FOLDERS = 10_000
"""Pairs of handler and peer with stored state: strangers may claim any number of DIDs."""

_LOCAL_FAULTS = frozenset({OperationCode.ARGUMENTS, OperationCode.RESULT, SessionCode.OPERATION, SessionCode.BUSY})
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class HandlerPort(Protocol):
    """The functions that a handler's host uses from its session."""

    def post(self, step: Step) -> None:
        """Run a step in the connection's task, after all earlier steps."""

    async def send(self, payload: bytes, *, early: bool) -> None:
        """Send an application message."""

    def answer(self, call: str, outcome: Return | TreatyError) -> None:
        """Report the outcome of a call of the local application."""

    async def end(self, error: TreatyError | None) -> None:
        """End the session."""


SendNamed: TypeAlias = Callable[[bytes, str], Awaitable[None]]
"""Send an application message with an action."""
OnServed: TypeAlias = Callable[[float, bool], None]
"""Take the seconds of a business function, and whether it succeeded."""


class HandlerState(Protocol):
    """The storage of a handler; `SessionStore` implements it. Both methods raise `Unavailable` or `Refused`
    (`session.storage…`)."""

    async def load(self) -> dict[str, bytes]:
        """Return all stored values by key."""

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value; None deletes it."""


class NullState:
    """The storage of a handler under test, or with a peer that does not name itself: it stores nothing."""

    async def load(self) -> dict[str, bytes]:
        return {}

    async def put(self, key: str, value: bytes | None) -> None:
        pass


@dataclass(frozen=True)
class HandlerContext:
    """The peer, the role and the limits of one handler.

    `handler_time`: seconds that the handler may take for one event.
    `parameters`: the agreed parameters, for its `Opened`.
    `send_named`, `on_served`: as in `HostRequest`.
    """

    peer: str
    role: Role
    handler_time: float
    parameters: Mapping[str, Any] = field(default_factory=dict)
    send_named: SendNamed | None = None
    on_served: OnServed | None = None


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
        self._handler, self._context, self._functions, self._store = handler, context, functions, store
        self._port = port
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Bounds the functions that one session runs at the same time.
        self._running = asyncio.Semaphore(MAX_RUNNING)
        self._closed = False

    async def open(self) -> None:
        """Give the first event. Raises `TreatyError`."""
        stored = await self._store.load()
        await self._give(Opened(stored=stored, parameters=dict(self._context.parameters), at=_now()))
        self.is_open = True

    async def received(self, payload: bytes, *, stream: str = "") -> None:
        """Give a message of the peer. `stream`: its action, where messages have one. Raises `TreatyError`."""
        await self._give(Received(peer=self._context.peer, data=payload, stream=stream, at=_now()))

    async def call(self, call: str, operation: str, arguments: dict[str, Any], *, early: bool) -> None:
        """Give a call of the local application. `early`: resulting messages may be sent before the hash is confirmed. A fault
        of the caller answers the call. Raises `TreatyError` for other errors."""
        try:
            event = Call(call=call, operation=operation, arguments=arguments, at=_now())
            await self._give(event, early=early, operation=operation)
        except TreatyError as error:
            if error.code not in _LOCAL_FAULTS:
                raise
            self._port.answer(call, error)

    async def peer_lost(self) -> None:
        """Report the loss of the connection. Raises `TreatyError`."""
        await self._give(PeerLost(peer=self._context.peer, at=_now()))

    async def say_goodbye(self) -> None:
        """Report that this side ends the session. Raises `TreatyError`."""
        await self._give(Close(at=_now()))

    async def close(self) -> None:
        """Cancel timers and functions, and close the handler. Steps that they posted before have no effect."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await self._handler.close()

    async def _give(self, event: Event, *, early: bool = False, operation: str = "") -> None:
        if self._closed:
            return
        try:
            # A handler that hangs ends its own session, not the agent.
            async with asyncio.timeout(self._context.handler_time):
                effects = await self._handler.handle(event)
        except TimeoutError as error:
            raise Unavailable(SessionCode.HANDLER_TIMEOUT, "The protocol's handler did not answer in time.") from error
        # In order: `Persist` is durable before a later `Send` leaves.
        for effect in effects:
            await self._do(effect, early, operation)

    async def _do(self, effect: Effect, early: bool, operation: str) -> None:
        match effect:
            case Send(data=data, stream=stream):
                if self._context.send_named is not None:
                    await self._context.send_named(data, stream or operation)
                    return
                if stream:
                    raise Refused(SessionCode.STREAM, "This handler uses several streams, but a connection has only one.")
                await self._port.send(data, early=early)
            case Invoke():
                self._invoke(effect)
            case Return():
                self._port.answer(effect.call, effect)
            case SetTimer():
                self._set_timer(effect)
            case Persist(key=key, value=value):
                await self._store.put(key, value)
            case End(status=status):
                failed = Refused(SessionCode.FAILED, "The protocol's handler ended the session as failed.")
                await self._port.end(failed if status == "failed" else None)
            case Audit(text=text):
                _log.info("%s with %s: %s", self.role.name, self._context.peer, text)

    def _invoke(self, effect: Invoke) -> None:
        operation = self.role.invokes[effect.operation]
        task = asyncio.create_task(self._run_function(operation, effect))
        # The set keeps a reference: the event loop holds tasks only weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_function(self, operation: Operation, effect: Invoke) -> None:
        async with self._running:
            began = asyncio.get_running_loop().time()
            result = await self._functions.call(effect.call, operation, effect.arguments)
        if self._context.on_served is not None:
            succeeded = result.error is None or result.error.code < 500
            self._context.on_served(asyncio.get_running_loop().time() - began, succeeded)
        self._port.post(partial(self._give_result, result))

    async def _give_result(self, result: Result) -> None:
        try:
            await self._give(Result(call=result.call, value=result.value, error=result.error, at=_now()))
        except TreatyError as error:
            if error.code not in _LOCAL_FAULTS:
                raise
            _log.error("A business function broke its contract: %s", error)
            # The text of a local error may be confidential, so the peer gets a general one.
            failure = Failure(code=500, message="The other side's business logic failed.")
            await self._give(Result(call=result.call, error=failure, at=_now()))

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


class SessionStore:
    """The keys and values of one handler, role and pair of DIDs. Two concurrent sessions see each other's writes at their next
    start."""

    def __init__(self, home: Path, *, wheel: str, role: str, local: str, peer: str) -> None:
        """Access no disk yet."""
        name = canonical.hex_digest(canonical.dumps([wheel, role, local, peer]))
        self._folder = home / "sessions" / name

    async def load(self) -> dict[str, bytes]:
        """Return all stored values by key. Raises `Unavailable` (`session.storage`)."""
        return await _in_thread(self._load) if self._folder.is_dir() else {}

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value; None deletes it. Raises `Unavailable` (`session.storage`) or `Refused` (`session.storage-full`)."""
        await _in_thread(lambda: self._put(key, value))

    def _load(self) -> dict[str, bytes]:
        files = (path for path in self._folder.iterdir() if not path.name.startswith("."))
        return {bytes.fromhex(path.name).decode(): path.read_bytes() for path in files}

    def _put(self, key: str, value: bytes | None) -> None:
        path = self._folder / key.encode().hex()
        if value is None:
            path.unlink(missing_ok=True)
            return
        others = self._others(path.name)
        if others is None and self._is_last_folder():
            raise Refused(SessionCode.STORAGE_FULL, f"Handlers already store state for {MAX_FOLDERS} peers.")
        if others is not None and (len(others) >= MAX_STORED_KEYS or sum(others) + len(value) > MAX_STORED):
            raise Refused(
                SessionCode.STORAGE_FULL, f"A handler stores at most {MAX_STORED_KEYS} keys and {MAX_STORED} bytes for one peer."
            )
        # Atomic: a crash leaves the old value or the new one.
        durable.write(path, value, mode=0o600)

    def _others(self, name: str) -> list[int] | None:
        """Return the sizes of the other values; None if the folder does not exist."""
        if not self._folder.is_dir():
            return None
        return [path.stat().st_size for path in self._folder.iterdir() if path.name != name]

    def _is_last_folder(self) -> bool:
        parent = self._folder.parent
        return parent.is_dir() and sum(1 for _ in parent.iterdir()) >= MAX_FOLDERS


class ServedRole(Protocol):
    """Find this side's role in a protocol and its functions. `role`: the name of the role that the caller wants, or "" for the
    only one."""

    def __call__(self, protocol: SpokenProtocol, *, is_initiator: bool, role: str = "") -> tuple[Role, OperationHandlers]:
        """Return the role and the functions. Raises `Refused` (`session.role`) or `NotFound` (`agent.function-missing`)."""


@dataclass(frozen=True)
class HostRequest:
    """Describe the use of a new handler.

    `role`: the name of the role, or "" for the only one of this side.
    `parameters`: the agreed parameters.
    `answers`: replace the business functions of a handler under test, which stores nothing.
    `send_named`: send messages with an action: the stream that the handler names, else the operation that it was called for.
    `on_served`: called after each business function.
    """

    peer: str
    is_initiator: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)
    role: str = ""
    answers: OperationHandlers | None = None
    send_named: SendNamed | None = None
    on_served: OnServed | None = None


class HandlerHosts:
    """Start the handlers of an agent's sessions in a runtime, with their state below `home`. For one event loop."""

    def __init__(self, local: str, home: Path, runtime: Runtime, served: ServedRole, *, handler_time: float = 10.0) -> None:
        """Start no handler yet. `handler_time`: as in `HandlerContext`."""
        self._local, self._home, self._runtime, self._served = local, home, runtime, served
        self._handler_time = handler_time

    async def host(self, port: HandlerPort, protocol: SpokenProtocol, request: HostRequest) -> HandlerHost:
        """Return a handler for a session, before its first event. Raises `TreatyError`."""
        role, functions = self._served(protocol, is_initiator=request.is_initiator, role=request.role)
        handler = await self._runtime.open(protocol.package, role.name, local=self._local, peer=request.peer)
        context = HandlerContext(
            request.peer, role, self._handler_time, request.parameters, request.send_named, request.on_served
        )
        if request.answers is not None:
            return HandlerHost(handler, context, request.answers, NullState(), port)
        # Peers that do not name themselves must not see each other's state.
        state = self._store(protocol, role, request) if request.peer else NullState()
        return HandlerHost(handler, context, functions, state, port)

    async def carry(self, former: SpokenProtocol, protocol: SpokenProtocol, request: HostRequest) -> None:
        """Copy the stored state of a former handler for the new one. Of a key that both have, the former handler's value is newer
        and replaces the other; other values of the new one stay. The former handler is closed already. Raises `TreatyError`."""
        stores = []
        for spoken in (former, protocol):
            role, _ = self._served(spoken, is_initiator=request.is_initiator, role=request.role)
            stores.append(self._store(spoken, role, request))
        kept, own = [await store.load() for store in stores]
        # A crash in between leaves some of the values, whole ones; the next change of the protocol copies the rest.
        for key, value in kept.items():
            if own.get(key) != value:
                await stores[1].put(key, value)

    def _store(self, protocol: SpokenProtocol, role: Role, request: HostRequest) -> SessionStore:
        return SessionStore(self._home, wheel=protocol.package.digest, role=role.name, local=self._local, peer=request.peer)


async def _in_thread(work: Callable[[], _T]) -> _T:
    try:
        return await asyncio.to_thread(work)
    except (OSError, ValueError) as error:
        raise Unavailable(SessionCode.STORAGE, f"The stored state of handlers cannot be read or written: {error}.") from error


def _now() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000
