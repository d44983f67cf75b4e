"""Streams, events and cancellation as two agents use them, over WebSockets: the pace, the ends, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import streaming
from connections import StallingConnection
from data_sharing import SHARING
from data_sharing import published as sharing
from meetings import MAX_AGE, Party, SimulatedProtocols, party
from streaming import FEED, URI, WINDOW, feeding, offer

from treaty_agent import Policy, Session
from treaty_agent.sessions import calls, invocations
from treaty_agent.sessions.interfaces import Capacity
from treaty_agent.sessions.operation_errors import OperationError, OutcomeUnknown
from treaty_agent.sessions.wire import CALL_ROOM
from treaty_agent.transport import memory
from treaty_anp.transcript import replay
from treaty_consensus.errors import Malformed, TooLarge, TreatyError
from treaty_io.errors import PeerUnavailable
from treaty_sandbox.passivation import Passivation
from treaty_sandbox.runtime import SandboxRuntime


@pytest.fixture(params=["code", "forms"], autouse=True)
def handler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The feed's handler: one with code, and the interpreter of message forms."""
    if request.param == "forms":
        monkeypatch.setattr(streaming, "published", streaming.declared)
    return str(request.param)


AHEAD = WINDOW + WINDOW // 2
"""Items beyond those that were taken: the window, and the half that is asked for when the other half was taken."""


@dataclass
class Feed:
    """The functions of a feed, and their traces. `made`: the items that a generator yielded. `closed`: their `finally` blocks."""

    made: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    notes: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self, size: int = 3, text: str = "", item: str = "") -> AsyncIterator[int | str]:
        try:
            for number in range(size):
                self.made += 1
                yield item or number
            if text == "missing":
                raise OperationError(404, "There is no such feed.")
            if text == "raises":
                raise ValueError("a secret of the feed")
            if text == "wrong":
                yield {}  # type: ignore[misc]
            if text == "silent":
                await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)  # as a database would be closed
            self.closed.set()

    async def count(self, text: str = "") -> int:
        if text != "for ever":
            return 7
        try:
            await asyncio.sleep(3600)
        finally:
            self.cancelled.set()
        return 0

    async def note(self, text: str = "") -> str:
        await self.notes.put(text)
        if text == "fails":
            raise ValueError("a secret of the feed")
        return "dropped"


def provide(party: Party, feed: Feed) -> None:
    """Register the functions with an agent."""

    functions: list[Callable[..., Any]] = [feed.watch, feed.count, feed.note]
    for function in functions:
        party.agent.provides(URI)(function)


@asynccontextmanager
async def meeting(
    home: Path, *, flow: bool = False, feed: Feed | None = None, **options: Any
) -> AsyncIterator[tuple[Session, Feed]]:
    """A session of two agents, and the feed that one of them provides. `flow`: in the flow profile."""
    feed = feed or Feed()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(60))  # an event that does not come fails the test
        server, watcher = feeding("feed", home, **options), feeding("watcher", home, **options)
        for side in (server, watcher):
            await stack.enter_async_context(side.agent)
        provide(server, feed)
        if flow:
            for side in (server, watcher):
                side.agent.flow.registry.add(offer())
        port = await stack.enter_async_context(server.agent.listen("127.0.0.1", 0))
        wanted = {"protocols": [FEED], "did": "did:wba:feed.example"} if flow else {"protocols": [URI]}
        session = await stack.enter_async_context(watcher.agent.connect(f"ws://127.0.0.1:{port}", **wanted))
        assert session.profile == ("flow" if flow else "hello")
        yield session, feed


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something that happens elsewhere has happened."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


