"""RFC 6962 trees: every small proof verifies, and nothing else does."""

from __future__ import annotations

from itertools import pairwise

import pytest

from treaty_consensus.errors import Malformed, NotFound, Untrusted
from treaty_consensus.log.merkle import (
    EMPTY_ROOT,
    MAX_SIZE,
    Frontier,
    Node,
    consistency_nodes,
    consistency_proof,
    inclusion_nodes,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root,
    root_nodes,
    verify_consistency,
    verify_inclusion,
)

SIZES = range(41)
LEAVES = [leaf_hash(b"leaf %d" % number) for number in range(SIZES[-1])]


def mth(hashes: list[bytes]) -> bytes:
    """MTH of RFC 6962 §2.1, word for word, over leaf hashes."""
    if not hashes:
        return EMPTY_ROOT
    if len(hashes) == 1:
        return hashes[0]
    k = 1
    while 2 * k < len(hashes):
        k *= 2
    return node_hash(mth(hashes[:k]), mth(hashes[k:]))


ROOTS = [mth(LEAVES[:size]) for size in SIZES]
HASHES = {
    Node(level, index): mth(LEAVES[index << level : (index + 1) << level])
    for level in range(6)
    for index in range(len(LEAVES) >> level)
}


def proof_of(index: int, size: int) -> list[bytes]:
    return inclusion_proof(index, size, {node: HASHES[node] for node in inclusion_nodes(index, size)})


def extension(old: int, new: int) -> list[bytes]:
    return consistency_proof(old, new, {node: HASHES[node] for node in consistency_nodes(old, new)})


def sides(index: int, size: int) -> str:
    """On which side the siblings of a leaf stand, from the bottom up: all that a path says about position."""
    if size == 1:
        return ""
    k = 1 << (size - 1).bit_length() - 1
    return sides(index, k) + "R" if index < k else sides(index - k, size - k) + "L"


def corrupted(value: bytes) -> list[bytes]:
    flipped = [value[:place] + bytes([value[place] ^ 1 << place % 8]) + value[place + 1 :] for place in range(len(value))]
    return [*flipped, value[:-1], value + b"\x00", b""]


@pytest.mark.parametrize("size", SIZES)
def test_root_is_that_of_the_definition(size: int) -> None:
    assert root(size, {node: HASHES[node] for node in root_nodes(size)}) == ROOTS[size]


def test_root_nodes_are_the_perfect_subtrees_from_left_to_right() -> None:
    assert root_nodes(0) == []
    assert root_nodes(8) == [Node(3, 0)]
    assert root_nodes(7) == [Node(2, 0), Node(1, 2), Node(0, 6)]
    assert root_nodes(2**40 + 1) == [Node(40, 0), Node(0, 2**40)]


@pytest.mark.parametrize("size", SIZES)
def test_every_inclusion_proof_verifies_for_its_leaf_alone(size: int) -> None:
    for index in range(size):
        proof = proof_of(index, size)
        verify_inclusion(index, size, LEAVES[index], proof, ROOTS[size])
        for other in range(size):
            if other != index:
                with pytest.raises(Untrusted):
                    verify_inclusion(other, size, LEAVES[index], proof, ROOTS[size])
                with pytest.raises(Untrusted):
                    verify_inclusion(index, size, LEAVES[other], proof, ROOTS[size])


@pytest.mark.sample(6)
@pytest.mark.parametrize("size", range(1, 20))
def test_inclusion_proof_fits_no_place_of_another_shape(size: int) -> None:
    for index in range(size):
        proof = proof_of(index, size)
        for other_size in range(1, 40):
            for other in range(other_size):
                if sides(other, other_size) == sides(index, size):
                    verify_inclusion(other, other_size, LEAVES[index], proof, ROOTS[size])
                else:
                    with pytest.raises(Untrusted, match="does not prove"):
                        verify_inclusion(other, other_size, LEAVES[index], proof, ROOTS[size])


