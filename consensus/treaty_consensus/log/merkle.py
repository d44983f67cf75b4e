"""Compute and verify the Merkle tree of RFC 6962 §2.1 over SHA-256.

    MTH({})      = SHA-256()
    MTH({d})     = SHA-256(0x00 || d)                                    leaf_hash
    MTH(D[0:n])  = SHA-256(0x01 || MTH(D[0:k]) || MTH(D[k:n]))           node_hash, k = largest power of two < n

A `Node(level, index)` names a perfect subtree: MTH(D[index * 2**level : (index + 1) * 2**level]). Its hash never changes
after its last leaf is logged, so tiles store nodes. A proof takes two steps, so that an async caller can fetch in between:
`*_nodes` names the needed nodes, then the function of the same name builds the proof from their hashes.

Sizes and indexes are numbers of leaves, below 2**63. Only `Frontier` keeps state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from ..codes import LogCode
from ..errors import Malformed, NotFound, Untrusted

HASH_SIZE = 32
# Sizes fit a signed 64-bit integer, in databases and in other languages too.
MAX_SIZE = 2**63 - 1
EMPTY_ROOT = sha256(b"").digest()


class Node(NamedTuple):
    """Name a perfect subtree of 2**level leaves, the `index`-th of its level from the left."""

    level: int
    index: int  # type: ignore[assignment]  # the term of the RFC; `tuple.index` is not used on a Node


def leaf_hash(entry: bytes) -> bytes:
    """Return the 32-byte hash of a log entry, RFC 6962 §2.1."""
    # The prefixes 0x00 and 0x01 separate leaves from nodes: without them an inner node could pass as an entry.
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the 32-byte hash of an inner node from the hashes of its two children, RFC 6962 §2.1."""
    return sha256(b"\x01" + left + right).digest()


def root_nodes(size: int) -> list[Node]:
    """Return the perfect subtrees that make up a tree of `size` leaves, from left to right (the largest first)."""
    return range_nodes(0, size)


def inclusion_nodes(index: int, size: int) -> list[Node]:
    """Return the nodes that `inclusion_proof` needs. Raises `NotFound` (`log.missing`) unless 0 <= index < size."""
    siblings, right, left = _inclusion_parts(index, size)
    return [*siblings, *right, *left]


def consistency_nodes(old: int, new: int) -> list[Node]:
    """Return the nodes that `consistency_proof` needs. Raises `Malformed` (`log.form`) unless 0 <= old <= new."""
    return [node for begin, end in _consistency_ranges(old, new) for node in range_nodes(begin, end)]


def root(size: int, hashes: Mapping[Node, bytes]) -> bytes:
    """Return the root hash of the tree of `size` leaves. Raises `KeyError` when `hashes` lacks a node of `root_nodes(size)`."""
    return range_root(0, size, hashes) if size else EMPTY_ROOT


def range_nodes(begin: int, end: int) -> list[Node]:
    """Return the perfect subtrees of [begin, end), left to right. `begin` is a multiple of the largest one's size."""
    nodes = []
    while begin < end:
        level = (end - begin).bit_length() - 1
        nodes.append(Node(level, begin >> level))
        begin += 1 << level
    return nodes


def range_root(begin: int, end: int, hashes: Mapping[Node, bytes]) -> bytes:
    """Return the root hash over [begin, end). Raises `KeyError` when `hashes` lacks a node of `range_nodes`."""
    return _fold([hashes[node] for node in range_nodes(begin, end)])


def inclusion_proof(index: int, size: int, hashes: Mapping[Node, bytes]) -> list[bytes]:
    """Return PATH(index, D[0:size]) of RFC 6962 §2.1.1, from the leaf's sibling up to the root's child.

    Raises `NotFound` (`log.missing`) unless 0 <= index < size, and `KeyError` when `hashes` lacks a node of `inclusion_nodes`.
    """
    siblings, right, left = _inclusion_parts(index, size)
    # All that is right of the leaf's perfect subtree is one hash of the proof.
    folded = [_fold([hashes[node] for node in right])] if right else []
    return [*(hashes[node] for node in siblings), *folded, *(hashes[node] for node in left)]


