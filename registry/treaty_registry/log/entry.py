"""Define the values that the sequencer passes to the projections and to submitters.

An `Entry` is one leaf of the log as a projection sees it. `projection.apply(connection, entries)` gets the entries of one
commit, ascending by index and without gaps, inside the transaction that appends them. So its rows become visible together with
the leaves, or not at all. It uses only the entries: no clock, no sequence, no random value. So `rebuild` produces identical
rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from treaty_consensus.statement import Statement

from ..catalogue.handler_facts import HandlerFacts


class BlobReader(Protocol):
    """Read access to blobs. Safe for concurrent use."""

    async def get(self, sha256: str) -> bytes | None:
        """Return the bytes whose SHA-256 is `sha256` (64 hex digits), or None when they were never uploaded or were withdrawn."""


@dataclass(frozen=True)
class Entry:
    """Leaf `index` of the log: its bytes, its statement (None for a Sigstore leaf), and a reader for the blobs it names.

    The blobs of a statement exist when it is logged. A `rebuild` after a withdrawal reads None for them. `handler`: the facts
    that admission read from a handler's blobs. Without them the projection reads the blobs.
    """

    index: int
    leaf: bytes
    statement: Statement | None
    blobs: BlobReader
    handler: HandlerFacts | None = None


@dataclass(frozen=True)
class Logged:
    """A leaf that is durable and covered by a released checkpoint.

    `id`: the id of the statement; for a Sigstore leaf the SHA-256 of its bytes. `new`: whether this submission appended it.
    `receipt`: a C2SP tlog-proof of the leaf at `index`.
    """

    id: str
    index: int
    new: bool
    receipt: bytes
