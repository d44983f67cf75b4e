"""Verify signatures in threads.

One Ed25519 verification takes about 0.1 ms and releases Python's lock. Handing one job to a thread costs about as much. So the
statements that arrive while all threads are busy are handed over as one job.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from treaty_consensus import statement
from treaty_consensus.statement import Statement, Verified

_MOST = 64  # statements of one job, about 6 ms, so that all threads get work


class Verifier:
    """Verify signatures with one thread per processor. For one event loop; call `close` after the last call."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="verify")
        self._idle = os.cpu_count() or 1
        self._waiting: deque[tuple[Statement, Mapping[str, bytes], asyncio.Future[Verified]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def verify(self, signed: Statement, keys: Mapping[str, bytes]) -> Verified:
        """Verify a statement as `treaty_consensus.statement.verify` does. Raises `Unauthorized`."""
        future: asyncio.Future[Verified] = asyncio.get_running_loop().create_future()
        self._waiting.append((signed, keys, future))
        if self._idle:
            self._idle -= 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    def close(self) -> None:
        """End the threads."""
        # No waiting: a queued verification has no effect once its submission has ended.
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        try:
            while self._waiting:
                jobs = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
                work = [(signed, keys) for signed, keys, _ in jobs]
                results = await asyncio.get_running_loop().run_in_executor(self._threads, _verify_all, work)
                for (_, _, future), result in zip(jobs, results, strict=True):
                    if future.done():
                        continue  # the caller was cancelled
                    if isinstance(result, Verified):
                        future.set_result(result)
                    else:
                        future.set_exception(result)
        finally:
            self._idle += 1


def _verify_all(work: Sequence[tuple[Statement, Mapping[str, bytes]]]) -> list[Verified | Exception]:
    results: list[Verified | Exception] = []
    for signed, keys in work:
        try:
            results.append(statement.verify(signed, keys))
        # An internal error too: each caller waits for its result, also when another statement of the job fails.
        except Exception as error:
            results.append(error)
    return results
