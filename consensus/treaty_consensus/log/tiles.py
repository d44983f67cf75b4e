"""Read and write C2SP tlog-tiles: the tree and its entries as static, immutable resources.

    /tile/0/x001/234.p/5         a hash tile, here partial: hash i of tile N at level L is Node(8 * L, 256 * N + i)
    /tile/entries/005            an entry bundle: entry i of bundle N is leaf 256 * N + i

A tree of size s has floor(s / 256**L) hashes at tile level L; all tiles of a level are full except perhaps the last. A full
tile never changes. A partial tile is a prefix of every wider one, so `truncated` produces any `.p/W` from a wider tile. Each
tile has one path. Specification: `docs/specification/log.md`, "Tiles".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..canonical import parse_decimal
from ..codes import LogCode
from ..errors import Malformed, NotFound, TooLarge
from .merkle import HASH_SIZE, MAX_SIZE, Frontier, Node, node_hash, root_nodes

# Tiles of 256 hashes, as C2SP tlog-tiles fixes.
TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT
# A bundle writes the length of an entry in 16 bits.
MAX_ENTRY_BYTES = 2**16 - 1

_LENGTH_BYTES = 2
_MAX_INDEX = MAX_SIZE // TILE_WIDTH
_PATH = re.compile(r"/tile/(entries|[0-9]{1,2})/((?:x[0-9]{3}/){0,5}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?")
# Longer than any valid path; keeps the regular expression away from long input.
_MAX_PATH = 64


class Tile(NamedTuple):
    """Name a hash tile: `width` hashes from the left, 256 when it is full."""

    level: int
    index: int  # type: ignore[assignment]  # the specification's own term
    width: int = TILE_WIDTH

    @property
    def path(self) -> str:
        """Return the URL path below the log's prefix, with its leading slash."""
        return f"/tile/{self.level}/{_coordinates(self.index, self.width)}"


class Bundle(NamedTuple):
    """Name an entry bundle: `width` entries from the left, 256 when it is full."""

    index: int  # type: ignore[assignment]  # the specification's own term
    width: int = TILE_WIDTH

    @property
    def path(self) -> str:
        """Return the URL path below the log's prefix, with its leading slash."""
        return f"/tile/entries/{_coordinates(self.index, self.width)}"


def parse_path(path: str) -> Tile | Bundle:
    """Parse the path of a tile. Raises `Malformed` (`log.form`)."""
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
    # Each tile has one path, or caches and mirrors would hold it several times.
    if tile.path != path:
        raise _bad_path()
    return tile


def width_at(tile: Tile | Bundle, size: int) -> int:
    """Return the number of hashes or entries at these coordinates in a tree of `size` leaves: 0 to 256."""
    level = tile.level if isinstance(tile, Tile) else 0
    return min(max((size >> TILE_HEIGHT * level) - tile.index * TILE_WIDTH, 0), TILE_WIDTH)


def truncated(tile: Tile | Bundle, data: bytes) -> bytes:
    """Return the first `tile.width` hashes or entries of `data`.

    `data`: the content of a tile at the same place, of at least that width.

    Raises `NotFound` (`log.missing`) when `data` is narrower, `Malformed` (`log.form`) when a bundle's lengths do not
    add up.
    """
    if isinstance(tile, Tile):
        ends: Sequence[int] = range(HASH_SIZE, len(data) + 1, HASH_SIZE)
    else:
        ends = _entry_ends(data)
    if not 1 <= tile.width <= len(ends):
        raise NotFound(LogCode.MISSING, f"{tile.path} is wider than what is stored.")
    return data[: ends[tile.width - 1]]


def encode_bundle(entries: Sequence[bytes]) -> bytes:
    """Return an entry bundle of 1 to 256 entries.

    Raises `TooLarge` (`log.form`) for an entry over 65,535 bytes, `Malformed` (`log.form`) for another number of
    entries.
    """
    if not 1 <= len(entries) <= TILE_WIDTH:
        raise Malformed(LogCode.FORM, f"An entry bundle has 1 to {TILE_WIDTH} entries.")
    for entry in entries:
        if len(entry) > MAX_ENTRY_BYTES:
            raise TooLarge(LogCode.FORM, f"A log entry has at most {MAX_ENTRY_BYTES} bytes.")
    return b"".join(len(entry).to_bytes(_LENGTH_BYTES, "big") + entry for entry in entries)


