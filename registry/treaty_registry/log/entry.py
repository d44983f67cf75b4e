"""What the sequencer hands to the projections, and what it tells those who submit.

An `Entry` is one leaf of the log as a projection sees it. `projection.apply(connection, entries)` is called with the entries of
one commit, ascending by index and without gaps, inside the transaction that appends them: what it writes becomes visible together
with the leaves, or not at all. It writes from the entries alone (no clock, no sequence, no random value), so that `rebuild`
arrives at identical rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from treaty_consensus.statement import Statement


class BlobReader(Protocol):
    """Read access to blobs. Safe for concurrent use."""

    async def get(self, sha256: str) -> bytes | None:
        """The bytes whose SHA-256 is `sha256` (64 hex digits), or None when they are not held here (never came, or withdrawn)."""


@dataclass(frozen=True)
class Entry:
    """Leaf `index` of the log: its bytes, the statement it is (None for a Sigstore leaf), and where to read the blobs it names.

    A statement's blobs were present when it was logged; a `rebuild` after a withdrawal reads None for them.
    """

    index: int
    leaf: bytes
    statement: Statement | None
    blobs: BlobReader


@dataclass(frozen=True)
class Logged:
    """A leaf that is durable and covered by a released checkpoint.

    `id`: the statement's id, for a Sigstore leaf the SHA-256 of its bytes. `new`: whether this submission appended it.
    `receipt`: a C2SP tlog-proof of the leaf at `index`.
    """

    id: str
    index: int
    new: bool
    receipt: bytes
