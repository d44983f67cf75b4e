"""The outbox: order, room, and the end of those who do not read."""

from __future__ import annotations

import asyncio

import pytest
from treaty_agent.transport.outbox import CALL_ROOM, MAX_BACKLOG, READ_ROOM, Outbox

from treaty_agent.testing.virtual_time import run
from treaty_agent.transport import memory
from treaty_agent.transport.connection import Connection
from treaty_anp.frame import MAX_PAYLOAD
from treaty_consensus.errors import TreatyError, Unavailable


class Case:
    """An outbox on one end of a pair, and what it told."""

    def __init__(self) -> None:
        self.near, self.far = memory.pair()
        self.failures: list[TreatyError] = []
        self.drained = 0
        self.outbox = Outbox(self.near, 30, failed=self.failures.append, drained=self._drained)
        self.task = asyncio.create_task(self.outbox.run())

    def _drained(self) -> None:
        self.drained += 1


async def read(connection: Connection, count: int) -> list[str | bytes]:
    return [await connection.receive() for _ in range(count)]


def test_everything_is_sent_in_order() -> None:
    async def main() -> None:
        case = Case()
        messages: list[str | bytes] = [str(number) for number in range(100)]
        for message in messages:
            case.outbox.enqueue(message)
        assert await read(case.far, 100) == messages
        await case.outbox.flushed()
        assert case.failures == []

    run(main())


def test_who_does_not_read_is_given_up() -> None:
    async def main() -> None:
        case = Case()
        for _ in range(memory.CAPACITY + 1):
            case.outbox.enqueue("x")
        await asyncio.sleep(29)
        assert case.failures == []
        await asyncio.sleep(2)
        assert [error.code for error in case.failures] == ["session.slow-peer"]
        assert case.task.done()

    run(main())


def test_who_asks_for_more_without_reading_costs_bounded_memory() -> None:
    async def main() -> None:
        case = Case()
        with pytest.raises(Unavailable) as refusal:
            for _ in range(MAX_BACKLOG // MAX_PAYLOAD + 2):
                case.outbox.enqueue(bytes(MAX_PAYLOAD))
        assert refusal.value.code == "session.slow-peer"

    run(main())


def test_callers_and_reading_wait_for_room() -> None:
    async def main() -> None:
        case = Case()
        chunk = bytes(CALL_ROOM)
        count = memory.CAPACITY + READ_ROOM // CALL_ROOM
        for _ in range(count):
            case.outbox.enqueue(chunk)
        await asyncio.sleep(1)
        waiting = asyncio.create_task(case.outbox.wait_writable())
        await asyncio.sleep(1)
        assert not waiting.done()
        assert case.outbox.may_read  # what the pair holds is sent
        case.outbox.enqueue(chunk)
        assert not case.outbox.may_read
        before = case.drained
        await read(case.far, count + 1)
        await waiting
        assert case.outbox.may_read
        assert case.drained == before + 1

    run(main())


def test_of_those_who_wait_for_room_as_many_go_on_as_there_is_room_for() -> None:
    async def main() -> None:
        case = Case()
        chunk = bytes(CALL_ROOM)
        largest = 0

        async def say() -> None:
            nonlocal largest
            await case.outbox.wait_writable()
            case.outbox.enqueue(chunk)
            largest = max(largest, case.outbox.backlog)

        said = [asyncio.create_task(say()) for _ in range(100)]
        await asyncio.sleep(1)
        await asyncio.gather(read(case.far, 100), *said)
        assert largest <= 2 * CALL_ROOM

    run(main())


def test_a_lost_connection_is_told_and_a_closed_outbox_lets_everybody_go() -> None:
    async def main() -> None:
        case = Case()
        await case.far.close("why")
        case.outbox.enqueue("x")
        await asyncio.sleep(0.1)
        assert [error.code for error in case.failures] == ["connection.lost"]
        case.outbox.enqueue(bytes(CALL_ROOM + 1))
        waiting = [asyncio.create_task(case.outbox.wait_writable()), asyncio.create_task(case.outbox.flushed())]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        case.outbox.close()
        await asyncio.gather(*waiting)

    run(main())
