"""Prove that a subtree, the leaves [start, end) of a log, belongs to the tree of a checkpoint.

These are the subtree consistency proofs of draft-ietf-plants-merkle-tree-certs, section 4.4, which C2SP tlog-mirror uses. They
are RFC 6962's consistency proofs for a subtree that need not begin at leaf 0. A subtree is valid if `start` is a multiple of the
smallest power of two that is at least its size.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..codes import LogCode
from ..errors import Untrusted
from .merkle import node_hash


def subtree_ranges(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """Return the leaves [begin, end) below each hash of the proof that the subtree [start, end) is of the tree of `size` leaves.

    The hashes of the proof are their Merkle roots (`merkle.range_root`), in this order.
    """
    assert is_subtree(start, end) and end <= size, "a valid subtree of the tree"
    begin, is_inside = 0, True
    siblings: list[tuple[int, int]] = []
    # From the root down to the subtree. Siblings are sent from the subtree up.
    while not (start == 0 and end == size):
        middle = _split(size)
        if end <= middle:
            siblings.append((begin + middle, begin + size))
            size = middle
            continue
        siblings.append((begin, begin + middle))
        # Its left half is a sibling: the verifier has only the hash of the whole.
        is_inside = is_inside and start >= middle
        start, end, begin, size = max(start - middle, 0), end - middle, begin + middle, size - middle
    return [*([] if is_inside else [(begin, begin + size)]), *siblings[::-1]]


def verify_subtree(start: int, end: int, size: int, subtree: bytes, root: bytes, proof: Sequence[bytes]) -> None:
    """Check that the subtree [start, end) with the root hash `subtree` is of the tree of `size` leaves with this root.

    Raises `Untrusted` (`log.consistency`).
    """
    if not is_subtree(start, end) or end > size:
        raise _bad("there is no such subtree")
    # The way down: on which side the sibling is, and whether it is a part of the subtree.
    way: list[tuple[bool, bool]] = []
    while not (start == 0 and end == size):
        middle = _split(size)
        if end <= middle:
            way.append((False, False))
            size = middle
            continue
        # From here on the subtree spans both halves, and so it does further down.
        way.append((True, start < middle))
        start, end, size = max(start - middle, 0), end - middle, size - middle
    spans = any(part for _, part in way)
    if len(proof) != len(way) + spans:
        raise _bad(f"it has {len(proof)} hashes, not {len(way) + spans}")
    hashes = iter(proof)
    whole = part = next(hashes) if spans else subtree
    for is_left, is_part in reversed(way):
        sibling = next(hashes)
        whole = node_hash(sibling, whole) if is_left else node_hash(whole, sibling)
        if is_part:
            part = node_hash(sibling, part)
    if part != subtree or whole != root:
        raise _bad("it leads to other hashes")


def is_subtree(start: int, end: int) -> bool:
    """Tell whether [start, end) can be a subtree."""
    return 0 <= start < end and start % (1 << (end - start - 1).bit_length()) == 0


def _split(size: int) -> int:
    """Return the largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def _bad(why: str) -> Untrusted:
    return Untrusted(LogCode.CONSISTENCY, f"The proof does not show that the subtree is of this log: {why}.")
