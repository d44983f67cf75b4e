"""Connecting again: what is tried again, what is said again, and when it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from treaty_agent.testing.virtual_time import run
from treaty_agent.transport import memory, reconnect
from treaty_agent.transport.connection import Backoff, Connection, ConnectionFailed, ConnectionLost
from treaty_agent.transport.reconnect import MAX_REPEATED, ReconnectingConnection
from treaty_consensus.errors import Malformed
from treaty_io.network.hosts import Network

CERTAIN = Backoff(attempts=4, first=1.0, most=3.0, chance=lambda: 1.0)


class Server:
    """Answers connecting: by `plan`, a failure or a connection each time; afterwards always by a connection."""

    def __init__(self, *plan: ConnectionFailed | None) -> None:
        self.plan = list(plan)
        self.ends: list[Connection] = []
        self.times: list[float] = []

    async def connect(self) -> Connection:
        self.times.append(asyncio.get_running_loop().time())
        failure = self.plan.pop(0) if self.plan else None
        if failure is not None:
            raise failure
        near, far = memory.pair()
        self.ends.append(far)
        return near

    async def connection(self, backoff: Backoff = CERTAIN) -> ReconnectingConnection:
        made = ReconnectingConnection(self.connect, backoff)
        await made.open()
        return made


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
    await connection.send("hello")
    await connection.send(b"\x40early")
    listening = asyncio.create_task(connection.receive())
    await asyncio.sleep(0)
    await server.ends[0].close()
    await asyncio.sleep(5)
    far = server.ends[1]
    assert [await far.receive(), await far.receive()] == ["hello", b"\x40early"]
    await far.send("hello to you")
    assert await listening == "hello to you"


@simulated
async def test_a_message_that_meets_a_broken_connection_is_said_once_on_the_next() -> None:
    server = Server()
    connection = await server.connection()
    await server.ends[0].close()
    listening = asyncio.create_task(connection.receive())
    await connection.send("hello")
    far = server.ends[1]
    assert await far.receive() == "hello"
    await far.send("hello to you")
    assert await listening == "hello to you"
    await far.close()
    with pytest.raises(ConnectionLost):
        await far.receive()
    assert len(server.ends) == 2


@simulated
async def test_after_an_answer_a_lost_connection_is_lost() -> None:
    server = Server()
    connection = await server.connection()
    await connection.send("hello")
    await server.ends[0].send("hello to you")
    await connection.receive()
    await server.ends[0].close()
    for attempt in (connection.receive(), connection.send(b"\x40again")):
        with pytest.raises(ConnectionLost):
            await attempt
    assert len(server.ends) == 1


@simulated
async def test_a_reason_is_an_answer() -> None:
    server = Server()
    connection = await server.connection()
    await connection.send("hello")
    await server.ends[0].close("hello.version")
    with pytest.raises(ConnectionLost) as lost:
        await connection.receive()
    assert lost.value.reason == "hello.version"
    assert len(server.ends) == 1


@simulated
async def test_more_than_is_kept_is_not_said_again() -> None:
    server = Server()
    connection = await server.connection()
    await connection.send(bytes(MAX_REPEATED))
    await connection.send(b"x")
    await server.ends[0].close()
    with pytest.raises(ConnectionLost):
        await connection.receive()
    assert len(server.ends) == 1


@simulated
async def test_reconnecting_is_given_up_with_what_it_began_with() -> None:
    server = Server(None, *[passing()] * 9)
    connection = await server.connection()
    await connection.send("hello")
    await server.ends[0].close()
    with pytest.raises(ConnectionLost):
        await connection.receive()
    assert len(server.times) <= CERTAIN.attempts + 1


@simulated
async def test_one_that_was_closed_stays_closed() -> None:
    server = Server()
    connection = await server.connection()
    await connection.send("hello")
    listening = asyncio.create_task(connection.receive())
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(ConnectionLost):
        await listening
    with pytest.raises(ConnectionLost):
        await connection.send("more")
    assert len(server.ends) == 1


@pytest.mark.parametrize("url", ["ftp://x/", "x", "ws:///nowhere", "http://user@x/", "http://x/?a=b"])
async def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Malformed):
        await reconnect.connect(url, Network())