@pytest.mark.parametrize("size", range(1, 14))
def test_corrupt_inclusion_proofs_are_refused(size: int) -> None:
    for index in range(size):
        leaf, proof = LEAVES[index], proof_of(index, size)
        attempts = [(leaf, proof, wrong) for wrong in corrupted(ROOTS[size])]
        attempts += [(wrong, proof, ROOTS[size]) for wrong in corrupted(leaf)]
        for place, value in enumerate(proof):
            for wrong in corrupted(value):
                attempts.append((leaf, [*proof[:place], wrong, *proof[place + 1 :]], ROOTS[size]))
            attempts.append((leaf, [*proof[:place], *proof[place + 1 :]], ROOTS[size]))
        for place in range(len(proof) + 1):
            for extra in (leaf, ROOTS[size], EMPTY_ROOT):
                attempts.append((leaf, [*proof[:place], extra, *proof[place:]], ROOTS[size]))
        attempts += [
            (leaf, [*proof[:place], right, left, *proof[place + 2 :]], ROOTS[size])
            for place, (left, right) in enumerate(pairwise(proof))
        ]
        for wrong_leaf, wrong_proof, wrong_root in attempts:
            with pytest.raises(Untrusted) as refused:
                verify_inclusion(index, size, wrong_leaf, wrong_proof, wrong_root)
            assert refused.value.code == "log.inclusion"


def test_a_boundary_moved_between_two_hashes_is_refused() -> None:
    leaf, (sibling, *rest) = LEAVES[0], proof_of(0, 5)
    with pytest.raises(Untrusted, match="32 bytes"):
        verify_inclusion(0, 5, leaf + sibling[:1], [sibling[1:], *rest], ROOTS[5])
    with pytest.raises(Untrusted, match="32 bytes"):
        verify_inclusion(0, 5, leaf[:-1], [leaf[-1:] + sibling, *rest], ROOTS[5])
    first, second, *others = extension(3, 5)
    with pytest.raises(Untrusted, match="32 bytes"):
        verify_consistency(3, 5, ROOTS[3], ROOTS[5], [first + second[:1], second[1:], *others])


@pytest.mark.parametrize(("index", "size"), [(0, 0), (1, 1), (-1, 1), (-1, 5), (5, 5), (0, -1), (0, MAX_SIZE + 1)])
def test_inclusion_outside_the_tree_is_refused(index: int, size: int) -> None:
    with pytest.raises(Untrusted):
        verify_inclusion(index, size, LEAVES[0], [], LEAVES[0])


def test_a_proof_has_no_node_outside_the_tree() -> None:
    for index, size in [(0, 0), (-1, 3), (3, 3)]:
        with pytest.raises(NotFound):
            inclusion_nodes(index, size)
        with pytest.raises(NotFound):
            inclusion_proof(index, size, HASHES)
    for old, new in [(-1, 3), (4, 3)]:
        with pytest.raises(Malformed):
            consistency_nodes(old, new)
        with pytest.raises(Malformed):
            consistency_proof(old, new, HASHES)


@pytest.mark.parametrize("new", SIZES)
def test_every_consistency_proof_verifies_for_its_trees_alone(new: int) -> None:
    for old in range(new + 1):
        proof = extension(old, new)
        verify_consistency(old, new, ROOTS[old], ROOTS[new], proof)
        for other in range(new + 1):
            if other != old:
                with pytest.raises(Untrusted):
                    verify_consistency(other, new, ROOTS[old], ROOTS[new], proof)
                with pytest.raises(Untrusted):
                    verify_consistency(old, new, ROOTS[other], ROOTS[new], proof)
        if old not in (0, new):
            for lower in range(old, new):
                with pytest.raises(Untrusted):
                    verify_consistency(old, new, ROOTS[old], ROOTS[lower], proof)


