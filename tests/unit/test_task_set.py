"""Tasks beside their callers: they are held until they end, waited for, and cancelled."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from treaty_io.task_set import TaskSet


async def test_a_task_is_held_until_it_ends() -> None:
    tasks = TaskSet[int]()
    gate = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        return 1

    task = weakref.ref(tasks.start(work()))
    await asyncio.sleep(0)
    gc.collect()
    assert (running := task()) is not None and list(tasks) == [running]
    gate.set()
    assert await running == 1 and len(tasks) == 0


async def test_the_end_waits_for_all_and_ignores_their_errors() -> None:
    tasks = TaskSet[None]()
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(0 if name == "fails" else 0.01)
            if name == "fails":
                raise RuntimeError(name)
        finally:
            ended.append(name)

    for name in ("fails", "works"):
        tasks.start(work(name))
    await tasks.finish()
    assert ended == ["fails", "works"] and not tasks


async def test_cancelled_tasks_clean_up_before_it_returns() -> None:
    tasks = TaskSet[None]()
    cleaned = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    task = tasks.start(work())
    await asyncio.sleep(0)
    await tasks.cancel()
    assert cleaned.is_set() and task.cancelled() and not tasks
    with pytest.raises(asyncio.CancelledError):
        await task
