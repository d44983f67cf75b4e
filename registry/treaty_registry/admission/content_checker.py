"""Check the blobs that statements name, in a few separate processes with limits (`content_process`).

Uploaded files are parsed only after the cheap checks of admission, and never in the registry's own process. A parser that hangs,
uses up its memory or crashes costs one process and one statement. `close` ends such a process at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from treaty_consensus.errors import Unavailable
from treaty_consensus.kinds import Handler, Publish
from treaty_io.task_set import TaskSet

from ..catalogue.handler_facts import HandlerFacts
from ..catalogue.readers import ReaderKind
from ..telemetry.measures import CONTENT_CHECKS
from .content_process import ContentLimits, ContentProcess, unchecked
from .content_worker import Read
from .fair_queue import FairQueue

_T = TypeVar("_T")


class ContentChecker:
    """Check contents with one process per processor, each started on first use. For one event loop; call `close` at the end."""

    def __init__(self, limits: ContentLimits | None = None, processes: int | None = None) -> None:
        self._limits = limits or ContentLimits()
        # One check per processor: the work is CPU-bound, so more at a time would only make all of them slower.
        self._queue = FairQueue(time.monotonic, width=processes or os.cpu_count() or 1)
        self._idle: list[ContentProcess] = []
        self._busy: set[ContentProcess] = set()
        self._jobs = TaskSet[Any]()
        self._stopped = False

    @property
    def queue(self) -> FairQueue:
        """Return the queue of the checks."""
        return self._queue

    @property
    def processes(self) -> dict[str, int]:
        """Return how many processes are `idle`, and how many are `busy`."""
        return {"idle": len(self._idle), "busy": len(self._busy)}

    def prepare(self) -> None:
        """Start a process if none is running, because a check will follow soon. A failure is ignored here; `check` reports it."""
        if not self._stopped and not self._idle and not self._jobs:
            with suppress(Unavailable):  # `check` reports the failure
                self._idle.append(ContentProcess.start(self._limits))

    async def check(
        self, body: Publish | Handler, load: Callable[[], Awaitable[Mapping[str, bytes]]], source: str
    ) -> HandlerFacts | None:
        """Check the blobs that `body` names, and return the facts of a handler. The statement came from the IP address `source`.

        `load` reads the blobs. It is called when the statement's turn comes, so waiting statements hold no blobs in memory.
        Raises what `load`, `contents.check_contents`, `FairQueue.turn` and `ContentProcess.check` raise.
        """

        async def use(process: ContentProcess) -> HandlerFacts | None:
            return await process.check(body, await load())

        return await self._turn(use, source)

    async def read(self, kind: ReaderKind, name: str, load: Callable[[], Awaitable[Sequence[bytes]]], source: str) -> bytes:
        """Run a reader of `catalogue.readers` on blobs, for the IP address `source`, and return its result as MessagePack.

        Raises the errors of `load`, the reader, `FairQueue.turn` and `ContentProcess.check`.
        """

        async def use(process: ContentProcess) -> bytes:
            return await process.read(Read(kind, name, [*await load()]))

        return await self._turn(use, source)

    async def _turn(self, use: Callable[[ContentProcess], Awaitable[_T]], source: str) -> _T:
        # The turn comes before the bytes are loaded. Waiting statements hold no blobs, and networks take turns.
        async with self._queue.turn(source, 1):
            job = self._jobs.start(self._run(use))
            # A cancelled submission does not stop the check: killing its process would make the next check start a new one.
            try:
                return await asyncio.shield(job)
            finally:
                await asyncio.wait([job])  # hold the turn until the job ends; `ContentLimits.patience` bounds it

    def stop(self) -> None:
        """Start no further checks: waiting and new ones raise `Unavailable`. Running checks continue."""
        self._stopped = True

    async def close(self) -> None:
        """Kill all processes at once. Running and later checks raise `Unavailable`."""
        self.stop()
        # Kill first: a job ends only with its process, so waiting for the jobs first could take `patience` seconds.
        await asyncio.gather(*(process.close() for process in (*self._idle, *self._busy)))
        await self._jobs.finish()

    async def _run(self, use: Callable[[ContentProcess], Awaitable[_T]]) -> _T:
        # Again here, because the turn may have come after `stop`.
        if self._stopped:
            raise unchecked()
        process = await self._take_process()
        self._busy.add(process)
        try:
            return await use(process)
        finally:
            self._busy.discard(process)
            CONTENT_CHECKS.labels("done" if process.alive else "lost").inc()
            # A process without a verdict was closed. It is not used again: its late verdict would answer another
            # statement.
            if process.alive:
                self._idle.append(process)

    async def _take_process(self) -> ContentProcess:
        """Return an idle process, or start one. There are as many processes as turns, so one is always free."""
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            # It died while it was idle. Collect its exit status, so that no zombie remains.
            await process.close()
        if self._stopped:
            raise unchecked()
        return ContentProcess.start(self._limits)
