"""The Merkle tree of RFC 6962 §2.1 over SHA-256.

    MTH({})      = SHA-256()
    MTH({d})     = SHA-256(0x00 || d)                                    leaf_hash
    MTH(D[0:n])  = SHA-256(0x01 || MTH(D[0:k]) || MTH(D[k:n]))           node_hash, k = largest power of two < n

A `Node(level, index)` names a perfect subtree: MTH(D[index * 2**level : (index + 1) * 2**level]). Once its last
leaf is logged its hash never changes, so nodes are what tiles store. Every proof is made in two steps, so that
an async caller does the fetching in between: `*_nodes` says which nodes are needed, then the function of the
same name assembles the proof from their hashes.

Sizes and indexes are numbers of leaves, below 2**63. Nothing here keeps state except `Frontier`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from ..errors import Malformed, NotFound, Untrusted

HASH_SIZE = 32
MAX_SIZE = 2**63 - 1
EMPTY_ROOT = sha256(b"").digest()


class Node(NamedTuple):
    """A perfect subtree of 2**level leaves, the `index`-th of its level from the left."""

    level: int
    index: int  # type: ignore[assignment]  # the field's own term; nobody searches a Node


def leaf_hash(entry: bytes) -> bytes:
    """The 32-byte hash of one log entry, RFC 6962 §2.1."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The 32-byte hash of an inner node from its two children's, RFC 6962 §2.1."""
    return sha256(b"\x01" + left + right).digest()


def root_nodes(size: int) -> list[Node]:
    """The perfect subtrees that make up a tree of `size` leaves, from left to right (so largest first)."""
    return _cover(0, size)


def inclusion_nodes(index: int, size: int) -> list[Node]:
    """The nodes `inclusion_proof` needs. Raises `NotFound` unless 0 <= index < size."""
    return [node for begin, end in _inclusion_ranges(index, size) for node in _cover(begin, end)]


def consistency_nodes(old: int, new: int) -> list[Node]:
    """The nodes `consistency_proof` needs. Raises `Malformed` unless 0 <= old <= new."""
    return [node for begin, end in _consistency_ranges(old, new) for node in _cover(begin, end)]


def root(size: int, hashes: Mapping[Node, bytes]) -> bytes:
    """The root hash of the tree of `size` leaves. KeyError when a node of `root_nodes(size)` is absent."""
    return _range_hash(0, size, hashes) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, hashes: Mapping[Node, bytes]) -> list[bytes]:
    """PATH(index, D[0:size]) of RFC 6962 §2.1.1, from the leaf's sibling up to the root's child.

    KeyError when a node of `inclusion_nodes(index, size)` is absent from `hashes`. Raises `NotFound` unless
    0 <= index < size.
    """
    return [_range_hash(begin, end, hashes) for begin, end in _inclusion_ranges(index, size)]


def consistency_proof(old: int, new: int, hashes: Mapping[Node, bytes]) -> list[bytes]:
    """PROOF(old, D[0:new]) of RFC 6962 §2.1.2; empty when `old` is 0 or equals `new`.

    KeyError when a node of `consistency_nodes(old, new)` is absent from `hashes`. Raises `Malformed` unless
    0 <= old <= new.
    """
    return [_range_hash(begin, end, hashes) for begin, end in _consistency_ranges(old, new)]


