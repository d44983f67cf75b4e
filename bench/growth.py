"""`python -m bench growth`: what reading and writing cost as a registry grows from a thousand protocols on.

One registry is filled by `bulk` to one size after the other. At each size it is started, its tables are vacuumed, and every kind
of request is made some hundred times, one at a time and no answer twice, so that nothing comes from memory. The figure is the
processor time of the server and PostgreSQL with all their processes, by /proc, less the time that they take without requests. So
other work of the machine changes it little. A result grows *too fast* if it is more than twice as dear as at a tenth of the size.

`--sizes 1000 10000 100000` by default; `--leaves`: leaves for each protocol. Filling takes 0.6 ms for a leaf on an idle processor
and 7 KiB of disk. A million protocols with ten leaves each take two hours and 60 GB, 8 GB of which are the small files of
documents and cards. `--data FOLDER`: a folder on another disk. `growth.json` keeps the figures, `growth.md` the table,
`growth.svg` the curves.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx
import matplotlib as mpl
import msgspec
from rich.console import Console

from treaty_client.registries.api import RegistryClient
from treaty_consensus.canonical import hex_digest
from treaty_consensus.kinds import NONE, Ballot, Blob, Publish
from treaty_consensus.protocol import Card
from treaty_consensus.statement import Statement
from treaty_io.network.hosts import Network
from treaty_registry.storage.postgres import connect

from . import RESULTS, report
from .bulk import CROWDED, VOCABULARY, Bulk, word
from .searching import spellings
from .servers import Registry, SceneFailed, free_port, registry, workspace
from .sessions import family

mpl.use("svg")
from matplotlib import pyplot as plt

RESULT, TABLE, PICTURE = (RESULTS / f"growth.{kind}" for kind in ("json", "md", "svg"))
TOO_FAST = 2.0
"""How much dearer a request may be at ten times the size. What grows as the logarithm of the size stays far below."""
READS, WRITES, BATCHED = 300, 48, 256
_IDLE = 3.0  # seconds without requests, before each size
_TICKS = os.sysconf("SC_CLK_TCK")
_HTML, _JSON = {"Accept": "text/html"}, {"Accept": "application/json"}


class Size(msgspec.Struct, frozen=True):
    """A size, and what was measured there. `cpu`: milliseconds of the server and of PostgreSQL, by request. `database`, `blobs`,
    `memory`: MiB; memory is the PSS of the server's processes."""

    protocols: int
    leaves: int
    cpu: dict[str, float]
    database: float
    blobs: float
    memory: float
    filled: float


class Figure(msgspec.Struct, frozen=True):
    """What is kept of a run. `too_fast`: the requests that grow faster than they may."""

    sizes: list[Size]
    too_fast: list[str]
    load: float
    machine: str
    measured: str


class _Meter:
    """The processor time of a server and of its PostgreSQL."""

    def __init__(self, served: Registry) -> None:
        postmaster = (served.data / "postgres" / "postmaster.pid").read_text().split("\n")[0]
        self._roots = (served.process, int(postmaster))
        self._idle = 0.0

    async def rest(self) -> None:
        """Measure the time that they take without requests."""
        before = self._spent()
        await asyncio.sleep(_IDLE)
        self._idle = (self._spent() - before) / _IDLE

    async def of(self, works: Sequence[Callable[[], Awaitable[object]]], each: int = 1) -> float:
        """Return the milliseconds for each of these works; `each`: so many requests in one."""
        before, begun = self._spent(), time.perf_counter()
        for work in works:
            await work()
        spent = self._spent() - before - self._idle * (time.perf_counter() - begun)
        return round(1000 * max(0.0, spent) / (len(works) * each), 3)

    def memory(self) -> float:
        """Return the MiB of the server's processes."""
        total = 0
        for pid in family(self._roots[0]):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return round(total / 1024, 1)

    def _spent(self) -> float:
        ticks = 0
        for root in self._roots:
            for pid in family(root):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue  # it has ended; its parent has its time
                ticks += sum(map(int, fields[11:15]))  # its own, and that of children that have ended
        return ticks / _TICKS


