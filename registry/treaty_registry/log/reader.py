"""Read leaves, tiles and proofs at a released head.

All answers come from immutable rows below the head that the caller passes, and from the right edge of that head. So readers do
not wait for writers, and answers at one head are consistent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from treaty_consensus.codes import LogCode
from treaty_consensus.errors import NotFound
from treaty_consensus.log import merkle
from treaty_consensus.log.merkle import Node
from treaty_consensus.log.proof import ReceiptWriter
from treaty_consensus.log.subtree import subtree_ranges
from treaty_consensus.log.tiles import (
    TILE_WIDTH,
    Bundle,
    Tile,
    TreeEdge,
    encode_bundle,
    node_hashes,
    parse_path,
    tiles_for,
    truncated,
    width_at,
)

from ..storage.postgres import Pool
from . import tables
from .checkpoints import Head


class LogReader:
    """Reads the log. Safe for concurrent use. Every method raises `Unavailable` when PostgreSQL does not answer."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def leaves(self, indexes: Iterable[int], head: Head) -> dict[int, bytes]:
        """Return the leaves at `indexes`. Raises `NotFound` when one is not below the head."""
        positions = set(indexes)
        _check_indexes(positions, head)
        return await tables.read_leaves(self._pool, positions)

    async def inclusion(self, indexes: Iterable[int], head: Head) -> dict[int, list[bytes]]:
        """Return the inclusion proofs of `indexes` at `head`. Raises `NotFound` when one is not below the head."""
        positions = set(indexes)
        _check_indexes(positions, head)
        nodes = {node for index in positions for node in merkle.inclusion_nodes(index, head.size)}
        hashes = await self._hashes(nodes, head)
        return {index: merkle.inclusion_proof(index, head.size, hashes) for index in positions}

    async def consistency(self, old: int, head: Head) -> list[bytes]:
        """Return the consistency proof from the tree of `old` leaves to `head`. Raises `NotFound` when the head is smaller."""
        if not 0 <= old <= head.size:
            raise NotFound(LogCode.MISSING, f"This log has {head.size} leaves, not yet {old}.")
        hashes = await self._hashes(set(merkle.consistency_nodes(old, head.size)), head)
        return merkle.consistency_proof(old, head.size, hashes)

    async def root_at(self, size: int, head: Head) -> bytes:
        """Return the root of the log at `size`. Raises `NotFound` when the head is smaller."""
        if not 0 <= size <= head.size:
            raise NotFound(LogCode.MISSING, f"This log has {head.size} leaves, not yet {size}.")
        return merkle.root(size, await self._hashes(set(merkle.root_nodes(size)), head))

    async def committed_root(self, size: int) -> bytes | None:
        """Return the root of the log at `size` as of the newest commit, by any process; None when the log is smaller."""
        newest, _ = await tables.read_head(self._pool)
        return (await tables.load_edge(self._pool, size)).root() if size <= newest else None

    async def entries(self, begin: int, end: int, head: Head) -> list[bytes]:
        """Return the leaves from `begin` up to, not including, `end`. Raises `NotFound` when the head is smaller."""
        if not 0 <= begin <= end <= head.size:
            raise NotFound(LogCode.MISSING, f"This log has {head.size} leaves, not yet {end}.")
        return await tables.read_range(self._pool, begin, end)

    async def subtree_proof(self, begin: int, end: int, size: int, head: Head) -> list[bytes]:
        """Return the proof that the subtree [begin, end) is of the tree of `size` leaves (`subtree`), at most the head's."""
        ranges = subtree_ranges(begin, end, size)
        hashes = await self._hashes({node for each in ranges for node in merkle.range_nodes(*each)}, head)
        return [merkle.range_root(*each, hashes) for each in ranges]

    async def index_of(self, statements: Collection[str], head: Head | None) -> dict[str, int]:
        """Return the index of each statement id that is logged below the head; None: as of the newest commit, by any process."""
        rows = await self._pool.fetch(
            "select statement, index from leaves where statement = any($1::bytea[]) and index < $2",
            [bytes.fromhex(statement) for statement in statements],
            head.size if head is not None else merkle.MAX_SIZE,
        )
        return {row["statement"].hex(): row["index"] for row in rows}

    async def receipts(self, indexes: Iterable[int], head: Head) -> dict[int, bytes]:
        """Return the receipts (C2SP tlog-proof) of the leaves at `indexes`. Raises `NotFound` when one is not below the head."""
        proofs = await self.inclusion(indexes, head)
        writer = ReceiptWriter(head.note)
        return {index: writer.write(index, proof) for index, proof in proofs.items()}

    async def tile(self, path: str, edge: TreeEdge) -> bytes | None:
        """Return a hash tile or entry bundle by its path (C2SP tlog-tiles), or None when the tree of `edge` is not large enough.

        Raises `Malformed` when `path` is not the path of a tile.
        """
        tile = parse_path(path)
        # A tile above this tree is not shown, although its rows may exist: all answers are of one head.
        if tile.width > width_at(tile, edge.size):
            return None
        if isinstance(tile, Bundle):
            first = tile.index * TILE_WIDTH
            return encode_bundle(await tables.read_range(self._pool, first, first + tile.width))
        whole = Tile(tile.level, tile.index, width_at(tile, edge.size))
        return truncated(tile, (await self._tiles([whole], edge))[whole])

    async def _hashes(self, nodes: set[Node], head: Head) -> dict[Node, bytes]:
        tiles = await self._tiles(tiles_for(nodes, head.size), head.edge)
        return node_hashes(nodes, head.size, tiles)

    async def _tiles(self, tiles_of: Collection[Tile], edge: TreeEdge) -> dict[Tile, bytes]:
        # The right edge changes with each head. It is read from memory, so readers do not see a later one.
        partial = edge.tiles
        tiles = {tile: partial[tile] for tile in tiles_of if tile in partial}
        stored = [tile for tile in tiles_of if tile not in partial]
        if stored:
            tiles |= await tables.read_tiles(self._pool, stored)
        return tiles


def _check_indexes(indexes: Collection[int], head: Head) -> None:
    if indexes and not 0 <= min(indexes) <= max(indexes) < head.size:
        raise NotFound(LogCode.MISSING, f"This log has {head.size} leaves, numbered from 0.")
