"""The log's tables: what the right edge and the tiles are read back as, at every size that matters."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from treaty_consensus.errors import Untrusted
from treaty_consensus.log.merkle import EMPTY_ROOT, Frontier, leaf_hash
from treaty_consensus.log.tiles import Tile, TreeEdge
from treaty_registry.log import tables as log_tables
from treaty_registry.log.entry import Entry
from treaty_registry.storage.postgres import Connection, connect

EDGES = [0, 1, 2, 3, 255, 256, 257, 511, 512, 513, 767, 768, 1023, 1025]


class NoBlobs:
    async def get(self, sha256: str) -> bytes | None:
        return None


def leaf(index: int) -> bytes:
    return b"leaf %d" % index


@dataclass
class Log:
    """A log that grows in the database and, as the oracle, in memory."""

    connection: Connection
    edge: TreeEdge
    roots: list[bytes]

    async def grow(self, size: int) -> None:
        """Commit up to `size` leaves."""
        leaves = [leaf(index) for index in range(self.edge.size, size)]
        before = self.edge
        after, tiles = before.appended(map(leaf_hash, leaves))
        entries = [Entry(before.size + n, data, None, NoBlobs()) for n, data in enumerate(leaves)]
        async with self.connection.transaction():
            assert await log_tables.append(self.connection, before, after, entries, {}, tiles)
        frontier = Frontier(before.size, before.hashes)
        for data in leaves:
            frontier.append(leaf_hash(data))
            self.roots.append(frontier.root())
        self.edge = after


@pytest.fixture
async def log(database: str) -> AsyncIterator[Log]:
    async with connect(database) as connection:
        yield Log(connection, TreeEdge(), [EMPTY_ROOT])


async def test_the_edge_is_read_back_at_every_size(log: Log) -> None:
    for size in EDGES[1:]:
        await log.grow(size)
        assert await log_tables.read_head(log.connection) == (size, log.roots[size])
        assert await log_tables.load_edge(log.connection, size) == log.edge
    for size in EDGES:
        assert (await log_tables.load_edge(log.connection, size)).root() == log.roots[size]


@pytest.mark.deep
async def test_the_edge_of_three_levels_of_tiles(log: Log) -> None:
    """65,536 leaves fill a tile of level 1; written in one go, since it is the reading that is in question."""
    size = 65_536 + 256 * 3 + 7
    leaves = [leaf(index) for index in range(size)]
    edge, tiles = TreeEdge().appended(map(leaf_hash, leaves))
    await log.connection.copy_records_to_table("leaves", records=enumerate(leaves), columns=["index", "leaf"])
    rows = [(tile.level, tile.index, hashes) for tile, hashes in tiles.items() if tile.width == 256]
    await log.connection.copy_records_to_table("tiles", records=rows)
    assert len(edge.partial) == 3
    assert await log_tables.load_edge(log.connection, size) == edge


async def test_only_full_tiles_are_stored_and_never_change(log: Log) -> None:
    await log.grow(255)
    assert await log.connection.fetchval("select count(*) from tiles") == 0
    await log.grow(600)
    hashes = b"".join(leaf_hash(leaf(index)) for index in range(512))
    tiles = [Tile(0, 0), Tile(0, 1), Tile(0, 2), Tile(1, 0)]
    assert await log_tables.read_tiles(log.connection, tiles) == {
        Tile(0, 0): hashes[: 256 * 32],
        Tile(0, 1): hashes[256 * 32 :],
    }


async def test_leaves_come_back_in_bundles(log: Log) -> None:
    await log.grow(600)
    chunks = [chunk async for chunk in log_tables.stream_leaves(log.connection, 3, 600)]
    assert [len(chunk) for chunk in chunks] == [253, 256, 88]
    assert flat(chunks) == [leaf(index) for index in range(3, 600)]
    assert await log_tables.read_leaves(log.connection, [599, 0, 600]) == {0: leaf(0), 599: leaf(599)}


def flat(chunks: Sequence[Sequence[bytes]]) -> list[bytes]:
    return [item for chunk in chunks for item in chunk]


async def test_another_head_than_expected_moves_nothing(log: Log) -> None:
    await log.grow(5)
    stale = TreeEdge()
    after, tiles = stale.appended([hashlib.sha256(b"other").digest()] * 300)
    entries = [Entry(index, b"other", None, NoBlobs()) for index in range(300)]
    async with log.connection.transaction():
        assert not await log_tables.append(log.connection, stale, after, entries, {}, tiles)
    assert await log_tables.read_head(log.connection) == (5, log.roots[5])
    assert await log.connection.fetchval("select count(*) from leaves") == 5
    assert await log.connection.fetchval("select count(*) from tiles") == 0


@pytest.mark.parametrize("lost", ["leaves where index = 599", "tiles where index = 1"])
async def test_what_is_lost_is_noticed(log: Log, lost: str) -> None:
    await log.grow(600)
    await log.connection.execute(f"delete from {lost}")
    with pytest.raises(Untrusted) as refused:
        await log_tables.load_edge(log.connection, 600)
    assert refused.value.code == "log.damaged"