def consistency_proof(old: int, new: int, hashes: Mapping[Node, bytes]) -> list[bytes]:
    """Return PROOF(old, D[0:new]) of RFC 6962 §2.1.2; empty when `old` is 0 or `new`.

    Raises `Malformed` (`log.form`) unless 0 <= old <= new, and `KeyError` when `hashes` lacks a node of `consistency_nodes`.
    """
    return [range_root(begin, end, hashes) for begin, end in _consistency_ranges(old, new)]


def verify_inclusion(index: int, size: int, leaf_hash: bytes, proof: Sequence[bytes], root: bytes) -> None:
    """Check that the tree of `size` leaves and `root` holds `leaf_hash` at `index` (RFC 9162 §2.1.3.2).

    The proof must have exactly the length that index and size require.

    Raises `Untrusted` (`log.inclusion`).
    """
    if not 0 <= index < size <= MAX_SIZE:
        raise _not_included(f"a tree of {size} leaves has no leaf {index}")
    # Without fixed lengths, the same bytes could be split into other hashes.
    if not _are_hashes(leaf_hash, root, *proof):
        raise _not_included("a hash has 32 bytes")
    node, last, computed = index, size - 1, leaf_hash
    for sibling in proof:
        if last == 0:
            raise _not_included("the proof is too long")
        # A right child, or the last node of its level, which has no right sibling.
        if node & 1 or node == last:
            computed = node_hash(sibling, computed)
            # The last node moves up unchanged until it is a right child (RFC 9162 §2.1.3.2).
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            computed = node_hash(computed, sibling)
        node, last = node >> 1, last >> 1
    if last != 0:
        raise _not_included("the proof is too short")
    if computed != root:
        raise _not_included("the proof leads to another root")


