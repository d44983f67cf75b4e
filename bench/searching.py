"""`python -m bench searching`: what a search costs whose answer is not in memory, as JSON and as the page for people.

A registry with a catalogue of small protocols. Each request spells its word with other capitals, so that no answer is cached.
Requests come one at a time, JSON and page in turns. The bar of a page is 2: it may cost twice the JSON of the same search.
An empty result is allowed more, because its page tries the search without each filter.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Mapping

import httpx
from rich.console import Console
from rich.table import Table

from .publishing import author
from .servers import registry, workspace

_SEARCHES: Mapping[str, Mapping[str, str]] = {
    "a word": {},
    "a word in a topic": {"topic": "many"},
    "a word, two filters": {"state": "active", "origin": "negotiated"},
    "a word, all filters": {"topic": "many/small", "state": "active", "origin": "negotiated", "handler": "none"},
    "nothing, three filters": {"topic": "many", "state": "active", "handler": "code-free"},
}
_HTML = {"Accept": "text/html"}
_SAMPLES = 60


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m bench searching", description=__doc__)
    parser.add_argument(
        "--protocols", type=int, default=[200, 4_000], nargs="+", help="sizes of the catalogue (default: 200 4000)"
    )
    chosen = parser.parse_args(arguments)
    asyncio.run(_measure(sorted(chosen.protocols), Console(highlight=False)))
    return 0


async def _measure(sizes: list[int], console: Console) -> None:
    table = Table("protocols", "search", "JSON, ms", "page, ms", "page / JSON", box=None)
    with workspace() as folder:
        for size in sizes:
            home = folder / str(size)
            home.mkdir()
            async with registry(home) as served, author(served, home) as writer, httpx.AsyncClient(base_url=served.url) as client:
                await writer.publish_many(size)
                for name, params in _SEARCHES.items():
                    json, page = await _compare(client, params)
                    table.add_row(str(size), name, f"{json:.1f}", f"{page:.1f}", f"{page / json:.2f}")
    console.print(table)


async def _compare(client: httpx.AsyncClient, params: Mapping[str, str]) -> tuple[float, float]:
    """Return the medians of both forms, in milliseconds."""
    spelled = iter(spellings("protocol", 2 * _SAMPLES))
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_SAMPLES):
        for is_page in times:
            begun = time.perf_counter()
            answer = await client.get("/protocols", params={"q": next(spelled), **params}, headers=_HTML if is_page else {})
            times[is_page].append(1000 * (time.perf_counter() - begun))
            answer.raise_for_status()
    return statistics.median(times[False]), statistics.median(times[True])


def spellings(word: str, number: int) -> list[str]:
    """Return distinct spellings of one word, which search takes for the same."""
    seeded = random.Random(7)
    found: set[str] = set()
    while len(found) < number:
        found.add("".join(seeded.choice((letter, letter.upper())) for letter in word))
    return sorted(found)
