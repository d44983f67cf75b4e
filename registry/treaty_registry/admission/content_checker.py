"""Checking what statements name, in processes with limits (`content_process`), a few at a time.

What a stranger uploads is parsed here only after the cheap checks of admission, and never in the registry's own process: a
parser that takes for ever, takes all memory or crashes costs one process and one statement, and a stop ends it at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from treaty_consensus.errors import Unavailable
from treaty_consensus.kinds import Handler, Publish

from .content_process import ContentLimits, ContentProcess, unchecked
from .fair_queue import FairQueue


class ContentChecker:
    """Checks with one process a processor, each started when it is first needed. For one event loop; `close` it in the end."""

    def __init__(self, limits: ContentLimits | None = None, processes: int | None = None) -> None:
        self._limits = limits or ContentLimits()
        self._queue = FairQueue(time.monotonic, width=processes or os.cpu_count() or 1)
        self._idle: list[ContentProcess] = []
        self._busy: set[ContentProcess] = set()
        self._jobs: set[asyncio.Task[None]] = set()
        self._stopped = False

    def prepare(self) -> None:
        """Start a process if there is none yet: contents are on their way."""
        if not self._stopped and not self._idle and not self._jobs:
            with suppress(Unavailable):  # the check will say so
                self._idle.append(ContentProcess.start(self._limits))

    async def check(self, body: Publish | Handler, load: Callable[[], Awaitable[Mapping[str, bytes]]], source: str) -> None:
        """Check what a statement from the IP address `source` names. `load` gets the bytes once it is its turn: those that wait
        hold none.

        Raises what `load`, `contents.check_contents`, `FairQueue.turn` and `ContentProcess.check` raise.
        """
        async with self._queue.turn(source, 1):
            job = asyncio.create_task(self._check(body, load))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)
            # When the submitter goes away the check goes on: to end its process would cost the next one the start of another.
            try:
                await asyncio.shield(job)
            finally:
                await asyncio.wait([job])  # the turn ends with the job, which `ContentLimits.patience` bounds

    def stop(self) -> None:
        """Begin no more checks: what waits for its turn, and what comes, raises `Unavailable`. What has begun goes on."""
        self._stopped = True

    async def close(self) -> None:
        """End all processes, and what they do, at once. Checks under way and later ones raise `Unavailable`."""
        self.stop()
        await asyncio.gather(*(process.close() for process in (*self._idle, *self._busy)))
        await asyncio.gather(*self._jobs, return_exceptions=True)

    async def _check(self, body: Publish | Handler, load: Callable[[], Awaitable[Mapping[str, bytes]]]) -> None:
        if self._stopped:
            raise unchecked()
        contents = await load()
        process = await self._take_process()
        self._busy.add(process)
        try:
            await process.check(body, contents)
        finally:
            self._busy.discard(process)
            if process.alive:
                self._idle.append(process)

    async def _take_process(self) -> ContentProcess:
        """A process that has nothing to do: there are as many as there are turns."""
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            await process.close()
        if self._stopped:
            raise unchecked()
        return ContentProcess.start(self._limits)
