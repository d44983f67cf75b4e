"""Define the head of the log as readers see it, and sign it.

Every checkpoint has two signatures: the signature of the log, and a cosignature (C2SP tlog-cosignature) of the log's clock key,
which states the time. While the head does not change, the clock cosigns it again every `RENEWAL` seconds. So the time of the
cosignature tells a reader the age of its copy.

If the log has witnesses (`witnesses`), their cosignatures arrive shortly after the head is released. So there are two heads. The
newest head is used for receipts, tiles and records. The published head is the newest one with witness cosignatures;
`/checkpoint` and the bundles use it. A process publishes no head before one that it has published: a monitor takes a checkpoint
that goes back for a rollback of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from treaty_consensus.log.checkpoint import Checkpoint, SignedCheckpoint
from treaty_consensus.log.durability import Durability
from treaty_consensus.log.note import SignerKey, sign
from treaty_consensus.log.tiles import TreeEdge

# Seconds. The time of the clock's cosignature is the age of a copy, so it is renewed while the head does not change.
RENEWAL = 60


@dataclass(frozen=True)
class Head:
    """A released head: the signed checkpoint, and the right edge of the same tree, from which proofs are made.

    `witnessed`: the newest head with witness cosignatures, this one or an earlier one. Its note contains these cosignatures too.
    `published_before`: the head that its process published last before this one.
    """

    signed: SignedCheckpoint
    edge: TreeEdge
    witnessed: Head | None = None
    published_before: Head | None = None

    @property
    def size(self) -> int:
        """Return the number of leaves."""
        return self.signed.checkpoint.size

    @property
    def root(self) -> bytes:
        """Return the root hash."""
        return self.signed.checkpoint.root

    @property
    def note(self) -> bytes:
        """Return the signed note as it is served."""
        return self.signed.note

    @property
    def time(self) -> int:
        """Return the time of the clock's cosignature, POSIX seconds."""
        assert self.signed.time is not None
        return self.signed.time

    @property
    def published(self) -> Head:
        """Return the head that `/checkpoint` and the bundles use."""
        # If all witnesses fail, the newest head is published without them after two renewals. Readers that require
        # witnesses then refuse it, and all others still get new data.
        witnessed, before = self.witnessed, self.published_before
        head = witnessed if witnessed and self.time - witnessed.time <= 2 * RENEWAL else self
        # Witnesses that return cosign an earlier head first, and another leader may know of fewer cosignatures.
        return before if before and head.is_before(before) else head

    def is_before(self, other: Head) -> bool:
        """Whether this head of the same log was released before another one."""
        return (self.size, self.time) < (other.size, other.time)

    def after(self, head: Head | None) -> Head:
        """Return this head as one that a process releases after `head`; None: it is its first."""
        # Without the heads before it, or each head would keep all heads since the start in memory.
        return replace(self, published_before=Head(head.published.signed, head.published.edge)) if head else self

    def cosigned(self, lines: bytes) -> Head:
        """Return this head with the signature lines of witnesses appended to its note."""
        return Head(replace(self.signed, note=self.signed.note + lines), self.edge)


@dataclass(frozen=True)
class CheckpointSigner:
    """Signs heads. Before `sign`, the caller must make the head durable and record it with its time in the fence.

    `earlier`: the keys before a rotation, which sign too as long as the time is before `until`.
    """

    log_key: SignerKey
    clock_key: SignerKey
    earlier: tuple[SignerKey, ...] = ()
    until: int = 0

    def sign(self, edge: TreeEdge, time: int, durability: Durability) -> Head:
        """Sign the head of the tree that ends in `edge`, cosigned at `time` (POSIX seconds). CPU-bound, about 0.2 ms.

        `durability`: where each of its leaves is.
        """
        checkpoint = Checkpoint(self.log_key.name, edge.size, edge.root(), durability.extensions)
        earlier = self.earlier if time < self.until else ()
        note = sign(checkpoint.format(), [self.log_key, self.clock_key, *earlier], time=time)
        return Head(SignedCheckpoint(checkpoint, time, note), edge)