async def listed(session: Session, **arguments: Any) -> list[Any]:
    return [item async for item in session.stream("watch", arguments)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("flow", [False, True])
async def test_a_stream_an_event_and_a_request_beside_each_other(tmp_path: Path, flow: bool) -> None:
    async with meeting(tmp_path, flow=flow) as (session, feed):
        streams = await asyncio.gather(listed(session, size=0), listed(session, size=10), listed(session, size=100))
        assert list(streams) == [[], list(range(10)), list(range(100))]
        assert await session.call("count") == 7
        assert await session.call("note", text="hello") is None
        assert await feed.notes.get() == "hello"
        assert await session.call("note", text="fails") is None  # an event has no answer, not even a failure
        assert await session.call("count") == 7


@pytest.mark.parametrize("idle", [0.01, 30.0])
async def test_a_resting_session_streams_in_the_sandbox(tmp_path: Path, idle: float) -> None:
    sandbox = SandboxRuntime(tmp_path, passivation=Passivation(idle=idle))
    try:
        async with meeting(tmp_path, sandbox=sandbox) as (session, _):
            items_read = []
            async with session.stream("watch", size=8) as items:
                async for item in items:
                    items_read.append(item)
                    if idle < 1 and item < 3:
                        await until(lambda: sandbox.workers == 0)
            assert items_read == list(range(8))
            assert await session.call("count") == 7
    finally:
        await sandbox.close()


@pytest.mark.sample(2)
@pytest.mark.parametrize("flow", [False, True])
async def test_a_generator_of_a_million_items_is_not_run_ahead(tmp_path: Path, flow: bool) -> None:
    async with meeting(tmp_path, flow=flow) as (session, feed):
        async with session.stream("watch", size=1_000_000) as items:
            for number in range(1, 41):
                assert await anext(items) == number - 1
                await session.call("count")  # the other side had the time to make more
                assert feed.made <= number + AHEAD
        await feed.closed.wait()
        assert feed.made <= 40 + AHEAD


async def test_a_slow_reader_stops_the_generator(tmp_path: Path) -> None:
    server, watcher, feed = feeding("feed", tmp_path), feeding("watcher", tmp_path), Feed()
    provide(server, feed)
    near, far = memory.pair()
    gate = StallingConnection(far)
    async with server.agent, watcher.agent:
        await server.agent.prepare()
        serving = asyncio.ensure_future(server.agent.accept(gate))
        async with watcher.agent.connect_over(near, protocols=[URI]) as session:
            gate.shut()
            items = session.stream("watch", size=50, item="x" * (CALL_ROOM + 1))
            first = asyncio.ensure_future(anext(items))
            assert await session.call("note", text="after the stream began") is None
            await feed.notes.get()
            await until(lambda: feed.made >= 2)
            await session.call("note", text="later")
            await feed.notes.get()
            assert feed.made == 2  # one waits in the queue, and one for room; four are asked for
            gate.open()
            await first
            await items.aclose()
        await serving


@pytest.mark.sample(1)
@pytest.mark.parametrize("flow", [False, True])
async def test_whoever_leaves_a_stream_closes_its_generator(tmp_path: Path, flow: bool) -> None:
    async with meeting(tmp_path, flow=flow) as (session, feed):
        async with session.stream("watch", size=100) as items:
            async for _ in items:
                break
        await feed.closed.wait()

        feed.closed.clear()
        items = session.stream("watch", size=100)
        await anext(items)
        del items
        gc.collect()
        await feed.closed.wait()

        feed.closed.clear()
        feed.made = 0
        waiting = asyncio.ensure_future(listed(session, size=1, text="silent"))
        await until(lambda: feed.made > 0)
        waiting.cancel()
        await feed.closed.wait()
        assert await session.call("count") == 7


@pytest.mark.parametrize("flow", [False, True])
async def test_a_cancelled_call_stops_its_function(tmp_path: Path, flow: bool) -> None:
    async with meeting(tmp_path, flow=flow) as (session, feed):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await session.call("count", text="for ever")
        await feed.cancelled.wait()
        assert await session.call("count") == 7


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("missing", 404, "There is no such feed."),
        ("raises", 500, "The other side's business logic failed."),
        ("wrong", 500, "The other side's business logic failed."),
    ],
)
async def test_a_generator_that_fails_after_some_items(tmp_path: Path, text: str, status: int, message: str) -> None:
    async with meeting(tmp_path) as (session, feed):
        items = session.stream("watch", text=text)
        items_read = []
        with pytest.raises(OperationError) as failure:
            async for item in items:
                items_read.append(item)
        assert items_read == [0, 1, 2]
        assert failure.value.status == status
        assert re.sub(r" Its log has trace [0-9a-f]{32}\.$", "", failure.value.message) == message
        assert feed.closed.is_set()
        with pytest.raises(StopAsyncIteration):
            await anext(items)
        assert await session.call("count") == 7


