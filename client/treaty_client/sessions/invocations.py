"""Run the functions of the local application that a handler invokes.

    request, event    one call of a function; its answer is the `Result`
    stream            an async generator; each item that it yields is an `Item`, and its end the `Result`

A generator runs only while the handler has asked for items, one item at a time. It goes on when the handler has processed the
last item, and when the connection has room for more. So the peer's pace reaches the function, and a session holds one item for
each stream.

`Cancel`, the end of the session and a wrong item stop a function: its task is cancelled, so that the `finally` blocks of a
coroutine or generator run. A function in a thread cannot be stopped; its answer is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import Operation, OperationKind
from treaty_handler import Cancel, Event, Failure, Invoke, Item, Request, Result, Value

from ..codes import OperationCode, SessionCode
from .interfaces import CANCELLING_TIME, Step
from .operation_errors import FAILED, failure_of
from .operations import OperationHandlers

MAX_RUNNING = 16
"""Functions of requests and events that one session runs at the same time. Others wait, so that a peer cannot start any
number."""
# Beside MAX_RUNNING: streams that last for hours must not keep requests from running.
MAX_STREAMS = 64
"""Streams that one session provides at the same time; others fail with 503. As many again may be stopped whose `finally` blocks
still run. Without that bound a peer could start any number of them, by cancelling each."""

LOCAL_FAULTS = frozenset({OperationCode.ARGUMENTS, OperationCode.RESULT, SessionCode.OPERATION, SessionCode.BUSY})
"""The codes of events that the local application got wrong. The session is unchanged."""
OnServed: TypeAlias = Callable[[float, bool], None]
"""Take the seconds until a business function answered, and whether it succeeded."""
_END: Final = object()
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InvocationPort:
    """The functions that invocations use from the handler's host.

    `post`: run a step in the connection's task.
    `wait_writable`: wait until there is room for another message to the peer.
    `give`: give the handler an event and perform its effects, in the connection's task. Raises `TreatyError`.
    `now`: return the milliseconds since 1970.
    `on_served`: called after the answer of a function, and after the first item and the failure of a stream.
    """

    post: Callable[[Step], None]
    wait_writable: Callable[[], Awaitable[None]]
    give: Callable[[Event], Awaitable[None]]
    now: Callable[[], int]
    on_served: OnServed | None


@dataclass(eq=False)
class _Invocation:
    """An `Invoke` without a `Result`. `credit`: the items that the handler asked for and did not get yet."""

    operation: Operation
    effect: Invoke
    credit: int = 0
    has_credit: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Invocations:
    """The functions that run for one handler. For one event loop. Always call `close`."""

    def __init__(self, functions: OperationHandlers, port: InvocationPort) -> None:
        self._functions, self._port = functions, port
        self._pending: dict[str, _Invocation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.Task[None]] = set()
        # Bounds the functions that one session runs at the same time.
        self._running = asyncio.Semaphore(MAX_RUNNING)
        # One item at a time waits for room: else the items of all streams would use the same free room.
        self._turn = asyncio.Lock()

    @property
    def is_working(self) -> bool:
        """Whether an `Invoke` of a request or an event has no `Result` yet."""
        return any(one.operation.kind is not OperationKind.STREAM for one in self._pending.values())

    # Called by the handler's host, in the connection's task. The effects are checked, so the ids are right.

    def begin(self, effect: Invoke, operation: Operation) -> None:
        """Start the function of an `Invoke`."""
        one = _Invocation(operation, effect)
        is_stream = operation.kind is OperationKind.STREAM
        streams = sum(1 for other in self._pending.values() if other.operation.kind is OperationKind.STREAM)
        self._pending[effect.call] = one
        if is_stream and (streams >= MAX_STREAMS or len(self._streams) >= 2 * MAX_STREAMS):
            failure = Failure(code=503, message=f"{MAX_STREAMS} streams are open already.")
            self._port.post(partial(self._finish, one, Result(call=effect.call, error=failure)))
            return
        one.task = asyncio.create_task(self._stream(one) if is_stream else self._run(one))
        # The sets keep a reference: the event loop holds tasks only weakly.
        for tasks in (self._tasks, self._streams) if is_stream else (self._tasks,):
            tasks.add(one.task)
            one.task.add_done_callback(tasks.discard)

    def request(self, effect: Request) -> None:
        """Let the function of a stream make more items."""
        one = self._pending[effect.call]
        one.credit += effect.count
        one.has_credit.set()

    def cancel(self, effect: Cancel) -> None:
        """Stop a function. Its posted item or answer is dropped."""
        one = self._pending.pop(effect.call)
        if one.task is not None:
            one.task.cancel()

    async def close(self) -> None:
        """Stop all functions, and wait a bounded time until their `finally` blocks have run. Never raises."""
        self._pending.clear()
        tasks = list(self._tasks)
        for task in tasks:
            # Once: a second cancellation would cut off the `finally` blocks that run because of the first.
            if not task.cancelling():
                task.cancel()
        if tasks:
            # `wait` with a timeout: a business function may ignore cancellation.
            await asyncio.wait(tasks, timeout=CANCELLING_TIME)

    # The tasks

    async def _run(self, one: _Invocation) -> None:
        async with self._running:
            began = asyncio.get_running_loop().time()
            result = await self._functions.call(one.effect.call, one.operation, one.effect.arguments)
        self._note(began, result.error)
        self._port.post(partial(self._finish, one, result))

    async def _stream(self, one: _Invocation) -> None:
        began, is_noted = asyncio.get_running_loop().time(), False
        failure: Failure | None = None
        try:
            # The call is in the block too: it raises for a function without the operation's arguments.
            async with aclosing(self._functions.items(one.operation, one.effect.arguments)) as items:
                while (value := await self._next(one, items)) is not _END:
                    if not is_noted:
                        self._note(began, None)
                        is_noted = True
                    if not await self._hand_over(one, value):
                        failure = FAILED
                        break
        except Exception as error:
            failure = failure_of(one.operation, error)
        if not is_noted or failure is not None:
            self._note(began, failure)
        self._port.post(partial(self._finish, one, Result(call=one.effect.call, error=failure)))

    async def _next(self, one: _Invocation, items: AsyncGenerator[Value, None]) -> object:
        """Return the next item, or `_END`, when the handler asks for one."""
        await one.has_credit.wait()
        # Only here: while nothing is asked for, the function does not run and may not be late.
        async with asyncio.timeout(one.operation.timeout):
            value: object = await anext(items, _END)
        one.credit -= 1
        if not one.credit:
            one.has_credit.clear()
        return value

    async def _hand_over(self, one: _Invocation, value: Value) -> bool:
        """Give an item to the handler and wait until it was processed. Return whether it satisfied the schema."""
        async with self._turn:
            # The peer may read slowly although its handler asks for items.
            await self._port.wait_writable()
            done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._port.post(partial(self._give_item, one, value, done))
            return await done

    def _note(self, began: float, failure: Failure | None) -> None:
        if self._port.on_served is not None:
            succeeded = failure is None or failure.code < 500
            self._port.on_served(asyncio.get_running_loop().time() - began, succeeded)

    # The steps. A pending invocation is compared by identity: after `Cancel` the handler may use the id again.

    async def _give_item(self, one: _Invocation, value: Value, done: asyncio.Future[bool]) -> None:
        fits = True
        try:
            if self._pending.get(one.effect.call) is one:
                await self._port.give(Item(call=one.effect.call, value=value, at=self._port.now()))
        except TreatyError as error:
            if error.code not in LOCAL_FAULTS:
                raise
            _log.error("A business function broke its contract: %s", error)
            fits = False
        finally:
            if not done.done():  # the function may be stopped meanwhile
                done.set_result(fits)

    async def _finish(self, one: _Invocation, result: Result) -> None:
        if self._pending.get(one.effect.call) is not one:
            return
        # Before the event: its effects may invoke another function by the same id.
        del self._pending[one.effect.call]
        try:
            await self._port.give(Result(call=result.call, value=result.value, error=result.error, at=self._port.now()))
        except TreatyError as error:
            if error.code not in LOCAL_FAULTS:
                raise
            _log.error("A business function broke its contract: %s", error)
            # The text of a local error may be confidential, so the peer gets a general one.
            await self._port.give(Result(call=result.call, error=FAILED, at=self._port.now()))