def verify_consistency(old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Check that the new tree only appends to the old one (RFC 9162 §2.1.4.2).

    The RFC does not define two cases: equal sizes need equal roots, and an old size of 0 needs the root of the empty tree.
    Both need an empty proof.

    Raises `Untrusted` (`log.consistency`).
    """
    if not 0 <= old_size <= new_size <= MAX_SIZE:
        raise _inconsistent(f"a tree of {new_size} leaves does not extend one of {old_size}")
    if not _are_hashes(old_root, new_root, *proof):
        raise _inconsistent("a hash has 32 bytes")
    if old_size == 0 and old_root != EMPTY_ROOT:
        raise _inconsistent("this is not the root of an empty tree")
    if old_size == new_size and old_root != new_root:
        raise _inconsistent("two trees of one size have different roots")
    if old_size in (0, new_size):
        if proof:
            raise _inconsistent("the proof is too long")
        return
    # A perfect old tree is itself a node of the new one; its root is known and left out of the proof.
    path = [old_root, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    if consistency_roots(old_size, new_size, path) != (old_root, new_root):
        raise _inconsistent("the proof leads to other roots")


def consistency_roots(old_size: int, new_size: int, path: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the roots of the old and the new tree that a consistency proof leads to, for 0 < old_size < new_size.

    `path`: the proof; where `old_size` is a power of two, the old root followed by the proof, because the proof leaves it
    out.

    Raises `Untrusted` (`log.consistency`) when the path has another length than the sizes require.
    """
    if not path:
        raise _inconsistent("the proof is too short")
    node, last = old_size - 1, new_size - 1
    # Start at the largest perfect subtree that ends with the last old leaf: both trees contain it.
    while node & 1:
        node, last = node >> 1, last >> 1
    old_computed = new_computed = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise _inconsistent("the proof is too long")
        if node & 1 or node == last:
            old_computed = node_hash(sibling, old_computed)
            new_computed = node_hash(sibling, new_computed)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            new_computed = node_hash(new_computed, sibling)
        node, last = node >> 1, last >> 1
    if last != 0:
        raise _inconsistent("the proof is too short")
    return old_computed, new_computed


class Frontier:
    """Hold the minimal state for appending: a size and the hashes of `root_nodes(size)`.

    An auditor adds every leaf hash and compares `root()` with the checkpoints. Mutable; an append costs one node hash
    amortised. Not safe for concurrent appends.
    """

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        """Start at `size`.

        `hashes`: from the `hashes` of a frontier of this size.

        Raises `Malformed` (`log.form`) when they do not fit `size`.
        """
        # A tree has one perfect subtree for each one bit of its size.
        if not 0 <= size <= MAX_SIZE or len(hashes) != size.bit_count() or not _are_hashes(*hashes):
            raise Malformed(LogCode.FORM, f"These are not the subtree hashes of a tree of {size} leaves.")
        self._size = size
        self._hashes = list(hashes)

    @property
    def size(self) -> int:
        """Return the number of leaves."""
        return self._size

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """Return the hashes of `root_nodes(size)`, in that order."""
        return tuple(self._hashes)

    def append(self, leaf_hash: bytes) -> list[bytes]:
        """Add a leaf; return the hashes of the perfect subtrees that it completes, by level: the leaf first, then upward.

        Raises `Malformed` (`log.form`) when `leaf_hash` is not 32 bytes.
        """
        if not _are_hashes(leaf_hash):
            raise Malformed(LogCode.FORM, f"A leaf hash has {HASH_SIZE} bytes.")
        completed = [leaf_hash]
        waiting = self._size
        # Each trailing one bit of the size is a subtree that the new leaf makes part of a larger one.
        while waiting & 1:
            completed.append(node_hash(self._hashes.pop(), completed[-1]))
            waiting >>= 1
        self._hashes.append(completed[-1])
        self._size += 1
        return completed

    def root(self) -> bytes:
        """Return the root hash of the leaves so far."""
        return _fold(self._hashes) if self._hashes else EMPTY_ROOT


def _inclusion_parts(index: int, size: int) -> tuple[list[Node], list[Node], list[Node]]:
    """Return the nodes of an inclusion proof (PATH of RFC 6962 §2.1.1), in proof order.

    The siblings inside the perfect subtree of `root_nodes(size)` that holds the leaf; the subtrees right of it; those left of it,
    the nearest first.
    """
    if not 0 <= index < size:
        raise NotFound(LogCode.MISSING, f"The log has {size} leaves; there is no leaf {index}.")
    subtrees = root_nodes(size)
    # Sizes of subtrees are the one bits of `size`. The leaf is in the one of the highest bit in which index and size differ.
    level = (index ^ size).bit_length() - 1
    own = (size >> level).bit_count() - 1
    siblings = [Node(above, index >> above ^ 1) for above in range(level)]
    return siblings, subtrees[own + 1 :], subtrees[:own][::-1]


def _consistency_ranges(old: int, new: int) -> list[tuple[int, int]]:
    """Return the leaf range of each hash of a consistency proof, in proof order (SUBPROOF of RFC 6962 §2.1.2)."""
    if not 0 <= old <= new:
        raise Malformed(LogCode.FORM, f"A tree of {new} leaves does not extend one of {old} leaves.")
    if old == 0:
        return []
    ranges = []
    begin, end = 0, new
    while end != old:
        split = _split(begin, end)
        if old <= split:
            ranges.append((split, end))
            end = split
        else:
            ranges.append((begin, split))
            begin = split
    if begin > 0:  # otherwise this range is the old tree: the verifier knows its root
        ranges.append((begin, end))
    return ranges[::-1]


def _split(begin: int, end: int) -> int:
    """Return where the tree over [begin, end) divides: the largest power of two below its size, counted from `begin`."""
    return begin + (1 << (end - begin - 1).bit_length() - 1)


def _fold(hashes: Sequence[bytes]) -> bytes:
    """Return the root over perfect subtrees of decreasing size."""
    computed = hashes[-1]
    for left in reversed(hashes[:-1]):
        computed = node_hash(left, computed)
    return computed


def _are_hashes(*values: bytes) -> bool:
    return all(len(value) == HASH_SIZE for value in values)


def _not_included(why: str) -> Untrusted:
    return Untrusted(
        LogCode.INCLUSION,
        f"The log does not prove that it holds this entry: {why}.",
        fix="Do not rely on the entry; keep the proof as evidence against the log.",
    )


def _inconsistent(why: str) -> Untrusted:
    return Untrusted(
        LogCode.CONSISTENCY,
        f"The log does not prove that it only appended: {why}.",
        fix="Keep both checkpoints and the proof: together they show whether the log was rewritten.",
    )
