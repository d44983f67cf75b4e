"""The head as readers see it, and the keys that sign it.

Every checkpoint has two signatures: the log's, and a cosignature (C2SP tlog-cosignature) of the log's clock key, which says when.
While the head stays as it is, `RENEWAL` seconds at most go by until the clock cosigns it again: the time of the cosignature is
the age of what a reader holds.

Where the log has witnesses (`witnesses`), their cosignatures come a moment later than the head. So there are two: the newest
head, which receipts, tiles and records are of at once, and the *published* one, the newest that was witnessed, of which
`/checkpoint` and the bundles are. When witnesses stay away for longer than two renewals, the newest is published without them:
whoever needs them refuses it, and nobody else is kept from news.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from treaty_consensus.log.checkpoint import Checkpoint, SignedCheckpoint
from treaty_consensus.log.note import SignerKey, sign
from treaty_consensus.log.tiles import TreeEdge

RENEWAL = 60


@dataclass(frozen=True)
class Head:
    """A released head: the signed checkpoint, and the right edge of exactly that tree, from which proofs are made.

    `witnessed`: the newest head that witnesses have cosigned, this one or one before; its note has their signatures too."""

    signed: SignedCheckpoint
    edge: TreeEdge
    witnessed: Head | None = None

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

    @property
    def published(self) -> Head:
        """The head of the checkpoint and the bundles that are served."""
        witnessed = self.witnessed
        return witnessed if witnessed and self.time - witnessed.time <= 2 * RENEWAL else self

    def cosigned(self, lines: bytes) -> Head:
        """This head with the signature lines of witnesses added to its note."""
        return Head(replace(self.signed, note=self.signed.note + lines), self.edge)


@dataclass(frozen=True)
class CheckpointSigner:
    """Signs heads. The caller of `sign` has made sure that the head is durable, and recorded with its time by the fence."""

    log_key: SignerKey
    clock_key: SignerKey

    def sign(self, edge: TreeEdge, time: int) -> Head:
        """The head of the tree that ends in `edge`, cosigned at `time`, POSIX seconds. CPU-bound, about 0.2 ms."""
        checkpoint = Checkpoint(self.log_key.name, edge.size, edge.root())
        note = sign(checkpoint.format(), [self.log_key, self.clock_key], time=time)
        return Head(SignedCheckpoint(checkpoint, time, note), edge)
