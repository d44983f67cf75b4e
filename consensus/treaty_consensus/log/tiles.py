"""C2SP tlog-tiles: the tree and its entries as static, immutable resources.

    /tile/<L>/<N>[.p/<W>]         hash tile: up to 256 SHA-256 hashes of 32 bytes, concatenated. Hash i of tile N
                                  at level L is Node(8 * L, 256 * N + i) of the Merkle tree.
    /tile/entries/<N>[.p/<W>]     entry bundle: up to 256 times a big-endian uint16 length and that many bytes;
                                  entry i of bundle N is leaf 256 * N + i.

    <L>  0 to 63, decimal, no leading zeros.
    <N>  decimal in groups of three digits, each but the last with an "x" before and a "/" after it, no leading
         group of zeros: 5 is 005, 1234067 is x001/x234/067.
    <W>  1 to 255, decimal, no leading zeros: the width of a partial tile. Without it the tile is full (256).

A tree of size s has floor(s / 256**L) hashes at tile level L; all tiles of a level are full except perhaps the
last. A full tile never changes, and a partial one is a prefix of what it grows into: `truncated` makes any `.p/W`
out of a wider tile. A path has one spelling; any other is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..canonical import parse_decimal
from ..errors import Malformed, NotFound, TooLarge
from .merkle import HASH_SIZE, MAX_SIZE, Frontier, Node, node_hash, root_nodes

TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT
MAX_ENTRY_BYTES = 2**16 - 1

_LENGTH_BYTES = 2
_MAX_INDEX = MAX_SIZE // TILE_WIDTH
_PATH = re.compile(r"/tile/(entries|[0-9]{1,2})/((?:x[0-9]{3}/){0,5}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?")
_MAX_PATH = 64


class Tile(NamedTuple):
    """A hash tile's coordinates: `width` hashes from the left, 256 when it is full."""

    level: int
    index: int  # type: ignore[assignment]  # the specification's own term
    width: int = TILE_WIDTH

    @property
    def path(self) -> str:
        """The URL path below the log's prefix, with its leading slash."""
        return f"/tile/{self.level}/{_coordinates(self.index, self.width)}"


class Bundle(NamedTuple):
    """An entry bundle's coordinates: `width` entries from the left, 256 when it is full."""

    index: int  # type: ignore[assignment]  # the specification's own term
    width: int = TILE_WIDTH

    @property
    def path(self) -> str:
        """The URL path below the log's prefix, with its leading slash."""
        return f"/tile/entries/{_coordinates(self.index, self.width)}"


def parse_path(path: str) -> Tile | Bundle:
    """The inverse of `path`. Raises `Malformed` on anything that is not the one spelling of a tile."""
    match = _PATH.fullmatch(path) if len(path) <= _MAX_PATH else None
    if match is None:
        raise _bad_path()
    kind, index_text, width_text = match.groups()
    digits = index_text.replace("x", "").replace("/", "").lstrip("0") or "0"
    try:
        index = parse_decimal(digits, limit=_MAX_INDEX)
        width = parse_decimal(width_text, limit=TILE_WIDTH - 1) if width_text else TILE_WIDTH
        tile = Bundle(index, width) if kind == "entries" else Tile(parse_decimal(kind, limit=63), index, width)
    except Malformed as error:
        raise _bad_path() from error
    if tile.path != path:
        raise _bad_path()
    return tile


def width_at(tile: Tile | Bundle, size: int) -> int:
    """How many hashes or entries the tile at these coordinates has in a tree of `size` leaves: 0 to 256."""
    level = tile.level if isinstance(tile, Tile) else 0
    return min(max((size >> TILE_HEIGHT * level) - tile.index * TILE_WIDTH, 0), TILE_WIDTH)


def truncated(tile: Tile | Bundle, data: bytes) -> bytes:
    """The first `tile.width` hashes or entries of `data`, the content at the same place of at least that width.

    Raises `NotFound` when `data` is narrower, `Malformed` when a bundle's lengths do not add up.
    """
    if isinstance(tile, Tile):
        ends: Sequence[int] = range(HASH_SIZE, len(data) + 1, HASH_SIZE)
    else:
        ends = _entry_ends(data)
    if not 1 <= tile.width <= len(ends):
        raise NotFound("log.tile-width", f"{tile.path} is wider than what is stored.")
    return data[: ends[tile.width - 1]]