async def test_a_silent_generator_is_closed_with_unknown_outcome(tmp_path: Path, handler: str) -> None:
    async with meeting(tmp_path, operation={"timeout": 1}) as (session, feed):
        # The handler with code has no timer of its own, so its failure is the 504 that came over the wire.
        with pytest.raises((OutcomeUnknown, OperationError), match="came within 1 second") as failure:
            await listed(session, text="silent")
        # On a busy machine the other side's second may end first, too.
        assert failure.value.code in ("operation.504", *(["session.outcome-unknown"] if handler == "forms" else []))
        await asyncio.wait_for(feed.closed.wait(), 10)  # the other side's second began later


async def test_a_caller_may_pause_longer_than_the_operation(tmp_path: Path) -> None:
    async with meeting(tmp_path, operation={"timeout": 1}) as (session, _), session.stream("watch", size=WINDOW + 2) as items:
        assert await anext(items) == 0
        await asyncio.sleep(1.5)  # nothing is owed meanwhile
        assert [item async for item in items] == list(range(1, WINDOW + 2))


async def test_the_wrong_kind_of_call_changes_nothing(tmp_path: Path) -> None:
    async with meeting(tmp_path) as (session, feed):
        with pytest.raises(Malformed) as refused:
            await session.call("watch")
        assert (refused.value.code, "session.stream" in refused.value.fix) == ("session.operation", True)
        for operation in ("count", "note"):
            with pytest.raises(Malformed) as refused:
                await anext(session.stream(operation, text="x"))
            assert (refused.value.code, "session.call" in refused.value.fix) == ("session.operation", True)
        with pytest.raises(TreatyError) as unknown:
            await anext(session.stream("unknown"))
        assert unknown.value.code == "session.operation"
        assert (feed.made, feed.notes.qsize()) == (0, 0)
        assert await listed(session, size=2) == [0, 1]


async def test_a_session_that_ends_ends_its_streams_at_both_sides(tmp_path: Path) -> None:
    async with meeting(tmp_path) as (session, feed):
        items = session.stream("watch", size=1_000)
        await anext(items)
        await session.close()
        with pytest.raises(TreatyError) as ended:
            while True:
                await anext(items)
        assert ended.value.code == "session.closed"
        await feed.closed.wait()
        with pytest.raises(TreatyError):
            session.stream("watch")


async def test_a_stream_that_begins_after_the_session_has_ended(tmp_path: Path) -> None:
    async with meeting(tmp_path) as (session, _):
        items = session.stream("watch")
        await session.close()
        with pytest.raises(TreatyError) as ended:
            await anext(items)
        assert ended.value.code == "session.closed"


