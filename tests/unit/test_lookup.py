"""Look-ups that share their queries: who asks together is answered together, and nobody is forgotten when a query fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from treaty_registry.catalogue import lookup
from treaty_registry.catalogue.lookup import MAX_BATCH, Lookup


class Connections:
    """A pool of nothing: counts what is taken and given back."""

    def __init__(self) -> None:
        self.taken = 0
        self.returning, self.may_return, self.returned = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_return.set()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[object]:
        self.taken += 1
        yield object()
        self.returning.set()
        await self.may_return.wait()
        self.returned.set()


class Table:
    """Answers upper case, in batches that it remembers. `fault`: what to raise instead."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.asked = asyncio.Event()
        self.fault: Exception | None = None

    async def fetch(self, _connection: object, keys: list[str]) -> Mapping[str, str]:
        self.batches.append(keys)
        self.asked.set()
        await asyncio.sleep(0.001)
        if self.fault is not None:
            raise self.fault
        return {key: key.upper() for key in keys if key != "absent"}


def made() -> tuple[Lookup[str], Table, Connections]:
    table, connections = Table(), Connections()
    return Lookup(cast(Any, connections), table.fetch), table, connections


async def test_who_asks_together_is_answered_by_one_query() -> None:
    find, table, connections = made()
    names = ["a", "b", "a", "absent", "c"] * 10
    assert await asyncio.gather(*map(find.get, names)) == ["A", "B", "A", None, "C"] * 10
    assert table.batches == [["a", "b", "absent", "c"]]
    assert connections.taken == 1


async def test_who_comes_late_shares_the_next_query() -> None:
    find, table, _ = made()
    first = asyncio.create_task(find.get("a"))
    await table.asked.wait()
    assert [*await asyncio.gather(find.get("a"), find.get("b"), find.get("c"))] == ["A", "B", "C"]
    assert await first == "A"
    assert table.batches == [["a"], ["a", "b", "c"]], "the one under way may be older than the question"


async def test_batches_are_bounded() -> None:
    find, table, _ = made()
    names = [f"n{number}" for number in range(MAX_BATCH + 10)]
    assert await asyncio.gather(*map(find.get, names)) == [name.upper() for name in names]
    assert [len(batch) for batch in table.batches] == [MAX_BATCH, 10]


async def test_the_connection_goes_back_while_keys_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "KEPT_SECONDS", 0.0)
    find, table, connections = made()
    first = asyncio.create_task(find.get("a"))
    await table.asked.wait()
    second = asyncio.create_task(find.get("b"))
    assert [await first, await second] == ["A", "B"]
    assert connections.taken == 2, "the pool closes a connection that is lent for too long"


async def test_the_connection_goes_back_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "REST_SECONDS", 0.01)
    find, _, connections = made()
    for round_ in range(1, 4):
        assert await find.get("a") == "A"
        await asyncio.wait_for(connections.returned.wait(), 5)
        connections.returned.clear()
        assert connections.taken == round_


async def test_who_asks_while_the_connection_goes_back_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "REST_SECONDS", 0.01)
    find, _, connections = made()
    connections.may_return.clear()
    assert await find.get("a") == "A"
    await connections.returning.wait()
    late = asyncio.create_task(find.get("b"))
    await asyncio.sleep(0)
    connections.may_return.set()
    assert await asyncio.wait_for(late, 5) == "B"
    assert connections.taken == 2


async def test_a_failed_query_fails_whoever_waits_and_nobody_after() -> None:
    find, table, _ = made()
    table.fault = ConnectionError("gone")
    outcomes = await asyncio.gather(*map(find.get, ["a", "b"]), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectionError, ConnectionError]
    table.fault = None
    assert await asyncio.wait_for(find.get("a"), 5) == "A"


async def test_who_goes_away_takes_nobody_along() -> None:
    find, _, _ = made()
    leaving, staying = asyncio.create_task(find.get("a")), asyncio.create_task(find.get("a"))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await asyncio.wait_for(staying, 5) == "A"
    assert leaving.cancelled() or leaving.cancelling()
