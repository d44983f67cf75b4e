"""Read and write the log's own tables (migrations/0001_log.sql). All SQL that writes them is here.

A writer holds the leader's lock and passes the connection that holds it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from treaty_consensus.codes import LogCode
from treaty_consensus.errors import Untrusted
from treaty_consensus.facts import KEYS, Fact, KeysFact, decode, encode
from treaty_consensus.kinds import Withdrawal, blobs_of
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.merkle import Node, leaf_hash, node_hash
from treaty_consensus.log.tiles import TILE_HEIGHT, TILE_WIDTH, Tile, TreeEdge, edge_tiles, node_hash_in_tile
from treaty_consensus.log_keys import keys_of_log

from ..storage.postgres import AnyConnection, Connection, Pool
from ..storage.stored_leaf import restored, stored
from .entry import Entry

# One query, because the writer waits for it: facts and logged ids together cost one round trip a batch.
_LOOK_UP = """
select key, fact, null::bytea as statement, null::bigint as index from facts where key = any($1::text[])
union all
select null, null, statement, index from leaves where statement = any($2::bytea[])
"""

# The update of the head is the condition: if the head is not the one that the leader expects, nothing is written.
_APPEND = """
with moved as (
  update head set size = $3, root = $4 where size = $1 and root = $2 returning true
), new_leaves as (
  insert into leaves (index, leaf, statement)
  select row.* from moved, unnest($5::bigint[], $6::bytea[], $7::bytea[]) as row
), new_tiles as (
  insert into tiles (level, index, hashes)
  select row.* from moved, unnest($8::smallint[], $9::bigint[], $10::bytea[]) as row
), new_facts as (
  insert into facts (key, fact)
  select row.* from moved, unnest($11::text[], $12::bytea[]) as row
  on conflict (key) do update set fact = excluded.fact
)"""
_MOVED = "\nselect exists (select from moved)\n"

# In the transaction of the leaf: a blob is pending or served at any moment, never neither.
_NAME_BLOBS = """
with named as (
  insert into blobs (sha256, size, index)
  select row.* from unnest($1::bytea[], $2::bigint[], $3::bigint[]) as row
  on conflict (sha256) do nothing
)
delete from pending_blobs where sha256 = any($1::bytea[])
  and sha256 not in (select sha256 from blobs where sha256 = any($1::bytea[]) and withdrawn is not null)
"""

# The first withdrawal counts; a second one does not move it. The bytes become an upload that has expired, in the transaction of
# the leaf: even if this process ends, the next sweep of any process deletes them (`admission.uploads`).
_WITHDRAW = """
with withdrawn as (update blobs set withdrawn = $2 where sha256 = $1 and withdrawn is null returning sha256, size)
insert into pending_blobs (sha256, size, expires) select sha256, size, now() from withdrawn
on conflict (sha256) do update set expires = excluded.expires
"""


@dataclass(frozen=True)
class Addition:
    """The rows of other tables that are written by the statement of `append`.

    `sql`: further parts of its `with`, which read `moved`, so that they write nothing if the head was not moved. Their parameters
    begin at $13. `columns`: the values of these parameters.
    """

    sql: str
    columns: tuple[list[object], ...]


async def look_up(
    connection: Connection, keys: Iterable[str], statements: Collection[bytes]
) -> tuple[dict[str, Fact], dict[bytes, int]]:
    """Return the facts under `keys`, and the index of each of these statement ids that is logged. One round trip."""
    facts: dict[str, Fact] = {}
    logged: dict[bytes, int] = {}
    for row in await connection.fetch(_LOOK_UP, list(keys), list(statements)):
        if row["key"] is not None:
            facts[row["key"]] = decode(row["fact"])
        else:
            logged[row["statement"]] = row["index"]
    return facts, logged


async def read_fact(connection: Connection | Pool, key: str) -> Fact | None:
    """Return the fact under `key` as of the newest commit, or None."""
    data = await connection.fetchval("select fact from facts where key = $1", key)
    return decode(data) if data is not None else None


async def read_keys(connection: Connection | Pool) -> LogKeys | None:
    """Return the keys of the log as of the newest commit; None before its first leaf."""
    fact = await read_fact(connection, KEYS)
    return keys_of_log(fact) if isinstance(fact, KeysFact) else None


async def read_facts(connection: AnyConnection, keys: Sequence[str]) -> dict[str, Fact]:
    """Return the existing facts under `keys` as of the newest commit."""
    rows = await connection.fetch("select key, fact from facts where key = any($1)", list(keys))
    return {row["key"]: decode(row["fact"]) for row in rows}


async def append(
    connection: Connection,
    before: TreeEdge,
    after: TreeEdge,
    entries: Sequence[Entry],
    facts: Mapping[str, Fact],
    tiles: Mapping[Tile, bytes],
    addition: Addition | None = None,
) -> bool:
    """Move the head from `before` to `after`, and write the leaves, full tiles and facts between them. Within a transaction, or
    with an `addition` that makes all writes of these entries one statement, which is a transaction of its own.

    Returns False when the head is not `before`: another leader writes this log, and nothing was written here.
    """
    # Partial tiles are not stored: they change with each leaf, and `load_edge` computes them.
    full = {tile: hashes for tile, hashes in tiles.items() if tile.width == TILE_WIDTH}
    moved = await connection.fetchval(
        _APPEND + (f",\n{addition.sql}" if addition else "") + _MOVED,
        *(before.size, before.root(), after.size, after.root()),
        [entry.index for entry in entries],
        [stored(entry.leaf, entry.statement) for entry in entries],
        [bytes.fromhex(entry.statement.id) if entry.statement else None for entry in entries],
        *([tile.level for tile in full], [tile.index for tile in full], list(full.values())),
        *(list(facts), [encode(fact) for fact in facts.values()]),
        *(addition.columns if addition else ()),
    )
    if moved:
        await _apply_blobs(connection, entries)
    return bool(moved)


async def _apply_blobs(connection: Connection, entries: Sequence[Entry]) -> None:
    statements = [(entry.index, entry.statement.body) for entry in entries if entry.statement]
    named = [(bytes.fromhex(blob.sha256), blob.size, index) for index, body in statements for blob in blobs_of(body)]
    if named:
        await connection.execute(_NAME_BLOBS, *(list(column) for column in zip(*named, strict=True)))
    for index, body in statements:
        if isinstance(body, Withdrawal):
            await connection.execute(_WITHDRAW, bytes.fromhex(body.sha256), index)


async def write_facts(connection: Connection, facts: Mapping[str, Fact]) -> None:
    """Store all facts into an empty table."""
    values = [(key, encode(fact)) for key, fact in facts.items()]
    await connection.copy_records_to_table("facts", records=values, columns=["key", "fact"])


async def try_to_write(connection: Connection) -> None:
    """Write a MiB to PostgreSQL's disk and release it. Raises what asyncpg raises when there is no space."""
    async with connection.transaction():
        await connection.execute("create temporary table trial (data bytea) on commit drop")
        await connection.execute("insert into trial (data) values ($1)", os.urandom(1024 * 1024))  # zeros would be compressed