def decode_bundle(data: bytes, width: int) -> list[bytes]:
    """Return exactly `width` entries of a bundle. Raises `TooLarge` (`log.form`) or `Malformed` (`log.form`)."""
    # Before parsing: so many entries cannot have more bytes.
    if len(data) > width * (_LENGTH_BYTES + MAX_ENTRY_BYTES):
        raise TooLarge(LogCode.FORM, f"{len(data)} bytes are more than {width} log entries can have.")
    ends = _entry_ends(data)
    if len(ends) != width:
        raise Malformed(LogCode.FORM, f"This entry bundle has {len(ends)} entries, not {width}.")
    return [data[begin + _LENGTH_BYTES : end] for begin, end in zip([0, *ends], ends, strict=False)]


def tile_of(node: Node, size: int) -> Tile:
    """Return the tile that holds `node`, or the hashes it is computed from, at its width in a tree of `size` leaves.

    Raises `NotFound` (`log.missing`) when the tree has no such node.
    """
    if min(node) < 0 or (node.index + 1) << node.level > size:
        raise NotFound(LogCode.MISSING, f"A tree of {size} leaves has no subtree {node.index} of level {node.level}.")
    level, above = divmod(node.level, TILE_HEIGHT)
    tile = Tile(level, node.index >> TILE_HEIGHT - above)
    return tile._replace(width=width_at(tile, size))


def tiles_for(nodes: Iterable[Node], size: int) -> list[Tile]:
    """Return the tiles that hold `nodes` in a tree of `size` leaves, each once. Raises the errors of `tile_of`."""
    return list(dict.fromkeys(tile_of(node, size) for node in nodes))


def node_hash_in_tile(node: Node, tile: Tile, data: bytes) -> bytes:
    """Return the hash of `node` from its tile. Raises `Malformed` (`log.form`) when the tile does not hold it or has another
    length.
    """
    _check_tile(tile, data)
    above = node.level - TILE_HEIGHT * tile.level
    first = (node.index << max(above, 0)) - TILE_WIDTH * tile.index
    if not (0 <= above < TILE_HEIGHT and 0 <= first <= tile.width - (1 << above)):
        raise Malformed(LogCode.FORM, f"{tile.path} does not hold subtree {node.index} of level {node.level}.")
    hashes = _hashes(data[first * HASH_SIZE : (first + (1 << above)) * HASH_SIZE])
    while len(hashes) > 1:
        hashes = _parents(hashes)
    return hashes[0]


def node_hashes(nodes: Iterable[Node], size: int, tiles: Mapping[Tile, bytes]) -> dict[Node, bytes]:
    """Return the hashes of many nodes. Each tile of `tiles_for(nodes, size)` is hashed only once.

    Raises `NotFound` when the tree has no such node or `tiles` lacks one, `Malformed` (`log.form`) for a tile of a wrong
    length.
    """
    pyramids: dict[Tile, list[list[bytes]]] = {}
    hashes_by_node = {}
    for node in nodes:
        tile = tile_of(node, size)
        pyramid = pyramids.get(tile)
        if pyramid is None:
            if tile not in tiles:
                raise NotFound(LogCode.MISSING, f"{tile.path} is needed and absent.")
            _check_tile(tile, tiles[tile])
            pyramid = pyramids[tile] = [_hashes(tiles[tile])]
        above = node.level % TILE_HEIGHT
        while len(pyramid) <= above:
            pyramid.append(_parents(pyramid[-1]))
        hashes_by_node[node] = pyramid[above][node.index - (tile.index << TILE_HEIGHT - above)]
    return hashes_by_node


def edge_tiles(size: int) -> list[Tile]:
    """Return the partial tiles at the right edge of a tree of `size` leaves, lowest level first. `TreeEdge.load` needs them."""
    tiles = (Tile(level, size >> TILE_HEIGHT * (level + 1)) for level in range(_tile_levels(size)))
    return [tile._replace(width=width) for tile in tiles if (width := width_at(tile, size))]


