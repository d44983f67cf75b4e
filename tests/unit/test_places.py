"""Places that are shared fairly among askers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from treaty_agent.testing.virtual_time import run
from treaty_io.places import Places, asker

A, B = "198.51.100.0/24", "203.0.113.0/24"


async def take(places: Places, network: str, within: float | None = None) -> str:
    asker.set(network)  # in the context of this task alone
    return await places.take(within)


def ask(places: Places, network: str, number: int = 1, within: float | None = None) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(take(places, network, within)) for _ in range(number)]


def got(*requests: list[asyncio.Task[str]]) -> list[int]:
    return [sum(task.done() and not task.cancelled() and task.exception() is None for task in tasks) for tasks in requests]


async def test_a_free_place_goes_to_the_asker_that_holds_the_fewest() -> None:
    places = Places(4)
    many = ask(places, A, 100)
    await asyncio.sleep(0)
    few = ask(places, B, 2)
    await asyncio.sleep(0)
    assert (got(many, few), places.taken, places.waiting) == ([4, 0], 4, 98)
    for expected in ([4, 1], [4, 2], [5, 2]):
        places.give_back(A)
        await asyncio.sleep(0)
        assert got(many, few) == expected
    for task in many:
        task.cancel()
    await asyncio.gather(*many, return_exceptions=True)
    assert (places.taken, places.waiting) == (4, 0)


async def test_the_oldest_request_is_first_among_equals() -> None:
    places, order = Places(1), list[int]()

    async def hold(number: int) -> None:
        async with places.held():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(hold(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert places.is_unused


async def test_askers_with_as_many_places_take_turns() -> None:
    places, order = Places(1), list[str]()

    async def hold(network: str) -> None:
        asker.set(network)
        async with places.held():
            order.append(network)
            await asyncio.sleep(0)

    await asyncio.gather(*(hold(network) for network in [A] * 5 + [B] * 2 + [""]))
    assert order == [A, B, "", A, B, A, A, A]


async def test_one_asker_leaves_as_many_places_as_it_has() -> None:
    places = Places(16, keeps_some=True)
    first = ask(places, A, 100)
    await asyncio.sleep(0)
    second = ask(places, B, 100)
    third = ask(places, "", 100)
    await asyncio.sleep(0)
    assert got(first, second, third) == [8, 4, 2]
    tasks = [*first, *second, *third]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert places.taken == 14
    alone = Places(1, keeps_some=True)
    assert await take(alone, A, 1) == A


def test_a_late_or_abandoned_request_leaves_nothing() -> None:
    async def main() -> None:
        places = Places(1)
        assert await places.take() == ""
        waiting, late = ask(places, A), ask(places, B, within=5)
        await asyncio.sleep(1)
        waiting[0].cancel()
        with pytest.raises(TimeoutError):
            await late[0]
        assert (places.taken, places.waiting) == (1, 0)
        places.give_back("")
        assert places.is_unused

    run(main())


@pytest.mark.parametrize("end", [lambda task: task.cancel(), lambda task: None], ids=["cancelled", "late"])
def test_a_place_granted_to_a_cancelled_caller_is_free(end: Callable[[asyncio.Task[str]], object]) -> None:
    async def main() -> None:
        places = Places(1)
        await places.take()
        (waiting,) = ask(places, A, within=5)
        await asyncio.sleep(0)
        places.give_back("")
        end(waiting)
        await asyncio.gather(waiting, return_exceptions=True)
        assert places.taken == (0 if waiting.cancelled() else 1)

    run(main())