class _Requests:
    """The requests of a size: each kind, and none of them twice."""

    def __init__(self, bulk: Bulk, served: Registry, client: httpx.AsyncClient, writer: RegistryClient) -> None:
        self._bulk, self._served, self._client, self._writer = bulk, served, client, writer
        self._random = random.Random(bulk.protocols)

    async def measure(self, meter: _Meter) -> dict[str, float]:
        """Return the milliseconds of each kind."""
        drawn = [self._bulk.protocol(n) for n in self._random.sample(range(self._bulk.protocols), 3 * READS)]
        records, bundles, pages = (drawn[part::3] for part in range(3))
        await self._get(f"{pages[0].path}.md")  # connected
        topics = sorted({small.topic for small in drawn} - {CROWDED})[:READS]
        costs = {
            "record": await meter.of([self._read(f"{small.path}.json") for small in records]),
            "bundle": await meter.of([self._read(f"{small.path}.bundle") for small in bundles[: READS // 2]]),
            "page": await meter.of([self._read(small.path, _HTML) for small in pages[: READS // 2]]),
            "topic": await meter.of([self._read(f"/topics/{topic}") for topic in topics]),
            "topics": await meter.of([self._read("/topics", after=topic) for topic in [CROWDED[:-1], *topics[:19]]]),
        }
        for name, queries in self._searches().items():
            costs[f"search: {name}"] = await meter.of([self._read("/protocols", q=query) for query in queries])
        publishes = [self._publish(place) for place in range(WRITES + BATCHED)]
        for made, blobs in publishes:
            for data in blobs:
                await self._writer.put_blob(data, made)
        statements = [made for made, _ in publishes]
        costs["publish"] = await meter.of([self._submit([made]) for made in statements[:WRITES]])
        costs["publish, batch"] = await meter.of([self._submit(statements[WRITES:])], BATCHED)
        votes = await self._votes(WRITES + BATCHED)
        costs["vote"] = await meter.of([self._submit([vote]) for vote in votes[:WRITES]])
        costs["vote, batch"] = await meter.of([self._submit(votes[WRITES:])], BATCHED)
        return costs

    def _searches(self) -> dict[str, list[str]]:
        number = READS // 4
        common = self._random.sample(range(40), 40)
        rare = self._random.sample(range(VOCABULARY // 2, VOCABULARY), number)
        return {
            "all of them": spellings("protocol", number),
            "a frequent word": [word(place) for place in common],
            "a rare word": [word(place) for place in rare],
            "a beginning": [f"{first}{vowel}" for first in "bdfgklmnprst" for vowel in "aeiou"],
            "two frequent words": [f"{word(a)} {word(b)}" for a, b in zip(common, reversed(common), strict=True) if a != b],
            "a frequent and a rare one": [f"{word(place % 40)} {word(place)}" for place in rare],
            "words never together": [f"{word(place)} {word(other)}" for place, other in zip(rare, reversed(rare), strict=True)],
        }

    def _publish(self, place: int) -> tuple[Statement, tuple[bytes, bytes]]:
        author = self._bulk.authors[place % len(self._bulk.authors)]
        name = f"new-{self._bulk.protocols}-{place}"
        document, card = f"# {name}\n\nA new one.\n".encode(), Card(name, "A new protocol.", ("new",), "Apache-2.0").encode()
        uri = f"https://{self._served.origin}/protocols/{author.parsed.namespace}/{name}/1.0"
        named = Blob(hex_digest(document), len(document)), Blob(hex_digest(card), len(card))
        body = Publish(uri, f"bulk/t-{place % 20}", named[0], named[1], "negotiated")
        return author.statement(body, log=self._served.origin, issued=int(time.time())), (document, card)

    async def _votes(self, number: int) -> list[Statement]:
        note = (await self._writer.checkpoint()).decode()
        votes = []
        for place in range(number):
            voter = self._bulk.voters[place % len(self._bulk.voters)]
            small = self._bulk.protocol(self._random.randrange(self._bulk.protocols))
            ballot = Ballot(small.topic, voter.cast[small.topic], ((small.hash,), (NONE,)), note)
            voter.cast[small.topic] += 1
            votes.append(voter.identity.statement(ballot, log=self._served.origin, issued=int(time.time())))
        return votes

    def _read(self, path: str, headers: dict[str, str] = _JSON, **params: str) -> Callable[[], Awaitable[object]]:
        return lambda: self._get(path, headers, **params)

    async def _get(self, path: str, headers: dict[str, str] = _JSON, **params: str) -> None:
        answer = await self._client.get(path, headers=headers, params=params or None)
        if answer.status_code != 200:
            raise SceneFailed(f"{path} {params}: {answer.status_code} {answer.text[:300]}")

    def _submit(self, statements: Sequence[Statement]) -> Callable[[], Awaitable[object]]:
        async def submit() -> None:
            for outcome in await self._writer.submit_batch(statements):
                if not isinstance(outcome, bytes):
                    raise SceneFailed(str(outcome)) from outcome

        return submit


async def measure(sizes: Sequence[int], leaves: int, home: Path, tell: Callable[[str], None]) -> AsyncIterator[Size]:
    """Fill and measure one size after the other."""
    port = free_port()
    bulk = Bulk(home / "registry", f"{port}.localhost")
    for size in sorted(sizes):
        begun = time.monotonic()
        await bulk.fill(size, size * leaves, partial(_tell_filled, tell, size))
        filled = time.monotonic() - begun
        tell(f"{size:,} protocols: measuring")
        async with AsyncExitStack() as stack:
            served = await stack.enter_async_context(registry(home, port=port))
            async with connect(f"postgresql://postgres@/postgres?host={(served.data / 'postgres').resolve()}") as connection:
                await connection.execute("vacuum (analyze)")  # as the server's own does some minutes after such growth
                database = await connection.fetchval("select pg_database_size('postgres')")
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=served.url, timeout=60, trust_env=False))
            writer = await stack.enter_async_context(RegistryClient(served.url, Network()))
            meter = _Meter(served)
            await meter.rest()
            cpu = await _Requests(bulk, served, client, writer).measure(meter)
            blobs = sum(file.stat().st_size for file in (served.data / "blobs").rglob("*") if file.is_file())
            megabytes = round(database / 2**20, 1), round(blobs / 2**20, 1), meter.memory()
        yield Size(bulk.protocols, bulk.leaves, cpu, *megabytes, round(filled, 1))


def _tell_filled(tell: Callable[[str], None], size: int, filled: int) -> None:
    tell(f"{size:,} protocols: {filled:,} leaves")


def too_fast(sizes: Sequence[Size]) -> list[str]:
    """Return the requests that are dearer than `TOO_FAST` times those of a tenth of the size."""
    found = set()
    for before, after in pairwise(sizes):
        allowed = TOO_FAST * max(1.0, after.protocols / before.protocols / 10)
        found |= {name for name, cost in after.cpu.items() if cost > allowed * max(before.cpu[name], 0.5)}
    return sorted(found)


def table(figure: Figure) -> str:
    """Return the figures in Markdown."""
    heads = [f"{size.protocols:,}" for size in figure.sizes]
    rows = [("leaves", [f"{size.leaves:,}" for size in figure.sizes])]
    for name in figure.sizes[0].cpu:
        rows.append((f"{name}, ms of CPU", [f"{size.cpu[name]:.2f}" for size in figure.sizes]))
    rows.append(("database, MiB", [f"{size.database:,.0f}" for size in figure.sizes]))
    rows.append(("database, KiB a leaf", [f"{1024 * size.database / size.leaves:.1f}" for size in figure.sizes]))
    rows.append(("documents and cards, MiB", [f"{size.blobs:,.1f}" for size in figure.sizes]))
    rows.append(("memory of the server, MiB", [f"{size.memory:,.0f}" for size in figure.sizes]))
    lines = [f"| protocols | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
    fast = ", ".join(figure.too_fast) or "nothing"
    return (
        "# Growth\n\n"
        "Milliseconds of processor time of the server and PostgreSQL for one request whose answer is not in memory, in a\n"
        "registry of so many protocols. bench/README.md says how it is measured. Growing too fast: "
        f"{fast}.\n\n![Curves](growth.svg)\n\n" + "\n".join(lines) + "\n\n"
        f"{figure.machine}; load average at the start {figure.load}; {figure.measured}.\n"
    )


def draw(figure: Figure, path: Path) -> None:
    """Draw the curves."""
    protocols = [size.protocols for size in figure.sizes]
    picture, (reads, searches, writes) = plt.subplots(1, 3, figsize=(12, 4.5), sharey=True)
    for name in figure.sizes[0].cpu:
        axis = searches if name.startswith("search") else writes if name.startswith(("publish", "vote")) else reads
        axis.plot(protocols, [size.cpu[name] for size in figure.sizes], marker="o", label=name.removeprefix("search: "))
    for axis, title in ((reads, "reading"), (searches, "searching"), (writes, "writing")):
        axis.set(title=title, xscale="log", yscale="log", xlabel="protocols")
        axis.grid(which="major", linewidth=0.3)
        axis.legend(fontsize="small")
    reads.set_ylabel("ms of CPU for one request")
    picture.tight_layout()
    picture.savefig(path, metadata={"Date": None})
    plt.close(picture)


def keep(figure: Figure) -> None:
    """Write the figures, the table and the curves."""
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(figure)) + b"\n")
    TABLE.write_text(table(figure))
    draw(figure, PICTURE)


async def _run(sizes: Sequence[int], leaves: int, home: Path, console: Console) -> Figure:
    load, found = round(os.getloadavg()[0], 1), list[Size]()
    with console.status("") as status:
        async for size in measure(sizes, leaves, home, status.update):
            found.append(size)
            console.print_json(data=msgspec.to_builtins(size))
    return Figure(found, too_fast(found), load, report.machine(), time.strftime("%Y-%m-%d", time.gmtime()))


def main(arguments: Sequence[str]) -> int:
    """Run, show the figures and keep them; the exit status is 1 if something grows too fast."""
    parser = argparse.ArgumentParser(prog="python -m bench growth", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="protocols")
    parser.add_argument("--leaves", type=int, default=3, help="leaves for each protocol (default: 3)")
    parser.add_argument("--data", type=Path, help="a folder for the registry; default: a temporary one, which is deleted")
    parser.add_argument("--dry", action="store_true", help="keep nothing")
    chosen = parser.parse_args(arguments)
    console = Console(highlight=False)
    with workspace() as folder:
        figure = asyncio.run(_run(chosen.sizes, chosen.leaves, chosen.data or folder, console))
    if not chosen.dry:
        keep(figure)
    console.print(table(figure))
    return 1 if figure.too_fast else 0