@dataclass(frozen=True)
class TreeEdge:
    """Hold the right edge of a tree, which a sequencer needs to append: at most 8 KiB a tile level.

    Immutable: `appended` returns a new edge, so the old one stays valid when a commit fails. `TreeEdge()` is the empty tree.

    `hashes`: those of `root_nodes(size)`.
    `partial`: the content of the partial tile of each level.
    `nodes`: the hashes that prove each leaf of the last `appended`; after `load` none.
    """

    size: int = 0
    hashes: tuple[bytes, ...] = ()
    partial: tuple[bytes, ...] = ()
    # Not compared: it says how a tree grew, and one tree may grow in several ways.
    nodes: Mapping[Node, bytes] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, size: int, tiles: Mapping[Tile, bytes]) -> TreeEdge:
        """Return the edge of a stored tree.

        Compare `root()` with the recorded head before appending: tiles alone prove nothing.

        `tiles`: the contents of `edge_tiles(size)`.

        Raises `NotFound` for a missing tile, `Malformed` for a tile of a wrong length.
        """
        hashes = node_hashes(root_nodes(size), size, tiles)
        contents = {tile.level: tiles[tile] for tile in edge_tiles(size)}
        return cls(size, tuple(hashes.values()), tuple(contents.get(level, b"") for level in range(_tile_levels(size))))

    @property
    def tiles(self) -> dict[Tile, bytes]:
        """Return the partial tiles under their coordinates."""
        return {tile: self.partial[tile.level] for tile in edge_tiles(self.size)}

    def root(self) -> bytes:
        """Return the root hash at `size`."""
        return Frontier(self.size, self.hashes).root()

    def appended(self, leaf_hashes: Iterable[bytes]) -> tuple[TreeEdge, dict[Tile, bytes]]:
        """Return the edge with more leaves, and every new or wider hash tile with its whole content.

        With the `nodes` of the new edge, `inclusion_proof` proves each appended leaf.

        Raises `Malformed` (`log.form`) when a leaf hash is not 32 bytes.
        """
        frontier = Frontier(self.size, self.hashes)
        levels = [bytearray(content) for content in self.partial]
        changed: dict[Tile, bytes] = {}
        # A sibling of a new leaf's ancestor is a subtree of the old edge, or is completed here. So nothing is hashed again.
        nodes = dict(zip(root_nodes(self.size), self.hashes, strict=True))
        for leaf_hash in leaf_hashes:
            subtrees = frontier.append(leaf_hash)
            index = frontier.size - 1
            nodes.update((Node(level, index >> level), subtree) for level, subtree in enumerate(subtrees))
            for level, completed in enumerate(subtrees[::TILE_HEIGHT]):
                if level == len(levels):
                    levels.append(bytearray())
                content = levels[level]
                content += completed
                # A full tile never changes: it is returned once, and its level starts anew.
                if len(content) == TILE_WIDTH * HASH_SIZE:
                    changed[Tile(level, (frontier.size >> TILE_HEIGHT * (level + 1)) - 1)] = bytes(content)
                    content.clear()
        edge = TreeEdge(frontier.size, frontier.hashes, tuple(bytes(content) for content in levels), nodes)
        before = self.tiles
        changed.update((tile, content) for tile, content in edge.tiles.items() if tile not in before)
        return edge, changed


def _tile_levels(size: int) -> int:
    """Return the number of tile levels of a tree of `size` leaves."""
    return -(-size.bit_length() // TILE_HEIGHT)


def _coordinates(index: int, width: int) -> str:
    groups = f"{index % 1000:03d}"
    while index := index // 1000:
        groups = f"x{index % 1000:03d}/{groups}"
    return groups if width == TILE_WIDTH else f"{groups}.p/{width}"


def _entry_ends(data: bytes) -> list[int]:
    """Return the end of each entry of a bundle. The last one is the end of the bundle."""
    ends: list[int] = []
    position = 0
    while position < len(data):
        begin = position + _LENGTH_BYTES
        position = begin + int.from_bytes(data[position:begin], "big")
        if position > len(data):
            raise Malformed(LogCode.FORM, "This entry bundle ends within an entry.")
        # Empty entries take two bytes each, so the number of entries needs its own bound.
        if len(ends) == TILE_WIDTH:
            raise Malformed(LogCode.FORM, f"This entry bundle has more than {TILE_WIDTH} entries.")
        ends.append(position)
    return ends


def _check_tile(tile: Tile, data: bytes) -> None:
    if len(data) != tile.width * HASH_SIZE:
        raise Malformed(LogCode.FORM, f"{tile.path} has {len(data)} bytes instead of {tile.width * HASH_SIZE}.")


def _hashes(data: bytes) -> list[bytes]:
    return [data[begin : begin + HASH_SIZE] for begin in range(0, len(data), HASH_SIZE)]


def _parents(hashes: list[bytes]) -> list[bytes]:
    """Return the hashes one level up: the hash of every complete pair."""
    return [node_hash(left, right) for left, right in zip(hashes[::2], hashes[1::2], strict=False)]


def _bad_path() -> Malformed:
    return Malformed(
        LogCode.FORM,
        "This is not the path of a tile.",
        fix="Use /tile/LEVEL/INDEX or /tile/entries/INDEX as in C2SP tlog-tiles, such as /tile/0/x001/234.p/5.",
    )
