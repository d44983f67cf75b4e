"""Time the calls of one caller, in the environment of its form: driver.py CALLER URL [HOME PROTOCOL-URI].

Reads lines of JSON, `{"measure": NAME, "number": N, "at_once": K}`, and answers each with a line: the milliseconds of each of the
N × K samples, one list for each of the N groups of K that run at once. Before the first it says "ready". The measures are

    call      calls over a connection that is kept open
    opening   connect, call and close
    first     the same, at an address where nothing is remembered
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

PRODUCT = "P12345"
Connect = Callable[[str], AbstractAsyncContextManager[Any]]


async def drive(caller: str, url: str, arguments: list[str]) -> None:
    """Answer until the input ends."""
    module = importlib.import_module(caller)
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        more: list[Any] = []
        if arguments:
            home, protocol = arguments
            more = [await stack.enter_async_context(module.open_agent(home)), protocol]

        def connect(address: str) -> AbstractAsyncContextManager[Any]:
            made: AbstractAsyncContextManager[Any] = module.connect(address, *more)
            return made

        measures = _measures(connect, url, await stack.enter_async_context(connect(url)))
        await asyncio.gather(*(measures["call"]() for _ in range(32)))  # an HTTP client opens its further connections now
        print(json.dumps("ready"), flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            order = json.loads(line)
            measure = measures[order["measure"]]
            times = [await asyncio.gather(*(_timed(measure) for _ in range(order["at_once"]))) for _ in range(order["number"])]
            print(json.dumps(times), flush=True)


def _measures(connect: Connect, url: str, kept: Any) -> dict[str, Callable[[], Awaitable[None]]]:
    numbers = itertools.count()

    async def call() -> None:
        _check(await kept(PRODUCT))

    async def opening(address: str = url) -> None:
        async with connect(address) as call_once:
            _check(await call_once(PRODUCT))

    async def first() -> None:
        await opening(f"{url}/{next(numbers)}")

    return {"call": call, "opening": opening, "first": first}


async def _timed(measure: Callable[[], Awaitable[None]]) -> float:
    begun = time.perf_counter()
    await measure()
    return (time.perf_counter() - begun) * 1000


def _check(answer: Any) -> None:
    if answer["productId"] != PRODUCT:
        raise AssertionError(f"the wrong product: {answer!r}")


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1], sys.argv[2], sys.argv[3:]))
