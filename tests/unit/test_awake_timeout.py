"""A time that passes only while this process runs."""

from __future__ import annotations

import asyncio
import os

import pytest
from pauses import pause

from treaty_agent.testing.virtual_time import run
from treaty_io.awake_clock import AwakeClock
from treaty_io.awake_timeout import AwakeTimeout
from treaty_sandbox.processor_clock import ProcessorClock
from treaty_sandbox.request_timeout import RequestTimeout


def test_it_is_over_after_its_seconds() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with AwakeTimeout(8):
                await asyncio.sleep(60)
        assert round(loop.time() - began, 3) == 8
        async with AwakeTimeout(8):
            await asyncio.sleep(7)
        await asyncio.sleep(60)  # it cancels nobody after its block

    run(main())


def test_a_clock_knows_what_is_left() -> None:
    async def main() -> None:
        clock = AwakeClock(8)
        clock.start()
        await asyncio.sleep(3)
        assert round(clock.remaining, 3) == 5
        await asyncio.sleep(60)
        assert clock.remaining == 0
        clock.stop()

    run(main())


def test_a_pause_counts_as_one_look() -> None:
    async def main() -> None:
        loop, ours, theirs = asyncio.get_running_loop(), *os.pipe()
        arrived: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            loop.remove_reader(ours)
            arrived.set_result(None)

        loop.add_reader(ours, read)
        try:
            async with AwakeTimeout(0.2):
                await asyncio.sleep(0)
                pause(0.5)
                await asyncio.sleep(0.01)  # it has looked, and goes on
                os.write(theirs, b"x")
                pause(0.5)
                await arrived
        finally:
            os.close(ours)
            os.close(theirs)

    asyncio.run(main())


def test_without_a_clock_of_the_worker_all_time_counts() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for clock, seconds in (
            (ProcessorClock(None), 2.0),
            (ProcessorClock.of_pidfd(-1), 2.0),
            (ProcessorClock(os.getpid()), 20.0),
        ):
            began = loop.time()
            with pytest.raises(TimeoutError):
                async with RequestTimeout(clock, 2.0, 20.0):
                    await asyncio.sleep(60)
            assert round(loop.time() - began, 1) == seconds

    run(main())
