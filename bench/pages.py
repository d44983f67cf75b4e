"""`python -m bench pages`: what each page costs the server, against the JSON of the same resource.

One registry with elections, warnings and texts of every length, in this process, on a real PostgreSQL. JSON and page come in
turns, one at a time, in one run, so that both see the same machine. Times are lower quartiles: other work of the machine adds
time, and never takes any.

`cached`: the answer is in memory. `uncached`: before each request the memory drops what an entry of the log about the resource
makes outdated: every answer that depends on a subject of its JSON or of its page. The rendered page is dropped too, because the
entry changes it. Parts that it does not change stay: rendered documents, packages, and the cards and the matrix of a decision.
`growing`: the log grows by ten leaves a second, and before each request the same answers are dropped, as at the end of a period.
The leaves are about other resources, so the page is read again and found to be as it was. `decided`: what a decision of the topic
drops, with its cards and its matrix. `emptied`: the whole memory is dropped, as a withdrawal and new parameters do; wheels and
documents are read and rendered again. The bar of `uncached` and `growing` is 2: a page may cost twice the JSON.

Some pages show more than the JSON of their own path. A record is one row that was encoded when it was written; its page also
has the list of versions and the speakers. The page of a ballot shows the topic, the standing of the DID and the log, and its own
JSON is two numbers. The page of the log shows the checkpoint and decoded entries, that of a statement its index, which the API
has in the receipt, and that of a search without results the searches that have some. The first page has no JSON of its own. Such
a page is held against all the answers that a program would fetch to show the same (`SHOWN`), and the table has its ratio to the
JSON of its own path beside that.

The ratio to the JSON of its own path is above 2 where one answer is compared with several. Of the page of a protocol, the record
is one row, sent without a route; the page reads that row, its statuses, all versions and the ranked speakers, in one round trip,
which takes half of the time of `growing`. In `uncached` rendering and packing are added, in equal parts. The page of an agent
reads eleven queries in one round trip. The page of a topic with 32 candidates has three times the bytes of its JSON: `uncached`
is for a third their rendering and packing, and for a sixth the decoding of the transcript; `decided` draws a matrix of a thousand
cells and all cards. The page of the log follows each head. That of a ballot reads the candidates and the standing of the voter.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import msgspec
from rich.console import Console
from rich.table import Table

from treaty_consensus.log.tiles import TILE_WIDTH
from treaty_registry.app import create_app
from treaty_registry.registry import Registry
from treaty_registry.serving.cache import ResponseCache
from treaty_registry.serving.negotiation import page_of
from treaty_registry.serving.representation import Representation
from treaty_registry.storage.embedded import embedded_postgres

from . import RESULTS, report
from .servers import REPOSITORY

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the catalogue and its agents are the tests' own
from page_table import BROWSER, ROWS
from populated_catalogue import populate
from registries import Web, open_registry
from registries import grant as granted
from signers import domain_signer

RESULT, TABLE = RESULTS / "pages.json", RESULTS / "pages.md"
BAR = 2.0
LEAVES_A_SECOND = 10


JSON = {"Accept": "application/json"}
STATES = ("cached", "uncached", "growing", "decided", "emptied")
_NOTHING = "nothing-has-this"
_RENDERED, _COUNTED = "rendered", "counted"
_KNOWN_BY_HASH = {"page ": _RENDERED, "part candidate.html ": _COUNTED, "part matrix.html ": _COUNTED}
"""What is known by the hash of its data has no subject, and is never outdated. Here it has one, to be dropped: key → subject."""
SHOWN: Sequence[tuple[str, Sequence[str]]] = (
    (r"/", ("/log", "/topics", "/protocols")),
    (rf"/protocols\?q={_NOTHING}&state=active", ("/protocols?state=active&limit=1", f"/protocols?q={_NOTHING}&limit=1")),
    (r"/protocols/(?P<namespace>[^/]+)/(?P<name>[^/]+)/[^/]+", ("/protocols/{namespace}/{name}", "/speakers?hash={hash}")),
    (r"/identities/(?P<did>.+)", ("/standing/{did}", "/vouches?did={did}", "/grants?did={did}")),
    (r"/log(\?before=40)?", ("/checkpoint", "{entries}")),
    (r"/statements/(?P<id>.+)", ("/proofs/{id}",)),
    (r"/ballots\?topic=(?P<topic>[^&]+)", ("/topics/{topic}", "/log")),
    (r"/ballots\?topic=(?P<topic>[^&]+)&did=(?P<did>.+)", ("/topics/{topic}", "/standing/{did}", "/log")),
)
"""The answers of the API that a page shows besides the JSON of its own path."""


class Line(msgspec.Struct):
    """One page in one state: in milliseconds. `own`: the JSON of its path, if it has any. `shown`: all answers
    of the API that it shows, `answers` in number."""

    path: str
    state: str
    own: float | None
    answers: int
    shown: float
    page: float

    @property
    def ratio(self) -> float:
        """The page against the answers that it shows."""
        return self.page / self.shown

    @property
    def cells(self) -> list[str]:
        """The line as a row of a table."""
        own, to_own = ("–", "–") if self.own is None else (f"{self.own:.1f}", f"{self.page / self.own:.2f}")
        return [self.state, own, str(self.answers), f"{self.shown:.1f}", f"{self.page:.1f}", f"{self.ratio:.2f}", to_own]


def main(arguments: list[str]) -> int:
    """Measure, print and keep; the exit status is 1 if a page is over the bar."""
    parser = argparse.ArgumentParser(prog="python -m bench pages", description=__doc__)
    parser.add_argument("--samples", type=int, default=40, help="of each form of each page in each state (default: 40)")
    chosen = parser.parse_args(arguments)
    lines = asyncio.run(_measure(chosen.samples))
    where = report.machine()
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": where, "pages": lines}), indent=2) + b"\n")
    TABLE.write_text(_markdown(lines, where))
    _print(lines)
    return int(any(line.ratio > BAR for line in lines if line.state in ("uncached", "growing")))


async def _measure(samples: int) -> list[Line]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="treaty-")))
        database = await stack.enter_async_context(embedded_postgres(folder))
        web = Web()
        registry = await stack.enter_async_context(open_registry(folder / "registry", database, web))
        await populate(registry, web)
        memory = _Memory()
        transport = httpx.ASGITransport(create_app(registry, memory, period=0))  # type: ignore[arg-type]
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url=registry.base_url))
        growing = _Growth(registry, web)
        statement = (await client.get("/log", headers=JSON)).json()["parameters"]
        rows = [row for row in ROWS if row.path == "/" or (row.json and row.status == 200)]
        lines = []
        for path in (row.path.format(statement=statement) for row in rows):
            answers = await _answers(client, path)
            for state in STATES:
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(growing.run()) if state == "growing" else None
                    lines.append(await _compare(client, memory, path, answers, state, samples))
                    if task:
                        task.cancel()
        return lines


async def _answers(client: httpx.AsyncClient, path: str) -> list[str]:
    """Return the paths of the answers that a page shows. The first is its own, if it has one."""
    answer = await client.get(path, headers=JSON)
    own = answer.json() if answer.headers["content-type"] == "application/json" and answer.is_success else None
    known = own if isinstance(own, dict) else {}
    values = {"hash": known.get("hash"), "entries": _entries(known.get("size", 0), path)}
    for pattern, paths in SHOWN:
        if match := re.fullmatch(pattern, path):
            others = [other.format(**{**values, **match.groupdict()}) for other in paths]
            return others if own is None else [path, *others]
    return [path]


def _entries(size: int, path: str) -> str:
    """Return the path of the tile with the entries that a page of the log shows."""
    index, width = (size // TILE_WIDTH, size % TILE_WIDTH) if path == "/log" else (0, size if size < TILE_WIDTH else 0)
    return f"/tile/entries/{index:03}" + (f".p/{width}" if width else "")


class _Memory(ResponseCache):
    """A memory that knows the subjects of its answers, also of those that it dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._about: dict[str, frozenset[str]] = {}

    def keep(self, key: str, view: Representation, subjects: Iterable[str] = ()) -> None:
        about = frozenset(subjects) | {subject for prefix, subject in _KNOWN_BY_HASH.items() if key.startswith(prefix)}
        self._about[key] = about
        super().keep(key, view, about)

    def forget(self, path: str, state: str) -> bool:
        """Drop what an entry about the resource makes outdated. Return whether there can be such an entry."""
        keys = (path, f"{path}.json", page_of(path))
        subjects = frozenset[str]().union(*(self._about.get(key, ()) for key in keys))
        assert self.head is not None
        if state == "decided":
            self.renew(self.head, frozenset().union(*self._about.values()))
        else:
            self.renew(self.head, subjects | {_RENDERED} if state == "uncached" else subjects)
        return bool(subjects)

    def empty(self) -> None:
        """Drop everything."""
        assert self.head is not None
        self.renew(self.head, None)


