"""The host of one handler session: gives it events, and does what its effects ask for.

    Send      to the session's one peer, as an application message
    Invoke    the business function of that name, whose answer comes back as `Result`
    Return    answers the local caller
    SetTimer  on the host's clock
    Persist   in the session store
    End       ends the session
    Audit     in the log of this module, escaped already

All methods that give events are to be called from one task, one at a time: the session's driver. What happens elsewhere (a
timer, a function's answer) is posted to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

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
    Value,
)

from .ports import RunningHandler

MAX_RUNNING = 16
"""Business functions of one session that run at once; more wait."""

Step = Callable[[], Awaitable[None]]
_LOCAL_FAULTS = frozenset({"operation.arguments", "operation.result", "session.operation", "session.busy"})
_log = logging.getLogger(__name__)


class Driver(Protocol):
    """What the host asks of the session's driver."""

    def post(self, step: Step) -> None:
        """Run a step in the driver's task, after those posted before."""

    async def send(self, payload: bytes, *, early: bool) -> None:
        """Send an application message."""

    def answer(self, call: str, outcome: Return | TreatyError) -> None:
        """A call of the local application is answered, or was wrong."""

    async def end(self, error: TreatyError | None) -> None:
        """The session is over."""


class Business(Protocol):
    """What stands behind the operations that a handler invokes; `operations.Functions` is one."""

    async def call(self, call: str, operation: Operation, arguments: Mapping[str, Value]) -> Result:
        """The answer to an `Invoke`, within the operation's timeout. Whatever goes wrong is the result; never raises."""


class Keeping(Protocol):
    """What a handler keeps; `store.SessionStore` is one. Both raise `Unavailable` or `Refused` (`session.storage…`)."""

    async def load(self) -> dict[str, bytes]:
        """All that was kept."""

    async def put(self, key: str, value: bytes | None) -> None:
        """Keep a value, or forget it (None)."""


@dataclass(frozen=True)
class Situation:
    """With whom, and in which role. `handler_time`: seconds a handler may take for one event."""

    peer: str
    role: Role
    handler_time: float


class HandlerHost:
    """See the module. `close` it in any case."""

    def __init__(
        self, handler: RunningHandler, situation: Situation, functions: Business, store: Keeping, driver: Driver
    ) -> None:
        self.role = situation.role
        self.is_open = False
        self._handler, self._situation, self._functions, self._store = handler, situation, functions, store
        self._driver = driver
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = asyncio.Semaphore(MAX_RUNNING)
        self._closed = False

    async def open(self) -> None:
        """The first event. Raises `TreatyError`."""
        stored = await self._store.load()
        await self._give(Opened(stored=stored, at=_now()))
        self.is_open = True

    async def received(self, payload: bytes) -> None:
        """The peer said something. Raises `TreatyError`."""
        await self._give(Received(peer=self._situation.peer, data=payload, at=_now()))

    async def call(self, call: str, operation: str, arguments: dict[str, Any], *, early: bool) -> None:
        """The local application calls. `early`: what is sent because of it may go out before the hash is confirmed. Raises
        `TreatyError`, but answers the call with what only the caller got wrong."""
        try:
            await self._give(Call(call=call, operation=operation, arguments=arguments, at=_now()), early=early)
        except TreatyError as error:
            if error.code not in _LOCAL_FAULTS:
                raise
            self._driver.answer(call, error)

    async def peer_lost(self) -> None:
        """The connection is gone. Raises `TreatyError`."""
        await self._give(PeerLost(peer=self._situation.peer, at=_now()))

    async def say_goodbye(self) -> None:
        """This side wants the session over. Raises `TreatyError`."""
        await self._give(Close(at=_now()))

    async def close(self) -> None:
        """Cancel timers and functions, end the handler. What they posted before does nothing any more."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await self._handler.close()

    async def _give(self, event: Event, *, early: bool = False) -> None:
        if self._closed:
            return
        try:
            async with asyncio.timeout(self._situation.handler_time):
                effects = await self._handler.handle(event)
        except TimeoutError as error:
            raise Unavailable("session.handler-timeout", "The protocol's handler did not answer in time.") from error
        for effect in effects:
            await self._do(effect, early)

    async def _do(self, effect: Effect, early: bool) -> None:
        match effect:
            case Send(data=data, stream=stream):
                if stream:
                    raise Refused("session.stream", "This handler speaks on several streams, and a WebSocket has one.")
                await self._driver.send(data, early=early)
            case Invoke():
                self._invoke(effect)
            case Return():
                self._driver.answer(effect.call, effect)
            case SetTimer():
                self._set_timer(effect)
            case Persist(key=key, value=value):
                await self._store.put(key, value)
            case End(status=status):
                failed = Refused("session.failed", "The protocol's handler ended the session as failed.")
                await self._driver.end(failed if status == "failed" else None)
            case Audit(text=text):
                _log.info("%s with %s: %s", self.role.name, self._situation.peer, text)

    def _invoke(self, effect: Invoke) -> None:
        operation = self.role.invokes[effect.operation]
        task = asyncio.create_task(self._run_function(operation, effect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_function(self, operation: Operation, effect: Invoke) -> None:
        async with self._running:
            result = await self._functions.call(effect.call, operation, effect.arguments)
        self._driver.post(partial(self._give_result, result))

    async def _give_result(self, result: Result) -> None:
        try:
            await self._give(Result(call=result.call, value=result.value, error=result.error, at=_now()))
        except TreatyError as error:
            if error.code not in _LOCAL_FAULTS:
                raise
            _log.error("A business function broke its contract: %s", error)
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
            effect.seconds, lambda: self._driver.post(partial(self._ring, effect.name, handle))
        )
        self._timers[effect.name] = handle

    async def _ring(self, name: str, handle: asyncio.TimerHandle) -> None:
        if self._timers.get(name) is handle:  # otherwise it was replaced or cancelled after it ran out
            del self._timers[name]
            await self._give(Timer(name=name, at=_now()))


def _now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