@pytest.mark.parametrize("new", range(1, 14))
def test_corrupt_consistency_proofs_are_refused(new: int) -> None:
    for old in range(new + 1):
        first, second, proof = ROOTS[old], ROOTS[new], extension(old, new)
        attempts = [(wrong, second, proof) for wrong in corrupted(first)]
        # Any tree extends the empty one: then the new root is not constrained, but it is still a hash.
        attempts += [(first, wrong, proof) for wrong in corrupted(second) if old or len(wrong) != 32]
        for place, value in enumerate(proof):
            for wrong in corrupted(value):
                attempts.append((first, second, [*proof[:place], wrong, *proof[place + 1 :]]))
            attempts.append((first, second, [*proof[:place], *proof[place + 1 :]]))
        for place in range(len(proof) + 1):
            for extra in (first, second, EMPTY_ROOT):
                attempts.append((first, second, [*proof[:place], extra, *proof[place:]]))
        for old_root, new_root, wrong_proof in attempts:
            with pytest.raises(Untrusted) as refused:
                verify_consistency(old, new, old_root, new_root, wrong_proof)
            assert refused.value.code == "log.consistency"


def test_a_rewritten_history_is_not_consistent() -> None:
    rewritten = [leaf_hash(b"rewritten"), *LEAVES[1:]]
    hashes = {node: mth(rewritten[node.index << node.level : (node.index + 1) << node.level]) for node in HASHES}
    for new in range(2, 20):
        for old in range(1, new):
            with pytest.raises(Untrusted):
                verify_consistency(old, new, ROOTS[old], mth(rewritten[:new]), consistency_proof(old, new, hashes))


@pytest.mark.parametrize(("old", "new"), [(2, 1), (-1, 1), (-1, -1), (0, MAX_SIZE + 1)])
def test_impossible_sizes_are_not_consistent(old: int, new: int) -> None:
    with pytest.raises(Untrusted):
        verify_consistency(old, new, EMPTY_ROOT, EMPTY_ROOT, [])


def test_the_largest_tree_has_proofs_of_the_expected_length() -> None:
    assert len(inclusion_nodes(0, MAX_SIZE)) >= 63
    any_hash = dict.fromkeys(inclusion_nodes(MAX_SIZE - 1, MAX_SIZE), LEAVES[0])
    proof = inclusion_proof(MAX_SIZE - 1, MAX_SIZE, any_hash)
    assert len(proof) == 62  # the last leaf of 2**63 - 1 lacks a level
    with pytest.raises(Untrusted, match="another root"):
        verify_inclusion(MAX_SIZE - 1, MAX_SIZE, LEAVES[0], proof, EMPTY_ROOT)


def test_frontier_has_the_root_of_every_size() -> None:
    frontier = Frontier()
    for size in SIZES:
        assert (frontier.size, frontier.root()) == (size, ROOTS[size])
        assert frontier.hashes == tuple(HASHES[node] for node in root_nodes(size))
        if size < len(LEAVES):
            completed = frontier.append(LEAVES[size])
            assert completed == [HASHES[Node(level, size >> level)] for level in range(6) if (size + 1) % (1 << level) == 0]


@pytest.mark.parametrize("size", SIZES)
def test_frontier_resumes_from_its_hashes(size: int) -> None:
    frontier = Frontier(size, [HASHES[node] for node in root_nodes(size)])
    for leaf in LEAVES[size:]:
        frontier.append(leaf)
    assert frontier.root() == ROOTS[-1]


@pytest.mark.parametrize(
    ("size", "hashes"),
    [(-1, ()), (0, (LEAVES[0],)), (1, ()), (3, (LEAVES[0],)), (1, (b"short",)), (MAX_SIZE + 1, (LEAVES[0],))],
)
def test_frontier_of_other_hashes_is_refused(size: int, hashes: tuple[bytes, ...]) -> None:
    with pytest.raises(Malformed):
        Frontier(size, hashes)


def test_frontier_refuses_what_is_no_hash_and_stays_as_it_was() -> None:
    frontier = Frontier()
    frontier.append(LEAVES[0])
    with pytest.raises(Malformed):
        frontier.append(b"entry instead of its hash")
    assert (frontier.size, frontier.root()) == (1, ROOTS[1])
