"""C2SP tiles: coordinates, bundles, nodes in tiles, and the edge that grows them."""

from __future__ import annotations

from functools import cache

import pytest

from treaty_consensus.errors import Malformed, NotFound, TooLarge, Untrusted
from treaty_consensus.log.merkle import (
    EMPTY_ROOT,
    Node,
    inclusion_nodes,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root,
    root_nodes,
    verify_inclusion,
)
from treaty_consensus.log.tiles import (
    Bundle,
    Tile,
    TreeEdge,
    decode_bundle,
    edge_tiles,
    encode_bundle,
    node_hash_in_tile,
    node_hashes,
    parse_path,
    tile_of,
    tiles_for,
    truncated,
    width_at,
)

PATHS: list[tuple[str, Tile | Bundle]] = [
    ("/tile/0/000", Tile(0, 0)),
    ("/tile/0/005.p/1", Tile(0, 5, 1)),
    ("/tile/0/999.p/255", Tile(0, 999, 255)),
    ("/tile/1/x001/000", Tile(1, 1000)),
    ("/tile/5/x123/x456/078.p/2", Tile(5, 123456078, 2)),
    ("/tile/63/000", Tile(63, 0)),
    ("/tile/entries/x001/x234/067", Bundle(1234067)),
    ("/tile/entries/000.p/17", Bundle(0, 17)),
    ("/tile/0/x036/x028/x797/x018/x963/967", Tile(0, 2**55 - 1)),
]

NOT_PATHS = [
    "",
    "tile/0/000",
    "/tile/0/000/",
    "/tile/0/000\n",
    "/tile//000",
    "/tile/00/000",
    "/tile/64/000",
    "/tile/-1/000",
    "/tile/+1/000",
    "/tile/100/000",
    "/tile/data/000",
    "/tile/entries",
    "/tile/0/0",
    "/tile/0/00",
    "/tile/0/0000",
    "/tile/0/x000",
    "/tile/0/x000/001",
    "/tile/0/001/234",
    "/tile/0/x001/x234",
    "/tile/0/X001/234",
    "/tile/0/x1/234",
    "/tile/0/x001//234",
    "/tile/0/x036/x028/x797/x018/x963/968",
    "/tile/0/x999/x999/x999/x999/x999/999",
    "/tile/0/x001/x000/x000/x000/x000/x000/000",
    "/tile/0/000.p/0",
    "/tile/0/000.p/01",
    "/tile/0/000.p/256",
    "/tile/0/000.p/",
    "/tile/0/000.p",
    "/tile/0/000.p/1/",
    "/tile/0/000.P/1",
    "/tile/0/٠٠٠",
    "/tile/٠/000",
    "/tile/0/000.p/１",
    "/tile/0/../000",
    "/tile/8/0/000",
    "/checkpoint",
    "/tile/0/" + "x001/" * 40 + "001",
]


LEAVES = [leaf_hash(b"%d" % number) for number in range(70_000)]


def mth(begin: int, end: int) -> bytes:
    """MTH(D[begin:end]) of RFC 6962 §2.1."""
    if begin == end:
        return EMPTY_ROOT
    if end - begin == 1:
        return LEAVES[begin]
    middle = begin + (1 << (end - begin - 1).bit_length() - 1)
    return node_hash(mth(begin, middle), mth(middle, end))


