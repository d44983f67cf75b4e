"""A peer that gives its calls up as soon as it made them: what it started must stay bounded."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator
from types import MappingProxyType

import pytest
from queued_steps import Queue

from treaty_agent.sessions.call_context import CallContext
from treaty_agent.sessions.handler_context import HandlerContext
from treaty_agent.sessions.interfaces import Capacity
from treaty_agent.sessions.invocations import Invocations
from treaty_agent.sessions.operations import Functions
from treaty_agent.testing.virtual_time import run
from treaty_consensus.handler import Operation, OperationKind, Role
from treaty_handler import Cancel, Event, Invoke, Request, Result
from treaty_io.identity import ClaimedPeer

ONE_PEER = Capacity().threads // 2
"""Threads of one network."""
WAIT = Operation("wait", {}, {}, MappingProxyType({404: "There is none."}), idempotent=True, timeout=60)
WATCH = Operation("watch", {}, {}, MappingProxyType({}), True, 60, OperationKind.STREAM, 4)


class Value(str):
    """An argument whose end can be seen."""


@pytest.mark.threat(172)
async def test_given_up_calls_keep_no_arguments() -> None:
    functions, release, running = Functions(), threading.Event(), threading.Semaphore(0)
    order = []

    def wait(value: str) -> str:
        order.append(str(value))
        running.release()
        release.wait(60)
        return value

    functions.add(wait)
    busy = [asyncio.create_task(functions.call(CallContext(), WAIT, {"value": "busy"})) for _ in range(ONE_PEER)]
    for _ in busy:
        assert await asyncio.to_thread(running.acquire, timeout=60)
    large = [Value("x") for _ in range(50)]
    traces = [weakref.ref(value) for value in large]
    given_up = [asyncio.create_task(functions.call(CallContext(), WAIT, {"value": value})) for value in large]
    await asyncio.sleep(0.05)
    for task in given_up:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    del given_up, large, task
    await asyncio.sleep(0.05)  # the tasks' callbacks run
    gc.collect()
    left = sum(trace() is not None for trace in traces)
    release.set()
    assert await asyncio.gather(*busy) == ["busy"] * ONE_PEER
    assert left == 0
    # Every thread is free again, and the calls that were given up never ran.
    assert await functions.call(CallContext(), WAIT, {"value": "after"}) == "after"
    assert set(order) == {"busy", "after"}
    functions.close()


def test_a_function_in_a_thread_outlasts_virtual_time() -> None:
    async def main() -> None:
        functions = Functions()

        def wait(value: str) -> str:
            time.sleep(0.1)
            return value

        functions.add(wait)
        assert await functions.call(CallContext(), WAIT, {"value": "x"}) == "x"
        functions.close()

    run(main())


@pytest.mark.threat(172)
def test_cancelled_streams_leave_bounded_finally_blocks() -> None:
    async def main() -> None:
        functions, events, session = Functions(), list[Event](), Queue(ClaimedPeer("did:wba:a.example"))
        closing = most = 0

        async def watch() -> AsyncIterator[int]:
            nonlocal closing, most
            try:
                yield 1
                await asyncio.sleep(1e6)
            finally:
                closing += 1
                most = max(most, closing)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(30)  # as a database is closed
                closing -= 1

        async def give(event: Event) -> None:
            events.append(event)

        functions.add(watch)
        context = HandlerContext(session.peer, Role("watcher", "feed", {}, {"watch": WATCH}), 10)
        invocations = Invocations(functions, context, session, give)
        for number in range(10 * Capacity().streams):
            call = str(number)
            invocations.begin(Invoke(call=call, operation="watch", arguments={}), WATCH)
            invocations.request(Request(call=call, count=4))
            for _ in range(5):
                await asyncio.sleep(0)
                await session.perform()
            refused = [event for event in events if isinstance(event, Result) and event.call == call]
            if not refused:
                invocations.cancel(Cancel(call=call))
            else:
                assert refused[0].error is not None and refused[0].error.code == 503
        await asyncio.sleep(1)
        assert Capacity().streams <= most <= 2 * Capacity().streams
        # When they have run, streams are served again.
        await asyncio.sleep(60)
        events.clear()
        invocations.begin(Invoke(call="after", operation="watch", arguments={}), WATCH)
        invocations.request(Request(call="after", count=1))
        for _ in range(5):
            await asyncio.sleep(0)
            await session.perform()
        assert [type(event).__name__ for event in events] == ["Item"]
        await invocations.close()

    run(main())