class _Growth:
    """Logs leaves at an even rate."""

    def __init__(self, registry: Registry, web: Web) -> None:
        self._registry, self._agent = registry, domain_signer("growing.example")
        self._numbers = itertools.count()
        web.serve(self._agent)

    async def run(self) -> None:
        """Log until it is cancelled."""
        while True:
            statement = self._agent.statement(granted(self._agent, next(self._numbers)))
            await self._registry.submit([statement.leaf])
            await asyncio.sleep(1 / LEAVES_A_SECOND)


async def _compare(
    client: httpx.AsyncClient, memory: _Memory, path: str, answers: Sequence[str], state: str, samples: int
) -> Line:
    pages, owns, shown = list[float](), list[float](), list[float]()

    async def measure(target: str, headers: Mapping[str, str]) -> float:
        # A statement never changes, so only an empty memory makes its answers again.
        is_kept = state == "cached" or (state != "emptied" and (memory.forget(target, state) or target != path))
        if not is_kept:
            memory.empty()
        began = time.perf_counter()
        answer = await client.get(target, headers=headers)
        took = 1000 * (time.perf_counter() - began)
        answer.raise_for_status()
        return took

    for sample in range(samples + 2):
        page = await measure(path, BROWSER) if sample % 2 else None
        times = [await measure(document, JSON) for document in answers]
        page = page or await measure(path, BROWSER)
        if sample > 1:  # the first compile templates and statements
            pages.append(page)
            owns.append(times[0])
            shown.append(sum(times))
    own = _lower(owns) if answers[0] == path else None
    return Line(path, state, own, len(answers), _lower(shown), _lower(pages))


def _lower(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=4)[0]


_HEAD = ("page", "state", "own JSON, ms", "answers", "shown, ms", "page, ms", "page / shown", "page / own JSON")


def _print(lines: Sequence[Line]) -> None:
    table = Table(*_HEAD, box=None)
    for line in lines:
        table.add_row(line.path[:60], *line.cells)
    Console(highlight=False).print(table)


def _markdown(lines: Sequence[Line], where: str) -> str:
    rows = [f"| `{line.path[:80]}` | {' | '.join(line.cells)} |" for line in lines]
    head = [
        "<!-- Made by `python -m bench pages`; see README.md. -->",
        "",
        f"On {where}. Lower quartiles. The bar of uncached and growing is {BAR:g}, against all the answers of the",
        "API that a page shows: their number and the sum of their times. The last column holds the page against the JSON of its",
        "own path alone.",
        "",
    ]
    return "\n".join([*head, f"| {' | '.join(_HEAD)} |", "| --- | --- |" + " ---: |" * 6, *rows, ""])
