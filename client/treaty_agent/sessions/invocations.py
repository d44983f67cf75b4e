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
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from treaty_anp.call_metadata import CallMetadata
from treaty_anp.trace_context import TraceContext
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import Operation, OperationKind
from treaty_handler import Cancel, Event, Failure, Invoke, Item, Request, Result, Value
from treaty_io.alarm_timeout import AlarmTimeout
from treaty_io.codes import OperationCode, SessionCode
from treaty_io.identity import PeerIdentity
from treaty_sandbox.validation import MAX_PENDING

from .call_context import CallOrigin, enter_call
from .handler_context import HandlerContext, HandlerPort
from .interfaces import CANCELLING_TIME
from .middleware import Call, described_call
from .operation_errors import FunctionFailures, OperationError, busy
from .operations import OperationHandlers

LOCAL_FAULTS = frozenset({OperationCode.ARGUMENTS, OperationCode.RESULT, SessionCode.OPERATION})
"""The codes of events that the local application got wrong. The session is unchanged."""
MAX_SHARED = MAX_PENDING // 4
"""Functions of one shared session that are under way when no further message of a member is read, and streams of all members. The
rest of `MAX_PENDING` is for what an event or a timer begins beyond that."""
_END: Final = object()
_NO_ORIGIN = CallOrigin()


