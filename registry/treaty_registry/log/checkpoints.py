"""The head as readers see it, and the keys that sign it.

Every checkpoint has two signatures: the log's, and a cosignature (C2SP tlog-cosignature) of the log's clock key, which says when.
While the head stays as it is, `RENEWAL` seconds at most go by until the clock cosigns it again: the time of the cosignature is
the age of what a reader holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from treaty_consensus.log.checkpoint import Checkpoint, SignedCheckpoint
from treaty_consensus.log.note import SignerKey, sign
from treaty_consensus.log.tiles import TreeEdge

RENEWAL = 60


@dataclass(frozen=True)
class Head:
    """A released head: the signed checkpoint, and the right edge of exactly that tree, from which proofs are made."""

    signed: SignedCheckpoint
    edge: TreeEdge

    @property
    def size(self) -> int:
        """The number of leaves."""
        return self.signed.checkpoint.size

    @property
    def root(self) -> bytes:
        """The root hash."""
        return self.signed.checkpoint.root

    @property
    def note(self) -> bytes:
        """The signed note, as it is served."""
        return self.signed.note

    @property
    def time(self) -> int:
        """When the clock cosigned, POSIX seconds."""
        assert self.signed.time is not None
        return self.signed.time


@dataclass(frozen=True)
class CheckpointSigner:
    """Signs heads. Whoever calls `sign` has made sure that the head is durable and recorded by the fence."""

    log_key: SignerKey
    clock_key: SignerKey
    clock: Callable[[], datetime]

    def sign(self, edge: TreeEdge) -> Head:
        """The head of the tree that ends in `edge`, cosigned now. CPU-bound, about 0.2 ms."""
        checkpoint = Checkpoint(self.log_key.name, edge.size, edge.root())
        now = int(self.clock().timestamp())
        note = sign(checkpoint.format(), [self.log_key, self.clock_key], time=now)
        return Head(SignedCheckpoint(checkpoint, now, note), edge)
