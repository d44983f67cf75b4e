"""Run a coroutine in virtual time: when nothing else can happen, the clock jumps to the next timer.

Hours of timeouts pass in milliseconds. It is for code that waits for timers and threads. Sockets and processes are not waited
for: a test that uses them needs `asyncio.run`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _SkippingSelector(selectors.DefaultSelector):
    """Count a wait instead of waiting, unless a thread is at work: then really wait."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self.threads:
            return super().select(0.05 if self.threads else timeout)
        ready = super().select(0)
        if not ready:
            self.skipped += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` includes all skipped waits."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return super().time() + self._skipping.skipped

    def run_in_executor(self, executor: Any, func: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:  # type: ignore[override]
        self._skipping.threads += 1
        future: asyncio.Future[_T] = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: object) -> None:
        self._skipping.threads -= 1


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine as `asyncio.run` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