async def test_a_feed_that_leaves_in_the_middle(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server, watcher = feeding("feed", tmp_path), feeding("watcher", tmp_path)
        feed = Feed()
        provide(server, feed)
        for side in (server, watcher):
            await stack.enter_async_context(side.agent)
        listening = AsyncExitStack()
        port = await listening.enter_async_context(server.agent.listen("127.0.0.1", 0))
        session = await stack.enter_async_context(watcher.agent.connect(f"ws://127.0.0.1:{port}", protocols=[URI]))
        items = session.stream("watch", size=1_000)
        await anext(items)
        await listening.aclose()
        assert feed.closed.is_set()  # before the port is closed for good
        with pytest.raises(TreatyError):
            while True:
                await anext(items)


async def test_each_stream_that_one_loss_breaks_names_its_own_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "treaty_agent.sessions.middleware"):
        async with meeting(tmp_path) as (session, _):
            streams = [session.stream("watch", size=1_000) for _ in range(3)]
            for items in streams[:2]:
                await anext(items)
            await session.close()
            broken = []
            for items in streams:
                with pytest.raises(PeerUnavailable) as ended:
                    while True:
                        await anext(items)
                broken.append(ended.value)
    traces = {error.trace_id for error in broken} - {""}
    assert (len(traces), session.error and session.error.trace_id) == (3, ""), "the error of the session is of no call"
    assert traces == set(re.findall(r"call out watch .* session.closed, .* trace=(\w+)", caplog.text))


@pytest.mark.parametrize("lost", ["watcher", "feed"])
async def test_a_connection_that_is_cut_in_the_middle(tmp_path: Path, lost: str) -> None:
    server, watcher, feed = feeding("feed", tmp_path), feeding("watcher", tmp_path), Feed()
    provide(server, feed)
    near, far = memory.pair()
    async with server.agent, watcher.agent:
        await server.agent.prepare()
        serving = asyncio.ensure_future(server.agent.accept(far))
        async with watcher.agent.connect_over(near, protocols=[URI]) as session:
            items, call = session.stream("watch", size=1_000), asyncio.ensure_future(session.call("count", text="for ever"))
            await anext(items)
            await (near if lost == "watcher" else far).close()  # below the session, which says nothing
            await serving
            assert feed.closed.is_set()
            assert feed.cancelled.is_set()
            with pytest.raises(TreatyError):
                while True:
                    await anext(items)
            with pytest.raises(TreatyError):
                await call


async def test_an_endless_finally_block_does_not_hold_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocations, "CANCELLING_TIME", 0.1)
    released, closed = asyncio.Event(), asyncio.Event()

    class Stubborn(Feed):
        async def watch(self, size: int = 3, text: str = "", item: str = "") -> AsyncIterator[int | str]:
            try:
                yield 0
                await asyncio.sleep(3600)
            finally:
                await released.wait()
                closed.set()

    async with meeting(tmp_path, feed=Stubborn()) as (session, _):
        items = session.stream("watch")
        await anext(items)
        await session.call("count")  # the generator runs on, because more is asked for
    assert not closed.is_set()
    released.set()
    await closed.wait()


async def test_items_that_wait_hold_a_bounded_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_HELD", 3_000)
    async with meeting(tmp_path) as (session, feed):
        items = session.stream("watch", size=1_000, item="x" * 1_000)
        assert len(await anext(items)) == 1_000
        await feed_has_made(feed, WINDOW, session)
        with pytest.raises(TooLarge) as refused:
            while True:
                await anext(items)
        assert refused.value.code == "session.outbox-full"
        await feed.closed.wait()
        for _ in range(3):  # the bytes are free again
            assert len(await listed(session, size=2, item="x" * 1_000)) == 2


async def feed_has_made(feed: Feed, count: int, session: Session) -> None:
    while feed.made < count:
        await session.call("count")
    await session.call("count")


async def test_streams_at_once_are_bounded_and_leave_room_for_requests(tmp_path: Path) -> None:
    async with meeting(tmp_path, capacity=Capacity(streams=20)) as (session, _):
        streams = [session.stream("watch", size=1_000) for _ in range(21)]
        outcomes = await asyncio.gather(*map(anext, streams), return_exceptions=True)
        assert outcomes[:20] == [0] * 20
        assert isinstance(outcomes[20], OperationError)
        assert outcomes[20].status == 503
        assert await session.call("count") == 7
        await streams[0].aclose()
        assert await listed(session) == [0, 1, 2]