@cache
def naive_tiles(size: int) -> dict[Tile, bytes]:
    """Every tile of a tree, straight from the formula of C2SP tlog-tiles."""
    tiles = {}
    level = 0
    while count := size >> 8 * level:
        span = 256**level
        for index in range(-(-count // 256)):
            places = range(index * 256, min((index + 1) * 256, count))
            content = [mth(place * span, (place + 1) * span) for place in places]
            tiles[Tile(level, index, len(content))] = b"".join(content)
        level += 1
    return tiles


@cache
def grown(size: int) -> TreeEdge:
    return TreeEdge().appended(LEAVES[:size])[0]


@pytest.mark.parametrize(("path", "tile"), PATHS)
def test_a_path_and_its_tile(path: str, tile: Tile | Bundle) -> None:
    assert tile.path == path
    assert parse_path(path) == tile
    assert type(parse_path(path)) is type(tile)


@pytest.mark.parametrize("path", NOT_PATHS)
def test_other_spellings_are_no_tiles(path: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse_path(path)
    assert refused.value.code == "log.form"


def test_the_tiles_of_70000_leaves_are_those_specified() -> None:
    assert edge_tiles(70_000) == [Tile(0, 273, 112), Tile(1, 1, 17), Tile(2, 0, 1)]
    assert width_at(Tile(0, 272), 70_000) == 256
    assert width_at(Tile(1, 0), 70_000) == 256
    assert width_at(Tile(0, 274), 70_000) == 0
    assert width_at(Tile(3, 0), 70_000) == 0
    assert width_at(Bundle(273), 70_000) == 112
    assert edge_tiles(256) == [Tile(1, 0, 1)]
    assert edge_tiles(0) == []


def test_bundle_round_trip_and_its_bytes() -> None:
    entries = [b"", b"a", b"\x00" * 300]
    data = encode_bundle(entries)
    assert data == b"\x00\x00" + b"\x00\x01a" + b"\x01\x2c" + b"\x00" * 300
    assert decode_bundle(data, 3) == entries
    largest = [b"x" * 65_535] * 2
    assert decode_bundle(encode_bundle(largest), 2) == largest


@pytest.mark.parametrize("width", [0, 1, 2, 4, 256])
def test_bundle_of_another_width_is_refused(width: int) -> None:
    with pytest.raises((Malformed, TooLarge)):
        decode_bundle(encode_bundle([b"a", b"b", b"c"]), width)


@pytest.mark.parametrize("data", [b"\x00", b"\x00\x01", b"\x00\x02a", b"\x00\x01a\x00", b"\x00\x01a\xff\xffb"])
def test_bundle_that_ends_within_an_entry_is_refused(data: bytes) -> None:
    for width in (1, 2):
        with pytest.raises(Malformed):
            decode_bundle(data, width)


def test_bundle_caps() -> None:
    with pytest.raises(TooLarge):
        encode_bundle([b"x" * 65_536])
    for entries in ([], [b""] * 257):
        with pytest.raises(Malformed):
            encode_bundle(entries)
    with pytest.raises(TooLarge):
        decode_bundle(b"\x00" * 65_538, 1)
    with pytest.raises(Malformed, match="more than 256"):
        decode_bundle(b"\x00" * 1000, 256)


def test_a_partial_tile_is_a_prefix() -> None:
    content = b"".join(LEAVES[:256])
    assert truncated(Tile(0, 7, 3), content) == content[:96]
    assert truncated(Tile(0, 7), content) == content
    bundle = encode_bundle([b"one", b"", b"three"])
    assert truncated(Bundle(7, 2), bundle) == encode_bundle([b"one", b""])
    assert truncated(Bundle(7, 3), bundle) == bundle


@pytest.mark.parametrize(
    ("tile", "data"),
    [
        (Tile(0, 0, 4), b"".join(LEAVES[:3])),
        (Tile(0, 0, 4), b"".join(LEAVES[:4])[:-1]),
        (Tile(0, 0), b""),
        (Tile(0, 0, 0), b"".join(LEAVES[:3])),
        (Bundle(0, 2), encode_bundle([b"one"])),
        (Bundle(0), b""),
        (Bundle(0, 0), encode_bundle([b"one"])),
    ],
)
def test_a_tile_does_not_grow_by_truncation(tile: Tile | Bundle, data: bytes) -> None:
    with pytest.raises(NotFound):
        truncated(tile, data)


def test_truncation_of_a_broken_bundle_is_refused() -> None:
    with pytest.raises(Malformed):
        truncated(Bundle(0, 1), b"\x00\x01a\x00")


@pytest.mark.parametrize("size", [1, 2, 3, 255, 256, 257, 300, 511, 512, 513, 1000])
def test_every_node_is_found_in_its_tile(size: int) -> None:
    tiles = naive_tiles(size)
    nodes = [Node(level, index) for level in range(11) for index in range(size >> level)]
    expected = {node: mth(node.index << node.level, (node.index + 1) << node.level) for node in nodes}
    assert node_hashes(nodes, size, tiles) == expected
    for node in nodes:
        tile = tile_of(node, size)
        assert node_hash_in_tile(node, tile, tiles[tile]) == expected[node]


def test_tiles_for_names_each_tile_once() -> None:
    assert tiles_for(inclusion_nodes(300, 600), 600) == [Tile(0, 1), Tile(1, 0, 2), Tile(0, 2, 88)]
    assert tiles_for([], 600) == []


@pytest.mark.parametrize("node", [Node(0, 600), Node(0, -1), Node(3, 75), Node(10, 0), Node(64, 0), Node(-1, 0)])
def test_a_node_outside_the_tree_is_in_no_tile(node: Node) -> None:
    with pytest.raises(NotFound):
        tile_of(node, 600)
    with pytest.raises(NotFound):
        node_hashes([node], 600, naive_tiles(600))


@pytest.mark.parametrize("node", [Node(0, 255), Node(0, 300), Node(0, -1), Node(2, 77), Node(8, 1), Node(7, 3), Node(-1, 512)])
def test_a_tile_gives_no_hash_it_does_not_hold(node: Node) -> None:
    tile = Tile(0, 1, 44)
    with pytest.raises(Malformed) as refused:
        node_hash_in_tile(node, tile, b"".join(LEAVES[:44]))
    assert refused.value.code == "log.form"


def test_a_full_tile_leaves_its_root_to_the_level_above() -> None:
    tile = tile_of(Node(8, 1), 600)
    assert tile == Tile(1, 0, 2)
    with pytest.raises(Malformed):
        node_hash_in_tile(Node(8, 1), Tile(0, 1), naive_tiles(600)[Tile(0, 1)])


def test_a_tile_of_the_wrong_length_or_missing_is_refused() -> None:
    tile, node = Tile(0, 0, 3), Node(0, 1)
    for data in (b"", b"".join(LEAVES[:2]), b"".join(LEAVES[:4]), b"".join(LEAVES[:3])[:-1]):
        with pytest.raises(Malformed):
            node_hash_in_tile(node, tile, data)
        with pytest.raises(Malformed):
            node_hashes([node], 3, {tile: data})
        with pytest.raises(Malformed):
            TreeEdge.load(3, {tile: data})
    with pytest.raises(NotFound):
        node_hashes([node], 3, {})
    with pytest.raises(NotFound):
        TreeEdge.load(3, {})


@pytest.mark.sample(3)
@pytest.mark.parametrize("start", [0, 1, 254, 255, 256, 257, 511, 65_534, 65_535, 65_536])
@pytest.mark.parametrize("more", [0, 1, 2, 3, 300])
def test_an_edge_grows_exactly_the_tiles_of_the_definition(start: int, more: int) -> None:
    edge = grown(start)
    before, root_before = edge, edge.root()
    after, changed = edge.appended(LEAVES[start : start + more])
    old, new = naive_tiles(start), naive_tiles(start + more)
    assert changed == {tile: content for tile, content in new.items() if tile not in old}
    assert after.tiles == {tile: content for tile, content in new.items() if tile.width < 256}
    assert after.root() == mth(0, start + more)
    assert after.size == start + more
    assert (edge, edge.root()) == (before, root_before)
    for tile, content in changed.items():
        for narrower in (other for other in old if other[:2] == tile[:2]):
            assert truncated(narrower, content) == old[narrower]


@pytest.mark.sample(5)
@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 600, 65_535, 65_536, 65_537])
def test_an_edge_is_loaded_from_its_partial_tiles(size: int) -> None:
    edge = grown(size)
    loaded = TreeEdge.load(size, edge.tiles)
    assert loaded == edge
    assert loaded.root() == mth(0, size)
    assert loaded.appended(LEAVES[:300]) == edge.appended(LEAVES[:300])


@pytest.mark.parametrize("count", [1, 2, 300])
@pytest.mark.parametrize("start", [0, 1, 250, 255, 256, 511, 65_400, 65_535])
def test_an_append_proves_each_new_leaf(start: int, count: int) -> None:
    batch = range(start, start + count)
    edge, changed = grown(start).appended(LEAVES[batch.start : batch.stop])
    from_tiles = node_hashes(
        [node for index in batch for node in inclusion_nodes(index, edge.size)], edge.size, {**edge.tiles, **changed}
    )
    for index in batch:
        proof = inclusion_proof(index, edge.size, edge.nodes)
        assert proof == inclusion_proof(index, edge.size, from_tiles)
        verify_inclusion(index, edge.size, LEAVES[index], proof, edge.root())


def test_a_flipped_tile_changes_the_root() -> None:
    edge = grown(600)
    for tile, content in edge.tiles.items():
        for place in range(0, len(content), 31):
            flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
            loaded = TreeEdge.load(600, {**edge.tiles, tile: flipped})
            assert loaded.root() != edge.root()


def test_a_proof_from_a_flipped_tile_is_refused() -> None:
    tiles, head = naive_tiles(600), mth(0, 600)
    nodes = inclusion_nodes(300, 600)
    for tile in tiles_for(nodes, 600):
        flipped = bytearray(tiles[tile])
        flipped[0] ^= 1  # leaf 300 has its siblings to the left in every tile but the last
        hashes = node_hashes(nodes, 600, {**tiles, tile: bytes(flipped)})
        with pytest.raises(Untrusted):
            verify_inclusion(300, 600, LEAVES[300], inclusion_proof(300, 600, hashes), head)


def test_an_append_that_fails_leaves_the_edge_as_it_was() -> None:
    edge = grown(255)
    with pytest.raises(Malformed):
        edge.appended([leaf_hash(b"good"), b"not a hash"])
    assert edge == grown(255)
    assert edge.appended([leaf_hash(b"good")])[0].size == 256


def test_root_over_tiles_is_that_of_the_edge() -> None:
    tiles = naive_tiles(1000)
    assert root(1000, node_hashes(root_nodes(1000), 1000, tiles)) == grown(1000).root()
