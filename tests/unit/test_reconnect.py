"""Connecting again: what is tried again, what is said again, and when it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from treaty_agent.testing.virtual_time import run
from treaty_agent.transport import memory, reconnect
from treaty_agent.transport.connection import Backoff, Connection, ConnectionFailed, ConnectionLost, next_message
from treaty_agent.transport.reconnect import MAX_REPEATED, ReconnectingConnection
from treaty_consensus.errors import Malformed
from treaty_io.network.hosts import Network

CERTAIN = Backoff(attempts=4, first=1.0, most=3.0, chance=lambda: 1.0)


class Server:
    """Answers connecting: by `plan`, a failure or a connection each time; afterwards always by a connection.

    A planned `ConnectionLost` is a connection that breaks at once.
    """

    def __init__(self, *plan: Exception | None) -> None:
        self.plan = list(plan)
        self.ends: list[Connection] = []
        self.times: list[float] = []

    async def connect(self) -> Connection:
        self.times.append(asyncio.get_running_loop().time())
        failure = self.plan.pop(0) if self.plan else None
        if failure is not None and not isinstance(failure, ConnectionLost):
            raise failure
        near, far = memory.pair()
        self.ends.append(far)
        if failure is not None:
            await far.close()
        return near

    async def connection(self, backoff: Backoff = CERTAIN) -> ReconnectingConnection:
        connection = ReconnectingConnection(self.connect, backoff)
        await connection.open()
        return connection


def passing() -> ConnectionFailed:
    return ConnectionFailed("ws://x", again=True)


def simulated(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def wrapper() -> None:
        async def main() -> None:
            await test()

        run(main())

    wrapper.__name__ = test.__name__
    return wrapper


@simulated
async def test_what_may_pass_is_tried_again_later_and_later() -> None:
    server = Server(passing(), passing(), passing())
    begun = asyncio.get_running_loop().time()
    await server.connection()
    assert [round(time - begun) for time in server.times] == [0, 1, 3, 6]


@simulated
async def test_attempts_are_bounded() -> None:
    server = Server(*[passing()] * 9)
    with pytest.raises(ConnectionFailed):
        await server.connection()
    assert len(server.times) == CERTAIN.attempts


@simulated
async def test_what_will_not_pass_is_not_tried_again() -> None:
    server = Server(ConnectionFailed("ws://x", again=False))
    with pytest.raises(ConnectionFailed):
        await server.connection()
    assert len(server.times) == 1


def test_a_pause_is_a_random_part_of_the_time_that_grows() -> None:
    async def main() -> None:
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        backoff = Backoff(attempts=6, first=1, most=5, chance=lambda: 0.5, sleep=sleep)
        assert [await backoff.pause(failures) for failures in range(1, 7)] == [True] * 5 + [False]
        assert pauses == [0.5, 1, 2, 2.5, 2.5]

    asyncio.run(main())


@simulated
async def test_what_was_said_before_an_answer_is_said_again() -> None:
    server = Server()
    connection = await server.connection()
    connection.send("hello")
    connection.send(b"\x40early")
    listening = asyncio.create_task(next_message(connection))
    await asyncio.sleep(0)
    await server.ends[0].close()
    await asyncio.sleep(5)
    far = server.ends[1]
    assert [await next_message(far), await next_message(far)] == ["hello", b"\x40early"]
    far.send("hello to you")
    assert await listening == "hello to you"


@simulated
async def test_what_is_said_while_it_connects_again_waits_and_counts() -> None:
    server = Server(None, passing())
    connection = await server.connection()
    connection.send("hello")
    woken = asyncio.Event()
    connection.watch(woken.set)
    await server.ends[0].close()
    assert woken.is_set()
    assert connection.receive() is None
    for message in (b"\x40one", b"\x40two"):
        connection.send(message)
        await asyncio.sleep(0.5)
    assert connection.backlog == len("hello") + 2 * 4
    assert connection.receive() is None
    assert len(server.ends) == 1
    woken.clear()
    await woken.wait()
    far = server.ends[1]
    connection.send(b"\x40three")
    assert connection.backlog == len("hello") + 2 * 4 + 6  # of the new connection, whose other end has read nothing
    assert [await next_message(far) for _ in range(4)] == ["hello", b"\x40one", b"\x40two", b"\x40three"]
    assert connection.backlog == 0
    woken.clear()
    far.send("hello to you")
    assert woken.is_set()
    assert connection.receive() == "hello to you"
    await asyncio.sleep(60)
    assert len(server.ends) == 2


@simulated
async def test_a_message_lost_with_its_connection_is_repeated_once() -> None:
    server = Server()
    connection = await server.connection()
    await server.ends[0].close()
    woken = asyncio.Event()
    connection.watch(woken.set)
    connection.send("hello")
    assert woken.is_set()  # only `receive` connects again
    listening = asyncio.create_task(next_message(connection))
    await asyncio.sleep(5)
    far = server.ends[1]
    assert await next_message(far) == "hello"
    far.send("hello to you")
    assert await listening == "hello to you"
    await far.close()
    with pytest.raises(ConnectionLost):
        await next_message(far)
    assert len(server.ends) == 2


@simulated
async def test_an_answer_that_arrived_before_the_loss_is_the_answer() -> None:
    server = Server()
    connection = await server.connection()
    connection.send("hello")
    server.ends[0].send("hello to you")
    await server.ends[0].close()
    connection.send(b"\x40late")
    assert await next_message(connection) == "hello to you"
    with pytest.raises(ConnectionLost):
        await next_message(connection)
    assert len(server.ends) == 1


@simulated
async def test_a_new_connection_that_breaks_at_once_is_replaced() -> None:
    server = Server(None, ConnectionLost())
    connection = await server.connection()
    connection.send("hello")
    await server.ends[0].close()
    listening = asyncio.create_task(next_message(connection))
    await asyncio.sleep(10)
    assert len(server.ends) == 3
    assert await next_message(server.ends[2]) == "hello"
    server.ends[2].send("hello to you")
    assert await listening == "hello to you"


@simulated
async def test_after_an_answer_a_lost_connection_is_lost() -> None:
    server = Server()
    connection = await server.connection()
    connection.send("hello")
    server.ends[0].send("hello to you")
    await next_message(connection)
    await server.ends[0].close()
    with pytest.raises(ConnectionLost):
        connection.receive()
    with pytest.raises(ConnectionLost):
        connection.send(b"\x40again")
    assert len(server.ends) == 1


@simulated
async def test_a_reason_is_an_answer() -> None:
    server = Server()
    connection = await server.connection()
    connection.send("hello")
    await server.ends[0].close("hello.version")
    for _ in range(2):
        with pytest.raises(ConnectionLost) as lost:
            connection.send("hello")
        assert lost.value.reason == "hello.version"
        with pytest.raises(ConnectionLost) as lost:
            await next_message(connection)
        assert lost.value.reason == "hello.version"
    assert len(server.ends) == 1


@simulated
async def test_one_that_stops_may_have_a_successor() -> None:
    server = Server()
    connection = await server.connection()
    connection.send("hello")
    await server.ends[0].close("session.draining 0")
    assert connection.receive() is None
    await asyncio.sleep(5)
    assert await next_message(server.ends[1]) == "hello"


@simulated
async def test_more_than_is_kept_is_not_said_again() -> None:
    server = Server()
    connection = await server.connection()
    connection.send(bytes(MAX_REPEATED))
    connection.send(b"x")
    await server.ends[0].close()
    with pytest.raises(ConnectionLost):
        await next_message(connection)
    assert len(server.ends) == 1


@simulated
async def test_what_is_said_while_it_connects_again_is_bounded_too() -> None:
    server = Server()
    connection = await server.connection()
    connection.send("hello")
    await server.ends[0].close()
    listening = asyncio.create_task(next_message(connection))
    await asyncio.sleep(0.5)
    connection.send(bytes(MAX_REPEATED - len("hello")))
    assert connection.backlog == MAX_REPEATED
    connection.send(b"x")
    assert connection.backlog == 0
    with pytest.raises(ConnectionLost):
        await listening
    with pytest.raises(ConnectionLost):
        connection.send(b"y")
    await asyncio.sleep(60)
    assert len(server.ends) == 1


@simulated
async def test_reconnecting_is_given_up_with_what_it_began_with() -> None:
    server = Server(None, *[passing()] * 9)
    connection = await server.connection()
    connection.send("hello")
    await server.ends[0].close()
    for _ in range(2):
        with pytest.raises(ConnectionLost) as lost:
            await next_message(connection)
        assert isinstance(lost.value.__cause__, ConnectionFailed)
    with pytest.raises(ConnectionLost):
        connection.send(b"\x40again")
    await asyncio.sleep(60)
    assert len(server.times) <= CERTAIN.attempts + 1


@simulated
async def test_an_unexpected_failure_to_connect_is_not_silent() -> None:
    server = Server(None, RuntimeError("broken"))
    connection = await server.connection()
    await server.ends[0].close()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await next_message(connection)


@simulated
async def test_one_that_was_closed_stays_closed() -> None:
    server = Server()
    connection = await server.connection()
    connection.send("hello")
    listening = asyncio.create_task(next_message(connection))
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(ConnectionLost):
        await listening
    with pytest.raises(ConnectionLost):
        connection.send("more")
    await connection.close("again")
    assert len(server.ends) == 1


@simulated
async def test_a_reconnection_closed_meanwhile_opens_nothing() -> None:
    server = Server()
    connection = await server.connection()
    connection.send("hello")
    listening = asyncio.create_task(next_message(connection))
    await server.ends[0].close()
    await asyncio.sleep(0.5)
    begun = asyncio.all_tasks() - {asyncio.current_task(), listening}
    assert begun
    await connection.close("session.idle")
    assert all(task.done() for task in begun)
    with pytest.raises(ConnectionLost):
        await listening
    with pytest.raises(ConnectionLost):
        connection.send("more")
    assert connection.backlog == 0
    await asyncio.sleep(60)
    assert len(server.ends) == 1


@simulated
async def test_it_connects_again_in_the_context_of_its_maker() -> None:
    trace = ContextVar("trace", default="")
    traces: list[str] = []
    server = Server()
    connect = server.connect

    async def noting() -> Connection:
        traces.append(trace.get())
        return await connect()

    token = trace.set("session")
    connection = ReconnectingConnection(noting, CERTAIN)
    await connection.open()
    trace.reset(token)
    await server.ends[0].close()
    assert connection.receive() is None
    await asyncio.sleep(5)
    assert traces == ["session"] * 2


@pytest.mark.parametrize("url", ["ftp://x/", "x", "ws:///nowhere", "http://user@x/", "http://x/?a=b"])
async def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Malformed):
        await reconnect.connect(url, Network())