@dataclass(eq=False)
class _Invocation:
    """An `Invoke` without a `Result`. `credit`: the items that the handler asked for and did not get yet."""

    operation: Operation
    effect: Invoke
    call: Call
    credit: int = 0
    has_credit: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Invocations:
    """The functions that run for one handler. For one event loop. Always call `close`."""

    def __init__(
        self,
        functions: OperationHandlers,
        context: HandlerContext,
        port: HandlerPort,
        give: Callable[[Event], Awaitable[None]],
    ) -> None:
        """Run nothing yet. `port`: the session. `give`: give the handler an event and perform its effects, in the connection's
        task. Raises `TreatyError`."""
        self._functions, self._context, self._port, self._give = functions, context, port, give
        self._failures = FunctionFailures(context.peer.did, context.on_fault)
        self._pending: dict[str, _Invocation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # By peer: the streams whose task runs, those that are being stopped too.
        self._streams: Counter[PeerIdentity] = Counter()
        # Bounds the functions that one session runs at the same time.
        self._running = asyncio.Semaphore(context.capacity.functions)
        # One item at a time waits for room: else the items of all streams would use the same free room.
        self._turn = asyncio.Lock()

    def working(self, *, streams: bool, peer: PeerIdentity | None = None) -> int:
        """Return the number of `Invoke` effects of requests and events without a `Result`. `streams`: and of streams that were
        asked for items. `peer`: only those that messages of this peer led to."""
        return sum(
            1
            for one in self._pending.values()
            if (one.operation.kind is not OperationKind.STREAM or (streams and one.credit))
            and (peer is None or one.call.context.peer == peer)
        )

    @property
    def is_running(self) -> bool:
        """Whether `close` has something to stop."""
        return bool(self._tasks)

    # Called by the handler's host, in the connection's task. The effects are checked, so the ids are right.

    def begin(
        self, effect: Invoke, operation: Operation, origin: CallOrigin = _NO_ORIGIN, metadata: CallMetadata | None = None
    ) -> None:
        """Start the function of an `Invoke`. `metadata`: those of the message that led to it."""
        one = _Invocation(operation, effect, _described(effect, operation, origin, metadata))
        is_stream, peer = operation.kind is OperationKind.STREAM, one.call.context.peer
        streams = [other.call.context.peer for other in self._pending.values() if other.operation.kind is OperationKind.STREAM]
        self._pending[effect.call] = one
        most = self._context.capacity.streams
        # In a shared role each peer has its own streams, and all have a part of the calls that a handler may have open.
        full = streams.count(peer) >= most or len(streams) >= max(most, MAX_SHARED)
        if is_stream and (full or self._streams[peer] >= 2 * most):
            failure = Failure(code=503, message=f"{most} streams are open already.")
            self._port.post(partial(self._finish, one, Result(call=effect.call, error=failure)))
            return
        one.task = asyncio.create_task(self._stream(one) if is_stream else self._run(one))
        # The set keeps a reference: the event loop holds tasks only weakly.
        self._tasks.add(one.task)
        one.task.add_done_callback(self._tasks.discard)
        if is_stream:
            self._streams[peer] += 1
            one.task.add_done_callback(lambda _: self._end_stream(peer))

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

    def _end_stream(self, peer: PeerIdentity) -> None:
        self._streams[peer] -= 1
        if not self._streams[peer]:
            del self._streams[peer]  # members of a shared session come and go

    # The tasks

    async def _run(self, one: _Invocation) -> None:
        began = asyncio.get_running_loop().time()
        try:
            if self._running.locked():
                await self._wait_for_turn(one)
            else:
                await self._running.acquire()
        except TimeoutError:
            result = Result(call=one.effect.call, error=self._failures.raised(one.operation, busy()))
        else:
            began = asyncio.get_running_loop().time()
            try:
                result = await self._answer(one, began)
            finally:
                self._running.release()
        self._note(began, result.error)
        self._port.post(partial(self._finish, one, result))

    async def _wait_for_turn(self, one: _Invocation) -> None:
        """Wait until another function of the session has ended. Raises TimeoutError."""
        with self._context.activity.functions.queued():
            # Less than the time of most calls: what waits in vain is refused before it is begun.
            async with asyncio.timeout(min(self._context.capacity.wait, one.operation.timeout)):
                await self._running.acquire()

    async def _answer(self, one: _Invocation, began: float) -> Result:
        """Run a function within the operation's time and the caller's. A failure is a result, too."""
        operation, id = one.operation, one.effect.call
        due = min(began + operation.timeout, one.call.context.deadline)
        call = replace(one.call, context=replace(one.call.context, deadline=due))
        enter_call(call.context)
        try:
            with self._context.pipeline.recorded(call) as call, self._context.activity.functions.counted():
                if due <= began:
                    raise TimeoutError  # the caller does not wait any more
                # A function in a thread cannot be cancelled; only its result is dropped.
                async with AlarmTimeout(due, self._port.timer):
                    value = await self._context.pipeline.call(call, partial(self._perform, operation))
        except Exception as error:
            return Result(call=id, error=self._failures.raised(operation, error, *_caller(one)))
        return Result(call=id, value=None if operation.kind is OperationKind.EVENT else value)

    async def _perform(self, operation: Operation, call: Call) -> Value:
        enter_call(call.context)  # a middleware may have changed it
        return await self._functions.call(call.context, operation, call.arguments)

    def _items(self, operation: Operation, call: Call) -> AsyncGenerator[Value, None]:
        enter_call(call.context)
        return self._functions.items(call.context, operation, call.arguments)

    async def _stream(self, one: _Invocation) -> None:
        began, is_noted = asyncio.get_running_loop().time(), False
        failure: Failure | None = None
        pipeline = self._context.pipeline
        enter_call(one.call.context)
        try:
            # The call is in the block too: it raises for a function without the operation's arguments.
            with pipeline.recorded(one.call) as call, self._context.activity.functions.counted():
                async with aclosing(pipeline.stream(call, partial(self._items, one.operation))) as items:
                    while (value := await self._next(one, items)) is not _END:
                        if not is_noted:
                            self._note(began, None)
                            is_noted = True
                        broken = await self._hand_over(one, value)
                        if broken is not None:
                            raise OperationError(broken.code, broken.message)
        except Exception as error:
            failure = self._failures.raised(one.operation, error, *_caller(one))
        if not is_noted or failure is not None:
            self._note(began, failure)
        self._port.post(partial(self._finish, one, Result(call=one.effect.call, error=failure)))

    async def _next(self, one: _Invocation, items: AsyncGenerator[Value, None]) -> object:
        """Return the next item, or `_END`, when the handler asks for one."""
        await one.has_credit.wait()
        # Only here: while nothing is asked for, the function does not run and may not be late.
        async with AlarmTimeout(asyncio.get_running_loop().time() + one.operation.timeout, self._port.timer):
            value: object = await anext(items, _END)
        one.credit -= 1
        if not one.credit:
            one.has_credit.clear()
        return value

    async def _hand_over(self, one: _Invocation, value: Value) -> Failure | None:
        """Give an item to the handler and wait until it was processed. Return the failure if it breaks the schema."""
        async with self._turn:
            # The peer may read slowly although its handler asks for items.
            await self._port.wait_writable()
            done: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()
            self._port.post(partial(self._give_item, one, value, done))
            return await done

    def _note(self, began: float, failure: Failure | None) -> None:
        if self._context.on_served is not None:
            succeeded = failure is None or failure.code < 500
            self._context.on_served(asyncio.get_running_loop().time() - began, succeeded)

    # The steps. A pending invocation is compared by identity: after `Cancel` the handler may use the id again.

    async def _give_item(self, one: _Invocation, value: Value, done: asyncio.Future[Failure | None]) -> None:
        failure: Failure | None = None
        try:
            if self._pending.get(one.effect.call) is one:
                await self._give(Item(call=one.effect.call, value=value, at=event_time()))
        except TreatyError as error:
            if error.code not in LOCAL_FAULTS:
                raise
            failure = self._failures.broke(one.operation, error, *_caller(one))
        finally:
            if not done.done():  # the function may be stopped meanwhile
                done.set_result(failure)

    async def _finish(self, one: _Invocation, result: Result) -> None:
        if self._pending.get(one.effect.call) is not one:
            return
        # Before the event: its effects may invoke another function by the same id.
        del self._pending[one.effect.call]
        try:
            await self._give(Result(call=result.call, value=result.value, error=result.error, at=event_time()))
            if one.call.is_initiator:
                self._port.served_call()  # after the answer was sent, so that the peer has it before the report
        except TreatyError as error:
            if error.code not in LOCAL_FAULTS:
                raise
            failure = self._failures.broke(one.operation, error, *_caller(one))
            await self._give(Result(call=result.call, error=failure, at=event_time()))


def event_time() -> int:
    """Return the time of an event: the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _caller(one: _Invocation) -> tuple[str, str]:
    """Return the trace and the peer of a call, for the log of its failure."""
    return one.call.context.trace.trace_id, one.call.context.peer.did


def _described(effect: Invoke, operation: Operation, origin: CallOrigin, metadata: CallMetadata | None) -> Call:
    clock = asyncio.get_running_loop().time
    trace = metadata.trace.child() if metadata is not None and metadata.trace is not None else TraceContext.new()
    timeout = metadata.timeout if metadata is not None and operation.kind is OperationKind.REQUEST else None
    due = math.inf if timeout is None else clock() + timeout / 1000
    context = origin.context(effect.call, operation.name, trace, due, clock)
    return described_call("in", context, operation.kind, effect.arguments, origin.is_initiator)
