"""Middleware: functions of the application around each call, in both directions.

    FRIENDS = {ProvedPeer("did:wba:friend.example")}

    @agent.middleware
    async def only_friends(call: Call, proceed: Proceed) -> Any:
        if call.direction == "in" and call.context.peer not in FRIENDS:
            raise OperationError(403, "You are not on the list.")
        return await proceed()

`await proceed()` does the rest of the call and returns its value. For an event it returns None when the function has run (in) or
the message is sent (out). For a stream it returns None at the end. The items of a stream do not pass through the
middleware, so that one shape serves all kinds. When the taker of a stream leaves, `proceed` is cancelled.

The middleware that was registered first is the outermost. A middleware that returns without `proceed` answers the call itself; a
stream then has no items. Its exceptions are those of the function (in), or of the call (out). It has the time of the call.

An outgoing call passes through once for each attempt of a `Peer`, as each is a call of its own session.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

from treaty_anp.trace_context import TraceContext
from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.handler import OperationKind
from treaty_consensus.printable import printable
from treaty_io import tracing
from treaty_io.codes import AgentCode

from .call_context import CallContext
from .call_span import CallSpan
from .interfaces import CANCELLING_TIME

OK, CANCELLED = "ok", "cancelled"
"""The statuses of a call that succeeded, and of one that was given up. Others are codes, or the names of other exceptions."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """One call, as middleware sees it.

    `direction`: `in` for a call of the peer, `out` for one of this side. `is_initiator`: whether this side opened the session.
    `arguments`: read only.
    """

    direction: Literal["in", "out"]
    context: CallContext
    kind: OperationKind
    arguments: Mapping[str, Any]
    is_initiator: bool

    @property
    def operation(self) -> str:
        """The name of the operation."""
        return self.context.operation


class Proceed(Protocol):
    """Do the rest of a call; once."""

    async def __call__(self, *, trace: TraceContext | None = None) -> Any:
        """Return the value of the call. `trace`: its span from here on, for a bridge to a tracer. Raises the errors of the call,
        and `Refused` (`agent.function`) the second time."""


class Middleware(Protocol):
    """A coroutine function around calls."""

    async def __call__(self, call: Call, proceed: Proceed, /) -> Any:
        """Return the value of a call. Raises an error for it, such as `OperationError`."""


Perform: TypeAlias = Callable[[Call], Awaitable[Any]]
OnCall: TypeAlias = Callable[[Call, str, float], None]
"""Take a call that is over, its status and its seconds."""


class CallPipeline:
    """The way of all calls of an agent: its middleware, then a log line and an event for each. For one event loop."""

    def __init__(self, on_call: OnCall | None = None) -> None:
        """Begin without middleware. `on_call`: called for each call that is over."""
        self._middleware: list[tuple[Middleware, str]] = []
        self._on_call = on_call

    def add(self, function: Middleware, protocol: str) -> None:
        """Register a middleware inside of the earlier ones. `protocol`: its URI, "" for all. Raises `Malformed`
        (`agent.function`) unless it is a coroutine function."""
        call = getattr(function, "__call__", None)  # noqa: B004  # an object with such a method is one, too
        if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)):
            raise Malformed(AgentCode.FUNCTION, f"{function!r} is no middleware.", fix="Write `async def f(call, proceed)`.")
        self._middleware.append((function, protocol))

    async def call(self, call: Call, perform: Perform) -> Any:
        """Perform a call inside of the middleware. Raises anything that these raise."""
        chain = self._chain(call)
        return await (_run(chain, call, perform) if chain else perform(call))

    def stream(self, call: Call, items: Callable[[Call], AsyncGenerator[Any, None]]) -> AsyncGenerator[Any, None]:
        """Return the items of a stream inside of the middleware. The call and the generator raise anything that these raise."""
        chain = self._chain(call)
        return _stream(chain, call, items) if chain else items(call)

    @contextmanager
    def recorded(self, call: Call) -> Iterator[Call]:
        """Log the call of the block and report it, when it is over. While traces are recorded, the call is a span; yield the call
        with it."""
        began, status, span = call.context.clock(), OK, None
        failure: BaseException | None = None
        if tracing.is_on():
            span = CallSpan(call.context, call.kind, incoming=call.direction == "in")
            call = replace(call, context=span.context)
        try:
            yield call
        except (asyncio.CancelledError, GeneratorExit) as error:
            status, failure = CANCELLED, error
            raise
        except Exception as error:
            failure = error
            status = error.code if isinstance(error, TreatyError) else type(error).__name__
            if isinstance(error, TreatyError):
                error.trace_id = error.trace_id or call.context.trace.trace_id
            raise
        finally:
            if span is not None:
                span.end(status, failure)
            # Asked here, because most calls are neither logged nor told.
            if self._on_call is not None or _log.isEnabledFor(logging.DEBUG):
                self._record(call, status, call.context.clock() - began)

    def _record(self, call: Call, status: str, seconds: float) -> None:
        context = call.context
        if _log.isEnabledFor(logging.DEBUG):
            preposition = "from" if call.direction == "in" else "to"
            operation = printable(call.operation, 64)  # for the peer's operations and for the application's mistakes
            peer = printable(context.peer.did, 200) or "-"
            about = (call.direction, operation, preposition, peer, status, 1000 * seconds, context.trace.trace_id)
            _log.debug("call %s %s %s %s: %s, %.1f ms, trace=%s", *about)
        if self._on_call is not None:
            self._on_call(call, status, seconds)

    def _chain(self, call: Call) -> Sequence[Middleware]:
        return [function for function, uri in self._middleware if uri in ("", call.context.protocol)]


def described_call(
    direction: Literal["in", "out"], context: CallContext, kind: OperationKind, arguments: Mapping[str, Any], is_initiator: bool
) -> Call:
    """Return a call whose arguments cannot be replaced."""
    return Call(direction, context, kind, MappingProxyType(dict(arguments)), is_initiator)


async def _run(chain: Sequence[Middleware], call: Call, perform: Perform) -> Any:
    if not chain:
        return await perform(call)
    is_used = False

    async def proceed(*, trace: TraceContext | None = None) -> Any:
        nonlocal is_used
        # A second time could do an order twice, and the peer would get one answer.
        if is_used:
            raise Refused(AgentCode.FUNCTION, f"A middleware called proceed twice for {call.operation}.")
        is_used = True
        inner = call if trace is None else replace(call, context=replace(call.context, trace=trace))
        return await _run(chain[1:], inner, perform)

    return await chain[0](call, proceed)


async def _stream(
    chain: Sequence[Middleware], call: Call, items: Callable[[Call], AsyncGenerator[Any, None]]
) -> AsyncGenerator[Any, None]:
    """Yield the items while the middleware waits for `proceed`. One task runs the middleware and the generator of the items, so
    that this sees the context variables of that."""
    is_wanted, item = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def perform(inner: Call) -> None:
        async with aclosing(items(inner)) as inner_items:
            # Only one item that was asked for is made: the pace is the taker's.
            while await is_wanted.wait():
                is_wanted.clear()
                try:
                    item.set_result(await anext(inner_items))
                except StopAsyncIteration:
                    return

    task = asyncio.create_task(_run(chain, call, perform))
    try:
        while True:
            is_wanted.set()
            await asyncio.wait({task, item}, return_when=asyncio.FIRST_COMPLETED)
            if not item.done():
                task.result()
                return
            value, item = item.result(), asyncio.get_running_loop().create_future()
            yield value
    finally:
        task.cancel()
        # `wait` with a timeout: a middleware may ignore cancellation.
        await asyncio.wait({task}, timeout=CANCELLING_TIME)
        if task.done() and not task.cancelled():
            task.exception()  # marked as retrieved: it was raised above, or its taker has left
