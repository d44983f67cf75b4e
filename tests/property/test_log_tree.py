"""Trees of any size, grown in any steps: one root, provable leaves, consistent history."""

from __future__ import annotations

from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from treaty_consensus.log.merkle import (
    MAX_SIZE,
    Frontier,
    consistency_nodes,
    consistency_proof,
    inclusion_nodes,
    inclusion_proof,
    leaf_hash,
    root,
    root_nodes,
    verify_consistency,
    verify_inclusion,
)
from treaty_consensus.log.tiles import Tile, TreeEdge, node_hashes, tile_of, tiles_for, width_at

LEAVES = [leaf_hash(b"%d" % number) for number in range(1200)]
steps = st.lists(st.integers(0, 300), max_size=4)


def grow(batches: list[int]) -> tuple[list[TreeEdge], dict[Tile, bytes]]:
    """The edges after each batch, and every tile that was ever written."""
    edges, stored = [TreeEdge()], {}
    for batch in batches:
        edge, changed = edges[-1].appended(LEAVES[edges[-1].size : edges[-1].size + batch])
        edges.append(edge)
        stored.update(changed)
    return edges, stored


@given(steps)
@settings(deadline=None, max_examples=examples(60))
def test_batches_do_not_matter(batches: list[int]) -> None:
    edges, _ = grow(batches)
    assert edges[-1] == TreeEdge().appended(LEAVES[: sum(batches)])[0]
    frontier = Frontier()
    for leaf in LEAVES[: sum(batches)]:
        frontier.append(leaf)
    assert (frontier.size, frontier.root()) == (edges[-1].size, edges[-1].root())
    for edge in edges:
        assert TreeEdge.load(edge.size, edge.tiles) == edge


@given(steps)
@settings(deadline=None, max_examples=examples(60))
def test_tiles_only_ever_grow(batches: list[int]) -> None:
    _, stored = grow(batches)
    for tile, content in stored.items():
        for other, wider in stored.items():
            if other[:2] == tile[:2] and other.width >= tile.width:
                assert wider.startswith(content)


@given(steps, st.data())
@settings(deadline=None, max_examples=examples(80))
def test_stored_tiles_prove_leaves_and_history(batches: list[int], data: st.DataObject) -> None:
    edges, stored = grow(batches)
    old, new = sorted(data.draw(st.tuples(st.sampled_from(edges), st.sampled_from(edges))), key=lambda e: e.size)
    nodes = consistency_nodes(old.size, new.size)
    hashes = node_hashes(nodes, new.size, stored)
    proof = consistency_proof(old.size, new.size, hashes)
    verify_consistency(old.size, new.size, old.root(), new.root(), proof)
    assert root(new.size, node_hashes(root_nodes(new.size), new.size, stored)) == new.root()
    if new.size:
        index = data.draw(st.integers(0, new.size - 1))
        hashes = node_hashes(inclusion_nodes(index, new.size), new.size, stored)
        verify_inclusion(index, new.size, LEAVES[index], inclusion_proof(index, new.size, hashes), new.root())


@given(st.integers(1, MAX_SIZE), st.data())
@settings(deadline=None)
def test_in_a_log_of_any_size_every_needed_tile_exists(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    old = data.draw(st.integers(0, size))
    for nodes in (root_nodes(size), inclusion_nodes(index, size), consistency_nodes(old, size)):
        assert sum(1 << node.level for node in nodes) <= size
        for tile in tiles_for(nodes, size):
            assert tile.width == width_at(tile, size) > 0
        for node in nodes:
            assert tile_of(node, size).level == node.level // 8
    # A reader fetches little, however large the log: a tile or two a level.
    assert len(tiles_for([*inclusion_nodes(index, size), *consistency_nodes(old, size)], size)) <= 3 * 8
