"""The wire of a session: order, room, and the end of those who do not read."""

from __future__ import annotations

import asyncio

import pytest

from treaty_agent.sessions.wire import CALL_ROOM, MAX_BACKLOG, READ_ROOM, Wire
from treaty_agent.testing.virtual_time import run
from treaty_agent.transport import memory
from treaty_agent.transport.connection import Connection, ConnectionLost, next_message
from treaty_anp.frame import MAX_PAYLOAD
from treaty_consensus.errors import Unavailable

PATIENCE = 30
CHUNK = bytes(CALL_ROOM)


class Case:
    """A wire on one end of a pair, and how often it was woken."""

    def __init__(self) -> None:
        self.near, self.far = memory.pair()
        self.woken = 0
        self.wire = Wire(self.near, self._wake, patience=PATIENCE)
        self.wire.start()

    def _wake(self) -> None:
        self.woken += 1


async def read(connection: Connection, count: int) -> list[str | bytes]:
    return [await next_message(connection) for _ in range(count)]


def test_messages_leave_at_once_and_in_order() -> None:
    async def main() -> None:
        case = Case()
        messages: list[str | bytes] = [str(number) for number in range(100)]
        for message in messages:
            case.wire.send(message)
        assert [case.far.receive() for _ in messages] == messages
        assert (case.wire.sent, case.wire.backlog) == (100, 0)

    run(main())


def test_only_a_peer_that_takes_nothing_is_given_up() -> None:
    async def main() -> None:
        case = Case()
        for _ in range(4):
            case.wire.send(CHUNK)
        for _ in range(2):
            await asyncio.sleep(PATIENCE - 1)
            case.wire.check()
            case.far.receive()
        await asyncio.sleep(PATIENCE - 1)
        case.wire.check()
        assert case.wire.due == asyncio.get_running_loop().time() + 1
        await asyncio.sleep(2)
        with pytest.raises(Unavailable) as slow:
            case.wire.check()
        assert slow.value.code == "session.slow-peer"

    run(main())


def test_what_holds_nobody_up_may_wait_for_any_time() -> None:
    async def main() -> None:
        case = Case()
        case.wire.send(CHUNK)
        await asyncio.sleep(100 * PATIENCE)
        case.wire.check()
        assert case.far.receive() == CHUNK

    run(main())


def test_a_peer_that_asks_without_reading_costs_bounded_memory() -> None:
    async def main() -> None:
        case = Case()
        with pytest.raises(Unavailable) as refusal:
            for _ in range(MAX_BACKLOG // MAX_PAYLOAD + 2):
                case.wire.send(bytes(MAX_PAYLOAD))
        assert refusal.value.code == "session.slow-peer"
        assert case.wire.backlog <= MAX_BACKLOG + MAX_PAYLOAD

    run(main())


def test_callers_and_reading_wait_for_room() -> None:
    async def main() -> None:
        case = Case()
        case.far.send("its first message")
        assert case.wire.receive() == "its first message"
        for _ in range(READ_ROOM // CALL_ROOM):
            case.wire.send(CHUNK)
        waiting = asyncio.create_task(case.wire.wait_writable())
        await asyncio.sleep(1)
        assert not waiting.done()
        assert case.wire.may_read
        case.wire.send(CHUNK)
        assert not case.wire.may_read
        before = case.woken
        await read(case.far, READ_ROOM // CALL_ROOM)
        await waiting
        assert case.wire.may_read
        assert case.woken > before

    run(main())


def test_early_data_of_any_size_let_the_peers_hello_in() -> None:
    async def main() -> None:
        case = Case()
        for _ in range(2 * READ_ROOM // CALL_ROOM):
            case.wire.send(CHUNK)
        assert case.wire.may_read
        case.far.send("hello")
        assert case.wire.receive() == "hello"
        assert not case.wire.may_read

    run(main())


def test_room_wakes_as_many_waiters_as_fit() -> None:
    async def main() -> None:
        case = Case()
        largest = 0

        async def say() -> None:
            nonlocal largest
            await case.wire.wait_writable()
            case.wire.send(CHUNK)
            largest = max(largest, case.wire.backlog)

        sends = [asyncio.create_task(say()) for _ in range(100)]
        await asyncio.sleep(1)
        await asyncio.gather(read(case.far, 100), *sends)
        assert largest <= 2 * CALL_ROOM

    run(main())


def test_a_loss_follows_earlier_messages_and_frees_callers() -> None:
    async def main() -> None:
        case = Case()
        case.wire.send(CHUNK + b"x")
        waiting = asyncio.create_task(case.wire.wait_writable())
        await asyncio.sleep(1)
        case.far.send("the last word")
        await case.far.close("why")
        case.wire.send("never arrives")
        assert case.wire.is_lost
        assert case.wire.receive() == "the last word"
        with pytest.raises(ConnectionLost) as lost:
            case.wire.receive()
        assert (lost.value.reason, case.wire.received) == ("why", 1)
        await waiting

    run(main())


def test_who_takes_the_connection_over_gets_the_next_message() -> None:
    async def main() -> None:
        case = Case()
        case.wire.release()
        case.far.send("for the next owner")
        assert case.woken == 0
        assert await next_message(case.near) == "for the next owner"

    run(main())
