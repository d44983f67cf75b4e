"""Audit and rebuild: compare the database with the leaves it stores.

Both derive every table again from the leaves alone, in temporary tables, with the migrations and the code of the real tables.
They compare row by row. The replay is the auditor's own: it checks signatures, every rule and every decision.

- `audit` changes nothing. It also checks the blobs and the fence, and reports its findings.
- `rebuild` replaces the derived rows that differ, in one transaction. Readers see the old rows until it commits. It never
  changes a leaf: leaves that do not hash to the recorded head can only be restored from a backup.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from treaty_consensus.audit import Replay
from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import LogCode
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.facts import log_of
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.tiles import TreeEdge
from treaty_consensus.statement import Statement

from .. import projection
from ..log import tables as log_tables
from ..log.entry import Entry
from ..log.fence import behind
from ..storage.blobs import BlobStore
from ..storage.postgres import Connection, Pool, migrations

# State of this registry that no leaf contains.
_NOT_DERIVED = ("leadership", "operator_acts", "pending_blobs", "senders", "spent_tokens")
# Bounds the memory: so many blobs are read at a time.
_BLOBS_AT_ONCE = 256


@dataclass(frozen=True)
class Rebuilt:
    """The result of `rebuild`. `tables`: for each derived table the number of rows that differed and were corrected."""

    size: int
    root: bytes
    tables: dict[str, int]

    @property
    def differed(self) -> bool:
        """Whether any row was corrected."""
        return any(self.tables.values())


@dataclass(frozen=True)
class Audited:
    """The result of `audit`. `epochs`: the number of decided epochs. `findings`: one sentence for each fault."""

    size: int
    root: bytes
    epochs: int
    blobs: int
    findings: list[str] = field(default_factory=list)


async def rebuild(writer: Connection, reader: Connection | Pool, blobs: BlobStore) -> Rebuilt:
    """Correct every derived table. `writer` holds the leader's lock and nothing else writes meanwhile; `reader` is another
    connection.

    One transaction: all or nothing. Raises `Untrusted` when the leaves do not match the head or break a rule.
    """
    async with writer.transaction():
        size, root = await log_tables.read_head(writer)
        async with _derived(writer, reader, blobs, size) as replay:
            tables = await _differences(writer)
            # Leaves are the source of all tables. If they are damaged, nothing derived from them is better than the
            # backup.
            if replay.root() != root or tables["leaves"] or tables["head"]:
                raise _damaged(size)
            for table in (table for table, rows in tables.items() if rows):
                # Not truncate, because readers continue to read. The table names are constants, so the SQL is safe.
                await writer.execute(f"delete from public.{table}")  # noqa: S608
                # Delete and insert are one transaction, so readers see the old rows until it commits, and a crash
                # changes nothing.
                await writer.execute(f"insert into public.{table} select * from pg_temp.{table}")  # noqa: S608
    return Rebuilt(size, root, tables)


async def audit(connection: Connection, reader: Connection | Pool, blobs: BlobStore, record: Checkpoint) -> Audited:
    """Check all stored data. Runs beside a live server and changes nothing.

    `record`: the fence's record, read before this call, so that the database is never behind it.
    """
    # Repeatable read: the live server goes on writing, and all tables must be compared at one moment.
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    try:
        size, root = await log_tables.read_head(connection)
        findings: list[str] = []
        epochs = 0
        try:
            async with _derived(connection, reader, blobs, size) as replay:
                epochs = _epochs(replay)
                # Findings are collected, so that one audit shows all faults.
                if replay.root() != root:
                    findings.append(str(_damaged(size)))
                tables = await _differences(connection)
                findings += [
                    f"{rows} rows of the table {table} do not follow from the leaves." for table, rows in tables.items() if rows
                ]
            if size < record.size or (await log_tables.load_edge(reader, record.size)).root() != record.root:
                findings.append(str(behind(record, size)))
        except TreatyError as error:
            findings.append(str(error))
        checked = await _check_blobs(connection, blobs, findings)
        return Audited(size, root, epochs, checked, findings)
    finally:
        # It wrote only temporary tables, and changes nothing.
        await transaction.rollback()


@asynccontextmanager
async def _derived(connection: Connection, reader: Connection | Pool, blobs: BlobStore, size: int) -> AsyncIterator[Replay]:
    """Within a transaction of `connection`: fill temporary tables from the first `size` leaves, which `reader` reads.

    During the block every table has a temporary copy. Unqualified names then mean the real tables again.
    """
    # The same migrations and projections then make and fill temporary tables instead of the real ones.
    await connection.execute("set local search_path = pg_temp")
    for _, sql in migrations():
        await connection.execute(sql)
    replay, edge = Replay(blobs.reader()), TreeEdge()
    async for leaves in log_tables.stream_leaves(reader, 0, size):
        first = replay.size
        # In a thread, because beside a live server the event loop answers requests.
        statements = await asyncio.to_thread(_replay, replay, leaves)
        entries = [Entry(first + n, leaf, statements[n], blobs) for n, leaf in enumerate(leaves)]
        before = edge
        edge, tiles = before.appended(map(leaf_hash, leaves))
        # Without facts: the replay has computed them itself, from the leaves alone.
        await log_tables.append(connection, before, edge, entries, {}, tiles)
        await projection.apply(connection, entries)
    await log_tables.write_facts(connection, replay.facts)
    await connection.execute("set local search_path to default")
    yield replay
    # Dropped here: temporary tables live as long as the connection, also after the commit of a rebuild.
    for table in await _tables(connection):
        await connection.execute(f"drop table pg_temp.{table}")


def _replay(replay: Replay, leaves: Sequence[bytes]) -> list[Statement | None]:
    parsed = [replay.append(leaf) for leaf in leaves]
    return [item if isinstance(item, Statement) else None for item in parsed]


async def _differences(connection: Connection) -> dict[str, int]:
    """Return for each derived table the number of rows that only the real table or only its copy has."""
    counts = {}
    for table in await _tables(connection):
        if table not in _NOT_DERIVED:
            # The bytes of the leaves were hashed, and an earlier release may have stored them in another form.
            columns = "index, statement" if table == "leaves" else "*"
            real, double = (f"select {columns} from {schema}.{table}" for schema in ("public", "pg_temp"))  # noqa: S608 (ours)
            difference = f"({real} except all {double}) union all ({double} except all {real})"
            counts[table] = await connection.fetchval(f"select count(*) from ({difference}) as row")  # noqa: S608 (names of ours)
    return counts


async def _tables(connection: Connection) -> list[str]:
    query = "select relname from pg_class where relnamespace = pg_my_temp_schema() and relkind = 'r' order by relname"
    return [row["relname"] for row in await connection.fetch(query)]


async def _check_blobs(connection: Connection, blobs: BlobStore, findings: list[str]) -> int:
    """Hash every served blob, and record missing and damaged ones. Returns the number of blobs."""
    rows = await connection.fetch("select sha256, size from blobs where withdrawn is null order by index")

    async def check(sha256: str, size: int) -> str | None:
        data = await blobs.get(sha256)
        if data is None:
            return f"The blob {sha256} is missing."
        if len(data) != size or await asyncio.to_thread(hex_digest, data) != sha256:
            return f"The blob {sha256} is damaged."
        return None

    for begin in range(0, len(rows), _BLOBS_AT_ONCE):
        part = rows[begin : begin + _BLOBS_AT_ONCE]
        results = await asyncio.gather(*(check(row["sha256"].hex(), row["size"]) for row in part))
        findings += [finding for finding in results if finding]
    return len(rows)


def _epochs(replay: Replay) -> int:
    return log_of(replay.facts).epoch if replay.size else 0


def _damaged(size: int) -> Untrusted:
    return Untrusted(
        LogCode.DAMAGED,
        f"The {size} leaves in the database are not the ones that the recorded head is of.",
        fix="Restore the database from its newest backup.",
    )
