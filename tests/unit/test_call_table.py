"""The calls of a session whose handler is replaced, or may get nothing now: what is issued again, and what is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from meetings import InlineRuntime
from streaming import WINDOW, published

from treaty_agent.sessions.call_context import CallOrigin
from treaty_agent.sessions.calls import CallingSession, CallTable, Phase
from treaty_agent.sessions.handler_context import HandlerContext
from treaty_agent.sessions.handler_host import HandlerHost
from treaty_agent.sessions.handler_state import NullState
from treaty_agent.sessions.interfaces import Step
from treaty_agent.sessions.middleware import CallPipeline
from treaty_agent.sessions.operation_errors import OperationError, OutcomeUnknown
from treaty_agent.sessions.operations import Functions
from treaty_anp.call_metadata import CallMetadata
from treaty_consensus.errors import TreatyError
from treaty_handler import Return, Value, decode_json, encode_json
from treaty_io.identity import ClaimedPeer
from treaty_io.shared_timer import SharedTimer

PEER = "did:wba:feed.example"


class Simulated(CallingSession):
    """A session as its calls see it, without a connection. `sent`: each message of a handler, and whether it was early."""

    backlog = 0
    pipeline = CallPipeline()
    phase = Phase.RUNNING

    def __init__(self) -> None:
        self.timer = SharedTimer()
        self.sent: list[tuple[dict[str, Any], bool]] = []
        self.host: HandlerHost | None = None
        self.steps: asyncio.Queue[Step] = asyncio.Queue()
        self.outcomes: list[bool] = []
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.table = CallTable(self)

    @property
    def handler(self) -> HandlerHost | None:
        return self.host

    def post(self, step: Step) -> None:
        self.steps.put_nowait(step)

    async def wait_writable(self) -> None:
        await self.has_room.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        raise AssertionError("no handler of these tests has a fault")

    def origin(self) -> CallOrigin:
        return CallOrigin(peer=ClaimedPeer(PEER))

    def own_origin(self) -> CallOrigin:
        return self.origin()

    def time_limit(self, operation: str) -> float:
        return 20

    def messages_sent(self) -> int:
        return 0

    def replied(self) -> None: ...

    def served(self, seconds: float, succeeded: bool) -> None:
        self.outcomes.append(succeeded)

    async def send(self, payload: bytes, *, early: bool, metadata: CallMetadata | None = None) -> None:
        self.sent.append((decode_json(payload), early))

    def served_call(self) -> None:
        self.table.served()

    def item(self, call: str, value: Value) -> None:
        self.table.item(call, value)

    def answer(self, call: str, outcome: Return | TreatyError, *, silent: bool = False) -> None:
        self.table.answered(call, outcome, silent=silent)

    async def end(self, error: TreatyError | None) -> None:
        pass

    async def run(self) -> None:
        while True:
            await (await self.steps.get())()

    async def change(self) -> None:
        """Replace the handler by a new one, as after a repair."""
        if self.host is not None:
            await self.host.close()
        package = published().package
        handler = await InlineRuntime().open(package, "watcher", local="did:wba:watcher.example", peer=PEER)
        role = package.manifest.roles["watcher"]
        self.host = HandlerHost(handler, HandlerContext(ClaimedPeer(PEER), role, 10), Functions(), NullState(), self)
        await self.host.open()
        self.post(self.table.issue)

    async def received(self, **message: Any) -> None:
        """Give the handler a message of the peer."""
        host = self.host
        assert host is not None
        await host.received(encode_json(message))

    async def quiet(self) -> None:
        """Wait until every step has run."""
        for _ in range(20):
            await asyncio.sleep(0)

    def said(self) -> list[str]:
        return [f"{message['type']} {message['id']}" for message, _ in self.sent]


@asynccontextmanager
async def simulated() -> AsyncIterator[Simulated]:
    simulated = Simulated()
    running = asyncio.ensure_future(simulated.run())
    await simulated.change()
    try:
        yield simulated
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert simulated.host is not None
        await simulated.host.close()


async def test_one_call_at_a_time_has_room_and_passes_its_turn_on() -> None:
    async with simulated() as session:
        session.has_room.clear()
        calls = [asyncio.ensure_future(session.table.make("count", {})) for _ in range(3)]
        await session.quiet()
        calls[0].cancel()
        await session.quiet()
        assert session.said() == []
        session.has_room.set()
        await asyncio.sleep(0)  # the second one is woken
        session.has_room.clear()
        await session.quiet()
        assert session.said() == ["count 2"]
        session.has_room.set()
        await session.quiet()
        assert session.said() == ["count 2", "count 3"]
        for number, call in enumerate(calls[1:], 2):
            await session.received(type="end", id=str(number), value=number)
            assert await call == number


async def test_a_stream_that_has_begun_is_not_issued_again() -> None:
    async with simulated() as session:
        items = session.table.stream("watch", {})
        first = asyncio.ensure_future(anext(items))
        await session.quiet()
        await session.received(type="item", id="1", value=0)
        assert await first == 0
        await session.change()
        with pytest.raises(OperationError) as failure:
            await anext(items)
        assert failure.value.status == 503
        await session.quiet()
        assert session.said() == ["watch 1", "more 1"]
        assert session.outcomes == [True, False]


async def test_an_empty_stream_is_repeated_with_its_whole_window() -> None:
    async with simulated() as session:
        items = session.table.stream("watch", {})
        first = asyncio.ensure_future(anext(items))
        await session.quiet()
        await session.change()
        await session.quiet()
        assert session.said() == ["watch 1", "more 1"] * 2
        assert [message["count"] for message, _ in session.sent if message["type"] == "more"] == [WINDOW] * 2
        await session.received(type="item", id="1", value=0)
        assert await first == 0
        await items.aclose()


async def test_a_call_to_a_peer_that_is_lost_has_no_answer() -> None:
    async with simulated() as session:
        counting = asyncio.ensure_future(session.table.make("count", {}))
        await session.quiet()
        assert session.host is not None
        await session.host.peer_lost()
        with pytest.raises(OutcomeUnknown, match=r"^No answer came\. It is unknown whether count was done"):
            await counting
        assert (session.table.replies, session.outcomes) == (0, [False])


async def test_an_event_is_neither_repeated_nor_a_reply() -> None:
    async with simulated() as session:
        assert await session.table.make("note", {"text": "x"}) is None
        await session.change()
        await session.quiet()
        assert session.said() == ["note 1"]
        assert session.table.replies == 0
        counting = asyncio.ensure_future(session.table.make("count", {}))
        await session.quiet()
        await session.received(type="end", id="2", value=7)
        assert await counting == 7
        assert session.table.replies == 1


async def test_more_is_asked_for_when_half_of_the_window_was_taken() -> None:
    async with simulated() as session:
        items = session.table.stream("watch", {})
        first = asyncio.ensure_future(anext(items))
        await session.quiet()
        for number in range(WINDOW):
            await session.received(type="item", id="1", value=number)
        assert await first == 0
        await session.quiet()
        assert session.said() == ["watch 1", "more 1"]
        assert await anext(items) == 1
        await session.quiet()
        assert session.said() == ["watch 1", "more 1", "more 1"]
        assert session.sent[-1][0]["count"] == WINDOW // 2
        assert session.table.replies == 1
        await items.aclose()


async def test_an_abandoned_waiting_call_is_cancelled_later() -> None:
    async with simulated() as session:
        call = asyncio.ensure_future(session.table.make("count", {}))
        await session.quiet()
        session.phase = Phase.WAITING
        call.cancel()
        await session.quiet()
        assert session.said() == ["count 1"]
        session.phase = Phase.RUNNING
        await session.table.issue()
        await session.table.issue()
        await session.quiet()
        assert session.said() == ["count 1", "cancel 1"]


async def test_a_new_handler_gets_no_abandoned_call() -> None:
    async with simulated() as session:
        call = asyncio.ensure_future(session.table.make("count", {}))
        await session.quiet()
        session.phase = Phase.WAITING
        call.cancel()
        await session.quiet()
        session.phase = Phase.RUNNING
        await session.change()
        await session.quiet()
        assert session.said() == ["count 1"]


async def test_a_call_abandoned_before_its_handler_is_never_made() -> None:
    async with simulated() as session:
        session.phase = Phase.WAITING
        call = asyncio.ensure_future(session.table.make("count", {}))
        await session.quiet()
        call.cancel()
        await session.quiet()
        session.phase = Phase.RUNNING
        await session.table.issue()
        assert session.said() == []


async def test_an_answer_that_crosses_the_end_of_a_call_is_dropped() -> None:
    async with simulated() as session:
        call = asyncio.ensure_future(session.table.make("count", {}))
        await session.quiet()
        await session.received(type="end", id="1", value=7)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await session.quiet()
        assert session.said() == ["count 1"]  # the handler has answered: there is nothing to cancel
        items = session.table.stream("watch", {})
        first = asyncio.ensure_future(anext(items))
        await session.quiet()
        await session.received(type="item", id="2", value=0)
        await first
        closing = asyncio.ensure_future(items.aclose())
        await session.received(type="item", id="2", value=1)
        await session.received(type="end", id="2", value=None)
        await closing
        await session.quiet()
        assert "cancel 2" not in session.said()


async def test_a_stream_of_early_data_is_early_as_a_whole() -> None:
    async with simulated() as session:
        session.phase = Phase.EARLY
        items = session.table.stream("watch", {})
        first = asyncio.ensure_future(anext(items))
        note = asyncio.ensure_future(session.table.make("note", {}))
        await session.quiet()
        first.cancel()
        await session.quiet()
        assert [(message["type"], early) for message, early in session.sent] == [
            ("watch", True),
            ("more", True),
            ("note", False),
            ("cancel", True),
        ]
        assert await note is None