def verify_inclusion(index: int, size: int, leaf_hash: bytes, proof: Sequence[bytes], root: bytes) -> None:
    """Check that the tree of `size` leaves and `root` holds `leaf_hash` at `index` (RFC 9162 §2.1.3.2).

    The proof has exactly the length that index and size ask for. Raises `Untrusted("log.inclusion")`.
    """
    if not 0 <= index < size <= MAX_SIZE:
        raise _not_included(f"a tree of {size} leaves has no leaf {index}")
    if not _are_hashes(leaf_hash, root, *proof):
        raise _not_included("a hash has 32 bytes")
    node, last, computed = index, size - 1, leaf_hash
    for sibling in proof:
        if last == 0:
            raise _not_included("the proof is too long")
        if node & 1 or node == last:
            computed = node_hash(sibling, computed)
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

    The RFC leaves two cases out: equal sizes need equal roots, an old size of 0 needs the empty tree's root, and
    both need an empty proof. Raises `Untrusted("log.consistency")`.
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
    """The roots of the old and of the new tree to which a consistency proof leads, for 0 < old_size < new_size.

    `path`: the proof, after the old tree's root where `old_size` is a power of two, since the proof leaves that out. Raises
    `Untrusted("log.consistency")` when it is not as long as the sizes ask for.
    """
    if not path:
        raise _inconsistent("the proof is too short")
    node, last = old_size - 1, new_size - 1
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
    """The least that is needed to go on appending: a size and the hashes of `root_nodes(size)`.

    An auditor feeds it every leaf hash and compares `root()` with the checkpoints it meets. Mutable; an append
    costs one node hash amortised. Not safe for concurrent appends.
    """

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        """`hashes` as from a frontier's own `hashes`. Raises `Malformed` when they do not fit `size`."""
        if not 0 <= size <= MAX_SIZE or len(hashes) != size.bit_count() or not _are_hashes(*hashes):
            raise Malformed("log.frontier", f"These are not the subtree hashes of a tree of {size} leaves.")
        self._size = size
        self._hashes = list(hashes)

    @property
    def size(self) -> int:
        """How many leaves there are."""
        return self._size

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """The hashes of `root_nodes(size)`, in that order."""
        return tuple(self._hashes)

    def append(self, leaf_hash: bytes) -> list[bytes]:
        """Add a leaf; return the hashes of the perfect subtrees it completes, by level: itself, then upward.

        Raises `Malformed` when `leaf_hash` is not 32 bytes.
        """
        if not _are_hashes(leaf_hash):
            raise Malformed("log.hash", f"A leaf hash has {HASH_SIZE} bytes.")
        completed = [leaf_hash]
        waiting = self._size
        while waiting & 1:
            completed.append(node_hash(self._hashes.pop(), completed[-1]))
            waiting >>= 1
        self._hashes.append(completed[-1])
        self._size += 1
        return completed

    def root(self) -> bytes:
        """The root hash of the leaves so far."""
        return _fold(self._hashes) if self._hashes else EMPTY_ROOT


def _inclusion_ranges(index: int, size: int) -> list[tuple[int, int]]:
    """The leaf range behind each hash of an inclusion proof, in proof order (PATH of RFC 6962 §2.1.1)."""
    if not 0 <= index < size:
        raise NotFound("log.index", f"The log has {size} leaves; there is no leaf {index}.")
    ranges = []
    begin, end = 0, size
    while end - begin > 1:
        split = _split(begin, end)
        if index < split:
            ranges.append((split, end))
            end = split
        else:
            ranges.append((begin, split))
            begin = split
    return ranges[::-1]


def _consistency_ranges(old: int, new: int) -> list[tuple[int, int]]:
    """The leaf range behind each hash of a consistency proof, in proof order (SUBPROOF of RFC 6962 §2.1.2)."""
    if not 0 <= old <= new:
        raise Malformed("log.range", f"A tree of {new} leaves does not extend one of {old} leaves.")
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
    if begin > 0:  # otherwise this range is the old tree, whose root the verifier has
        ranges.append((begin, end))
    return ranges[::-1]


def _split(begin: int, end: int) -> int:
    """Where the tree over [begin, end) divides: the largest power of two smaller than its size, from `begin`."""
    return begin + (1 << (end - begin - 1).bit_length() - 1)


def _cover(begin: int, end: int) -> list[Node]:
    """The perfect subtrees of [begin, end), left to right; `begin` is aligned, as in every range made here."""
    nodes = []
    while begin < end:
        level = (end - begin).bit_length() - 1
        nodes.append(Node(level, begin >> level))
        begin += 1 << level
    return nodes


def _range_hash(begin: int, end: int, hashes: Mapping[Node, bytes]) -> bytes:
    return _fold([hashes[node] for node in _cover(begin, end)])


def _fold(hashes: Sequence[bytes]) -> bytes:
    """The root over perfect subtrees of falling size."""
    computed = hashes[-1]
    for left in reversed(hashes[:-1]):
        computed = node_hash(left, computed)
    return computed


def _are_hashes(*values: bytes) -> bool:
    return all(len(value) == HASH_SIZE for value in values)


def _not_included(why: str) -> Untrusted:
    return Untrusted(
        "log.inclusion",
        f"The log does not prove that it holds this entry: {why}.",
        fix="Do not rely on the entry; keep the proof as evidence against the log.",
    )


def _inconsistent(why: str) -> Untrusted:
    return Untrusted(
        "log.consistency",
        f"The log does not prove that it only appended: {why}.",
        fix="Keep both checkpoints and the proof: together they show whether the log was rewritten.",
    )