@pytest.mark.parametrize("handler", ["code"], indirect=True)  # the interpreter does not do this
@pytest.mark.parametrize(("text", "code"), [("flood", "handler.failed"), ("late", "handler.failed")])
async def test_an_unrequested_item_ends_the_handlers_session(tmp_path: Path, text: str, code: str) -> None:
    async with meeting(tmp_path) as (session, _):
        waiting = session.stream("watch")
        await anext(waiting)
        items = session.stream("watch", text=text, size=1_000)
        if text == "late":
            await anext(items)
            await items.aclose()
        with pytest.raises(TreatyError) as refused:
            await anext(items if text == "flood" else session.stream("watch", text="silent", size=0))
        # The other call was sent, so that its outcome is not known.
        assert code in (refused.value.code, *refused.value.message.replace("(", ")").split(")"))
        assert session.is_over


async def test_functions_of_the_wrong_kind_are_refused_at_the_start(tmp_path: Path) -> None:
    async def watch() -> int:
        return 1

    async def count() -> AsyncIterator[int]:
        yield 1

    async def note(text: str = "") -> None: ...

    side = feeding("feed", tmp_path)
    async with side.agent:
        for function in (watch, count, note):
            side.agent.provides(URI)(function)
        with pytest.raises(Malformed) as refused:
            await side.agent.prepare()
        assert refused.value.code == "agent.function"
        assert "watch, count" in refused.value.message


async def test_a_yielding_function_cannot_be_offered(tmp_path: Path) -> None:
    side = feeding("feed", tmp_path)
    async with side.agent:
        with pytest.raises(Malformed) as refused:
            side.agent.offers(Feed().watch)
        assert refused.value.code == "agent.function"
        assert side.agent.context.served.offers.capabilities == ()


@pytest.mark.parametrize("flow", [False, True])
async def test_the_transcript_of_a_stream_replays(tmp_path: Path, flow: bool) -> None:
    async with meeting(tmp_path, flow=flow, transcripts=tmp_path / "transcripts") as (session, _):
        assert await listed(session, size=9) == list(range(9))
        assert await session.call("note", text="hello") is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await session.call("count", text="for ever")
        recorded = session.transcript
    assert replay(recorded) > 10


async def test_a_resumed_session_begins_with_a_stream(tmp_path: Path) -> None:
    feed = Feed()
    async with AsyncExitStack() as stack:
        server, watcher = feeding("feed", tmp_path), feeding("watcher", tmp_path)
        for side in (server, watcher):
            await stack.enter_async_context(side.agent)
        provide(server, feed)
        port = await stack.enter_async_context(server.agent.listen("127.0.0.1", 0))
        for resumed in (False, True):
            async with watcher.agent.connect(f"ws://127.0.0.1:{port}", protocols=[URI]) as session:
                assert await listed(session, size=6) == list(range(6))
                assert session.resumed is resumed


async def test_an_interface_1_handler_outlives_a_cancelled_call(tmp_path: Path) -> None:
    protocol = sharing(SHARING, interface=1)
    policy = Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, encryption="off")
    server, customer = (
        party(name, tmp_path, protocols=SimulatedProtocols({protocol.uri: protocol}), policy=policy)
        for name in ("server", "customer")
    )
    began, may_end = asyncio.Event(), asyncio.Event()

    @server.agent.provides(protocol.uri)
    async def query(query: str) -> str:
        if query == "slow":
            began.set()
            await may_end.wait()
        return query

    assert protocol.package.manifest.interface == 1
    async with (
        server.agent,
        customer.agent,
        server.agent.listen("127.0.0.1", 0) as port,
        customer.agent.connect(f"ws://127.0.0.1:{port}", protocols=[protocol.uri]) as session,
    ):
        call = asyncio.ensure_future(session.call("query", query="slow"))
        await began.wait()
        call.cancel()
        later = asyncio.ensure_future(session.call("query", query="quick"))
        may_end.set()
        # This handler tells answers apart by their order. The first one goes to the call that was given up, and is dropped.
        assert (await later)["rows"] == "quick"