async def read_head(connection: Connection | Pool) -> tuple[int, bytes]:
    """Return the size and the root of the newest commit."""
    row = await connection.fetchrow("select size, root from head")
    assert row is not None
    return row["size"], row["root"]


async def holds_log(connection: Connection) -> bool:
    """Whether the database has a leaf; it may have no table yet."""
    return bool(await connection.fetchval("select to_regclass('head') is not null")) and (await read_head(connection))[0] > 0


async def read_leaves(connection: Connection | Pool, indexes: Collection[int]) -> dict[int, bytes]:
    """Return the leaves at `indexes`, without those that do not exist."""
    rows = await connection.fetch("select index, leaf from leaves where index = any($1::bigint[])", list(indexes))
    return {row["index"]: restored(row["leaf"]) for row in rows}


async def read_range(connection: Connection | Pool, begin: int, end: int) -> list[bytes]:
    """Return the leaves from `begin` up to, not including, `end`. Raises `Untrusted` when one is missing."""
    rows = await connection.fetch("select leaf from leaves where index >= $1 and index < $2 order by index", begin, end)
    # A gap must not shift later leaves to wrong indexes.
    if len(rows) != end - begin:
        raise _missing(f"leaves between {begin} and {end}")
    return [restored(row["leaf"]) for row in rows]


async def stream_leaves(connection: Connection | Pool, begin: int, end: int) -> AsyncIterator[list[bytes]]:
    """Yield the leaves from `begin` up to `end` in chunks of at most 256, each chunk within one entry bundle."""
    while begin < end:
        # In chunks, so that a replay of the whole log needs little memory.
        stop = min(end, (begin // TILE_WIDTH + 1) * TILE_WIDTH)
        yield await read_range(connection, begin, stop)
        begin = stop


async def read_tiles(connection: Connection | Pool, tiles: Collection[Tile]) -> dict[Tile, bytes]:
    """Return the full tiles at these coordinates, without those that do not exist."""
    rows = await connection.fetch(
        "select level, index, hashes from tiles"
        " join unnest($1::smallint[], $2::bigint[]) as wanted (level, index) using (level, index)",
        [tile.level for tile in tiles],
        [tile.index for tile in tiles],
    )
    return {Tile(row["level"], row["index"]): row["hashes"] for row in rows}


async def load_edge(connection: Connection | Pool, size: int) -> TreeEdge:
    """Return the right edge of the tree of the first `size` leaves, from the leaves and full tiles below it.

    The caller must compare its root with a recorded head. Raises `Untrusted` when leaves or tiles are missing.
    """
    partial: dict[Tile, bytes] = {}
    for tile in edge_tiles(size):
        first = tile.index * TILE_WIDTH
        if tile.level == 0:
            partial[tile] = b"".join(map(leaf_hash, await read_range(connection, first, first + tile.width)))
            continue
        below = [Tile(tile.level - 1, index) for index in range(first, first + tile.width)]
        stored = await read_tiles(connection, below)
        if len(stored) != len(below):
            raise _missing(f"tiles of level {tile.level - 1}")
        partial[tile] = b"".join(_tile_root(child, stored[child]) for child in below)
    return TreeEdge.load(size, partial)


def _tile_root(tile: Tile, hashes: bytes) -> bytes:
    """Return the hash of the subtree of a full tile, which the tile above contains."""
    halves = (Node(TILE_HEIGHT * tile.level + TILE_HEIGHT - 1, 2 * tile.index + side) for side in (0, 1))
    return node_hash(*(node_hash_in_tile(half, tile, hashes) for half in halves))


def _missing(what: str) -> Untrusted:
    return Untrusted(
        LogCode.DAMAGED,
        f"The database lacks {what}.",
        fix="Restore its newest backup; lost tiles come back with `rebuild`.",
    )
