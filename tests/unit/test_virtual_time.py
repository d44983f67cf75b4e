"""Virtual time: what must pass as real time in it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from treaty_agent.testing.virtual_time import run

SLOW = 0.3
"""Seconds of a thread that is at work when the loop ends."""


@pytest.mark.filterwarnings("error")
def test_a_thread_that_is_at_work_at_the_end_is_waited_for() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        time.sleep(SLOW)
        ended.set()

    async def main() -> None:
        # Not awaited: it outlives the coroutine, and asyncio waits for it with a timeout of its own since Python 3.12.
        job = asyncio.get_running_loop().run_in_executor(None, work)
        job.add_done_callback(lambda done: None)
        begun.wait()

    run(main())
    assert ended.is_set()