def encode_bundle(entries: Sequence[bytes]) -> bytes:
    """An entry bundle of 1 to 256 entries. Raises `TooLarge` on an entry over 65,535 bytes, `Malformed` on the count."""
    if not 1 <= len(entries) <= TILE_WIDTH:
        raise Malformed("log.bundle", f"An entry bundle has 1 to {TILE_WIDTH} entries.")
    for entry in entries:
        if len(entry) > MAX_ENTRY_BYTES:
            raise TooLarge("log.entry-size", f"A log entry has at most {MAX_ENTRY_BYTES} bytes.")
    return b"".join(len(entry).to_bytes(_LENGTH_BYTES, "big") + entry for entry in entries)


def decode_bundle(data: bytes, width: int) -> list[bytes]:
    """The `width` entries of a bundle, nothing less and nothing after. Raises `TooLarge` or `Malformed`."""
    if len(data) > width * (_LENGTH_BYTES + MAX_ENTRY_BYTES):
        raise TooLarge("log.bundle-size", f"{len(data)} bytes are more than {width} log entries can have.")
    ends = _entry_ends(data)
    if len(ends) != width:
        raise Malformed("log.bundle", f"This entry bundle has {len(ends)} entries, not {width}.")
    return [data[begin + _LENGTH_BYTES : end] for begin, end in zip([0, *ends], ends, strict=False)]


def tile_of(node: Node, size: int) -> Tile:
    """The tile that holds `node` (or the hashes it is computed from) in a tree of `size` leaves, at its width there.

    Raises `NotFound` when the tree has no such node.
    """
    if min(node) < 0 or (node.index + 1) << node.level > size:
        raise NotFound("log.node", f"A tree of {size} leaves has no subtree {node.index} of level {node.level}.")
    level, above = divmod(node.level, TILE_HEIGHT)
    tile = Tile(level, node.index >> TILE_HEIGHT - above)
    return tile._replace(width=width_at(tile, size))


def tiles_for(nodes: Iterable[Node], size: int) -> list[Tile]:
    """The tiles that hold `nodes` in a tree of `size` leaves, each once. Raises `NotFound` as `tile_of`."""
    return list(dict.fromkeys(tile_of(node, size) for node in nodes))


def node_hash_in_tile(node: Node, tile: Tile, data: bytes) -> bytes:
    """The hash of `node` from the tile that holds it. Raises `Malformed` when it does not, or has another length."""
    _check_tile(tile, data)
    above = node.level - TILE_HEIGHT * tile.level
    first = (node.index << max(above, 0)) - TILE_WIDTH * tile.index
    if not (0 <= above < TILE_HEIGHT and 0 <= first <= tile.width - (1 << above)):
        raise Malformed("log.tile", f"{tile.path} does not hold subtree {node.index} of level {node.level}.")
    hashes = _hashes(data[first * HASH_SIZE : (first + (1 << above)) * HASH_SIZE])
    while len(hashes) > 1:
        hashes = _parents(hashes)
    return hashes[0]


def node_hashes(nodes: Iterable[Node], size: int, tiles: Mapping[Tile, bytes]) -> dict[Node, bytes]:
    """The hashes of many nodes at once; each tile of `tiles_for(nodes, size)` is hashed a single time.

    Raises `NotFound` when the tree has no such node or `tiles` lacks one, `Malformed` on a tile of a wrong length.
    """
    pyramids: dict[Tile, list[list[bytes]]] = {}
    found = {}
    for node in nodes:
        tile = tile_of(node, size)
        pyramid = pyramids.get(tile)
        if pyramid is None:
            if tile not in tiles:
                raise NotFound("log.tile-missing", f"{tile.path} is needed and absent.")
            _check_tile(tile, tiles[tile])
            pyramid = pyramids[tile] = [_hashes(tiles[tile])]
        above = node.level % TILE_HEIGHT
        while len(pyramid) <= above:
            pyramid.append(_parents(pyramid[-1]))
        found[node] = pyramid[above][node.index - (tile.index << TILE_HEIGHT - above)]
    return found


def edge_tiles(size: int) -> list[Tile]:
    """The partial tiles at the right edge of a tree of `size` leaves, lowest level first: what `TreeEdge` needs."""
    tiles = (Tile(level, size >> TILE_HEIGHT * (level + 1)) for level in range(_tile_levels(size)))
    return [tile._replace(width=width) for tile in tiles if (width := width_at(tile, size))]


