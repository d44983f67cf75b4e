"""Tasks that run beside their callers, and end with the object that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class TaskSet(Generic[_T]):
    """The running tasks of one object. For one event loop.

    `asyncio.TaskGroup` is for work that one block waits for; there a failed task cancels the others. Here each task has an owner
    of its own, and handles its errors.
    """

    def __init__(self) -> None:
        # The event loop keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[_T]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[_T]]:
        return iter(list(self._tasks))

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start a task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        """Wait for the tasks that run now. Their errors are ignored."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel the tasks that run now, and wait for them."""
        for task in self:
            task.cancel()
        await self.finish()
