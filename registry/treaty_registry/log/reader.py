"""Reading the log: leaves, tiles and proofs at a released head.

Everything here is answered from immutable rows below the head that the caller passes, and from that head's own right edge; so a
reader waits for no writer, and what it gets fits together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from treaty_consensus.errors import NotFound
from treaty_consensus.log import merkle
from treaty_consensus.log.merkle import Node
from treaty_consensus.log.proof import Receipt
from treaty_consensus.log.tiles import (
    TILE_WIDTH,
    Bundle,
    Tile,
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
    """Safe for concurrent use. Every method raises what the pool raises when PostgreSQL does not answer."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def leaves(self, indexes: Iterable[int], head: Head) -> dict[int, bytes]:
        """The leaves at `indexes`. Raises `NotFound` when one is not below the head."""
        wanted = set(indexes)
        _check_indexes(wanted, head)
        return await tables.read_leaves(self._pool, wanted)

    async def inclusion(self, indexes: Iterable[int], head: Head) -> dict[int, list[bytes]]:
        """The inclusion proofs of `indexes` at `head`. Raises `NotFound` when one is not below it."""
        wanted = set(indexes)
        _check_indexes(wanted, head)
        nodes = {node for index in wanted for node in merkle.inclusion_nodes(index, head.size)}
        hashes = await self._hashes(nodes, head)
        return {index: merkle.inclusion_proof(index, head.size, hashes) for index in wanted}

    async def consistency(self, old: int, head: Head) -> list[bytes]:
        """The proof that the tree of `old` leaves is a beginning of the head's. Raises `NotFound` when the head is smaller."""
        if not 0 <= old <= head.size:
            raise NotFound("log.size", f"This log has {head.size} leaves, not yet {old}.")
        hashes = await self._hashes(set(merkle.consistency_nodes(old, head.size)), head)
        return merkle.consistency_proof(old, head.size, hashes)

    async def root_at(self, size: int, head: Head) -> bytes:
        """The root that the log had at `size` ≤ the head's. Raises `NotFound` when the head is smaller."""
        if not 0 <= size <= head.size:
            raise NotFound("log.size", f"This log has {head.size} leaves, not yet {size}.")
        return merkle.root(size, await self._hashes(set(merkle.root_nodes(size)), head))

    async def index_of(self, statements: Collection[str], head: Head) -> dict[str, int]:
        """Statement id → index, for those that are logged below the head."""
        rows = await self._pool.fetch(
            "select statement, index from leaves where statement = any($1::bytea[]) and index < $2",
            [bytes.fromhex(statement) for statement in statements],
            head.size,
        )
        return {row["statement"].hex(): row["index"] for row in rows}

    async def receipts(self, indexes: Iterable[int], head: Head) -> dict[int, bytes]:
        """The receipts (C2SP tlog-proof) of the leaves at `indexes`. Raises `NotFound` when one is not below the head."""
        proofs = await self.inclusion(indexes, head)
        return {index: Receipt(index, tuple(proof), head.note).format() for index, proof in proofs.items()}

    async def tile(self, path: str, head: Head) -> bytes | None:
        """A hash tile or entry bundle by its path (C2SP tlog-tiles), or None when the log is not that large (yet).

        Raises `Malformed` when `path` is no tile's.
        """
        tile = parse_path(path)
        if tile.width > width_at(tile, head.size):
            return None
        if isinstance(tile, Bundle):
            first = tile.index * TILE_WIDTH
            return encode_bundle(await tables.read_range(self._pool, first, first + tile.width))
        whole = Tile(tile.level, tile.index, width_at(tile, head.size))
        return truncated(tile, (await self._tiles([whole], head))[whole])

    async def _hashes(self, nodes: set[Node], head: Head) -> dict[Node, bytes]:
        tiles = await self._tiles(tiles_for(nodes, head.size), head)
        return node_hashes(nodes, head.size, tiles)

    async def _tiles(self, wanted: Collection[Tile], head: Head) -> dict[Tile, bytes]:
        edge = head.edge.tiles
        found = {tile: edge[tile] for tile in wanted if tile in edge}
        stored = [tile for tile in wanted if tile not in edge]
        if stored:
            found |= await tables.read_tiles(self._pool, stored)
        return found


def _check_indexes(indexes: Collection[int], head: Head) -> None:
    if indexes and not 0 <= min(indexes) <= max(indexes) < head.size:
        raise NotFound("log.index", f"This log has {head.size} leaves, numbered from 0.")