@dataclass(frozen=True)
class TreeEdge:
    """What a sequencer keeps of the tree in order to grow it: the right edge, at most 8 KiB a tile level.

    Immutable: `appended` returns a new edge, so the old one stands when a commit fails. `TreeEdge()` is the
    empty tree. `hashes` are those of `root_nodes(size)`, `partial` the contents of the partial tile of each level.
    """

    size: int = 0
    hashes: tuple[bytes, ...] = ()
    partial: tuple[bytes, ...] = ()

    @classmethod
    def load(cls, size: int, tiles: Mapping[Tile, bytes]) -> TreeEdge:
        """The edge of a stored tree from its `edge_tiles(size)`.

        Compare `root()` with the recorded head before growing it: tiles alone prove nothing. Raises `NotFound`
        on a missing tile, `Malformed` on one of a wrong length.
        """
        hashes = node_hashes(root_nodes(size), size, tiles)
        contents = {tile.level: tiles[tile] for tile in edge_tiles(size)}
        return cls(size, tuple(hashes.values()), tuple(contents.get(level, b"") for level in range(_tile_levels(size))))

    @property
    def tiles(self) -> dict[Tile, bytes]:
        """The partial tiles, under their coordinates."""
        return {tile: self.partial[tile.level] for tile in edge_tiles(self.size)}

    def root(self) -> bytes:
        """The root hash at `size`."""
        return Frontier(self.size, self.hashes).root()

    def appended(self, leaf_hashes: Iterable[bytes]) -> tuple[TreeEdge, dict[Tile, bytes]]:
        """This edge with more leaves, and every hash tile that is new or wider, with its whole content.

        With those tiles and the new edge's `tiles` at hand, `node_hashes` can prove each appended leaf. Raises
        `Malformed` when a leaf hash is not 32 bytes.
        """
        frontier = Frontier(self.size, self.hashes)
        levels = [bytearray(content) for content in self.partial]
        changed: dict[Tile, bytes] = {}
        for leaf_hash in leaf_hashes:
            for level, completed in enumerate(frontier.append(leaf_hash)[::TILE_HEIGHT]):
                if level == len(levels):
                    levels.append(bytearray())
                content = levels[level]
                content += completed
                if len(content) == TILE_WIDTH * HASH_SIZE:
                    changed[Tile(level, (frontier.size >> TILE_HEIGHT * (level + 1)) - 1)] = bytes(content)
                    content.clear()
        edge = TreeEdge(frontier.size, frontier.hashes, tuple(bytes(content) for content in levels))
        before = self.tiles
        changed.update((tile, content) for tile, content in edge.tiles.items() if tile not in before)
        return edge, changed


def _tile_levels(size: int) -> int:
    """How many tile levels a tree of `size` leaves has."""
    return -(-size.bit_length() // TILE_HEIGHT)


def _coordinates(index: int, width: int) -> str:
    groups = f"{index % 1000:03d}"
    while index := index // 1000:
        groups = f"x{index % 1000:03d}/{groups}"
    return groups if width == TILE_WIDTH else f"{groups}.p/{width}"


def _entry_ends(data: bytes) -> list[int]:
    """Where each entry of a bundle ends; the last one ends the bundle."""
    ends: list[int] = []
    position = 0
    while position < len(data):
        begin = position + _LENGTH_BYTES
        position = begin + int.from_bytes(data[position:begin], "big")
        if position > len(data):
            raise Malformed("log.bundle", "This entry bundle ends within an entry.")
        if len(ends) == TILE_WIDTH:
            raise Malformed("log.bundle", f"This entry bundle has more than {TILE_WIDTH} entries.")
        ends.append(position)
    return ends


def _check_tile(tile: Tile, data: bytes) -> None:
    if len(data) != tile.width * HASH_SIZE:
        raise Malformed("log.tile", f"{tile.path} has {len(data)} bytes instead of {tile.width * HASH_SIZE}.")


def _hashes(data: bytes) -> list[bytes]:
    return [data[begin : begin + HASH_SIZE] for begin in range(0, len(data), HASH_SIZE)]


def _parents(hashes: list[bytes]) -> list[bytes]:
    """One level up: the hash of every complete pair."""
    return [node_hash(left, right) for left, right in zip(hashes[::2], hashes[1::2], strict=False)]


def _bad_path() -> Malformed:
    return Malformed(
        "log.tile-path",
        "This is not the path of a tile.",
        fix="Tiles are /tile/LEVEL/INDEX and /tile/entries/INDEX as in C2SP tlog-tiles, e.g. /tile/0/x001/234.p/5.",
    )
