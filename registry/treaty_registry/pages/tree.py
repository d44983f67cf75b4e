"""Lay out the pictures of the log's tree at one size: its perfect subtrees, and its tiles with the partial right edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from treaty_consensus.log.merkle import root_nodes
from treaty_consensus.log.tiles import TILE_HEIGHT, TILE_WIDTH, Tile

WIDTH = 720
_TOP, _FOOT = 24, 34
_ROW, _BOX, _LABEL = 56, 40, 96
MAX_BOXES = 11
"""The tiles of one level that are drawn. The table has the numbers of all."""


@dataclass(frozen=True)
class Subtree:
    """A perfect subtree: a triangle with its top at (`x`, `y`), and the point above it where it joins the right edge."""

    leaves: int
    x: int
    y: int
    left: int
    right: int
    join_x: int
    join_y: int

    @property
    def has_label(self) -> bool:
        """Whether its number of leaves fits below it. The table has all numbers."""
        return self.right - self.left >= 8 * len(f"{self.leaves:,}")


@dataclass(frozen=True)
class Box:
    """A tile at `x`. `filled`: the width of the filled part. `path` is None for the gap that stands for undrawn tiles."""

    x: int
    filled: int
    path: str | None
    count: int


@dataclass(frozen=True)
class Level:
    """The tiles of one level: full ones, and the hashes in the partial one."""

    number: int
    full: int
    partial: int
    y: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Tree:
    """Both pictures. `height`, `tiles_height`: of each, in units of the picture. `base`: the line of the leaves."""

    size: int
    height: int
    base: int
    subtrees: tuple[Subtree, ...]
    tiles_height: int
    levels: tuple[Level, ...]


def layout(size: int) -> Tree:
    """Return the pictures of the tree of `size` leaves."""
    levels = tuple(_levels(size))
    subtrees, height = _subtrees(size)
    return Tree(size, height, height - _FOOT, subtrees, len(levels) * _ROW, levels)


def _subtrees(size: int) -> tuple[tuple[Subtree, ...], int]:
    nodes = root_nodes(size)
    if not nodes:
        return (), _TOP + _FOOT
    tallest, count = nodes[0].level, len(nodes)
    # The widths follow the levels and not the leaves: otherwise the small ones at the right edge could not be seen.
    # A tree of few leaves is not stretched over the whole width.
    total = max(sum(node.level + 2 for node in nodes), 12)
    step = 14
    base = _TOP + step * (tallest + 1 + count)
    found, left = [], 12
    for place, node in enumerate(nodes):
        right = left + (WIDTH - 24) * (node.level + 2) // total
        x, y = (left + right) // 2, base - step * (node.level + 1)
        # The root joins the first subtree with all that is right of it, so the joints go down to the right.
        gap = min(3, (right - left) // 4)
        found.append(Subtree(1 << node.level, x, y, left + gap, right - gap, x, _TOP + step * min(place, max(count - 2, 0))))
        left = right
    return tuple(found), base + _FOOT


def _levels(size: int) -> Iterator[Level]:
    number, hashes = 0, size
    counts = []
    while hashes:
        counts.append((number, hashes))
        number, hashes = number + 1, hashes >> TILE_HEIGHT
    for row, (level, count) in enumerate(reversed(counts)):
        full, partial = divmod(count, TILE_WIDTH)
        yield Level(level, full, partial, row * _ROW, tuple(_boxes(level, full, partial)))


def _boxes(level: int, full: int, partial: int) -> Iterator[Box]:
    is_cut = full + bool(partial) > MAX_BOXES
    shown = [0, 1, -1, *range(full - MAX_BOXES + 4, full)] if is_cut else list(range(full))
    for place, index in enumerate(shown):
        x = _LABEL + place * (_BOX + 12)
        yield Box(x, _BOX, Tile(level, index).path if index >= 0 else None, TILE_WIDTH)
    if partial:
        x = _LABEL + len(shown) * (_BOX + 12)
        yield Box(x, max(2, _BOX * partial // TILE_WIDTH), Tile(level, full, partial).path, partial)
