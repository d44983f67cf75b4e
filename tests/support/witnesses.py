"""Build witnesses and logs of bare leaves for tests: keys that sign, and logs with two histories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from treaty_consensus.log import merkle
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import KeyType, SignerKey, add_signatures, sign
from treaty_consensus.log.witness import AddCheckpoint

ORIGIN = "log.example"
LOG = SignerKey(ORIGIN, KeyType.ED25519, hashlib.sha256(b"a log").digest())
OTHER_LOG = SignerKey("other.example", KeyType.ED25519, hashlib.sha256(b"another log").digest())
NOW = 1_790_000_000


def witness_key(name: str) -> SignerKey:
    """Return the key of a witness, derived from its name."""
    return SignerKey(name, KeyType.COSIGNATURE, hashlib.sha256(name.encode()).digest())


WITNESSES = tuple(witness_key(f"w{number}.example") for number in (1, 2, 3))
VKEYS = tuple(str(witness.verifier) for witness in WITNESSES)


def cosigned(note: bytes, *witnesses: SignerKey, time: int = NOW) -> bytes:
    """Return a note with the cosignatures of witnesses."""
    return add_signatures(note, witnesses, time=time)


@dataclass
class History:
    """Hold the leaves of a log, and derive roots, checkpoints and proofs at every size."""

    leaves: list[bytes] = field(default_factory=list)
    _nodes: dict[merkle.Node, bytes] = field(default_factory=dict)
    _frontier: merkle.Frontier = field(default_factory=merkle.Frontier)

    @classmethod
    def of(cls, leaves: Iterable[bytes]) -> History:
        history = cls()
        history.extend(leaves)
        return history

    @property
    def size(self) -> int:
        return len(self.leaves)

    def extend(self, leaves: Iterable[bytes]) -> None:
        for leaf in leaves:
            index = self._frontier.size
            for level, value in enumerate(self._frontier.append(merkle.leaf_hash(leaf))):
                self._nodes[merkle.Node(level, index >> level)] = value
            self.leaves.append(leaf)

    def root(self, size: int) -> bytes:
        return merkle.root(size, self._nodes)

    def checkpoint(self, size: int, origin: str = ORIGIN) -> Checkpoint:
        return Checkpoint(origin, size, self.root(size))

    def note(self, size: int, key: SignerKey = LOG) -> bytes:
        return sign(self.checkpoint(size, key.name).format(), [key])

    def proof(self, old: int, new: int) -> tuple[bytes, ...]:
        return tuple(merkle.consistency_proof(old, new, self._nodes))

    def request(self, old: int, new: int, key: SignerKey = LOG) -> AddCheckpoint:
        """Return the log's request to a witness that cosigned `old` leaves last."""
        return AddCheckpoint(old, self.proof(old, new), self.note(new, key))


def leaves(count: int, *, fork_at: int | None = None) -> list[bytes]:
    """Return the leaves of a log. With `fork_at`, the leaves from there on differ."""
    return [b"leaf %d%s" % (n, b"" if fork_at is None or n < fork_at else b", rewritten") for n in range(count)]
