"""Run a coroutine in virtual time: when nothing else can happen, the clock jumps to the next timer.

Hours of timeouts pass in milliseconds. The clock stands still while code runs, so a slow machine meets no timeout that a fast
one does not meet. It is for code that waits for timers and threads. Sockets and processes are not waited for: a test that uses
them needs `asyncio.run`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


_PATIENCE = 0.05
"""Seconds that the loop waits for threads before the clock goes on by as much. A timer may end what a thread waits for."""


class _SkippingSelector(selectors.DefaultSelector):
    """Count a wait instead of waiting, unless a thread is at work: then really wait, a little at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        wait = max(timeout, 0.0)
        if self.threads:
            wait = min(wait, _PATIENCE)
        ready = super().select(wait if self.threads else 0)
        if not ready:
            self.waited += wait
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` is the sum of all waits."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.waited

    def run_in_executor(self, executor: Any, func: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:  # type: ignore[override]
        self._skipping.threads += 1
        future: asyncio.Future[_T] = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        # Since Python 3.12 the threads have a time to end, which `asyncio.Runner` gives. It must pass as real time.
        self._skipping.threads += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._skipping.threads -= 1

    def _thread_done(self, _: object) -> None:
        self._skipping.threads -= 1


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine as `asyncio.run` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
