"""Provide reads of a log and its catalogue. A registry and a mirror of it are each a `ReadableLog`.

The answers of all GETs are made from this object alone (`serving`, `pages`, `routes`), so a registry and its mirror give the same
bytes at the same head; only AI Catalogs are unsigned at a mirror. Reads never wait for a write: they use a head, which is
immutable, and rows below it. For several reads that must be consistent, take `head` once and pass it to each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from treaty_consensus import canonical
from treaty_consensus.errors import NotFound, Refused
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.trusted_root import with_rotations
from treaty_io.identity import Identity

from .admission.content_checker import ContentChecker
from .admission.contents import check_digests
from .admission.uploads import Uploads
from .catalogue.readers import ReaderKind
from .codes import RegistryStatementCode
from .log.changes import Changes
from .log.checkpoints import Head
from .log.reader import LogReader
from .networks import TrustedProxies
from .storage.blobs import BlobStore
from .storage.own_wheels import OwnWheels
from .storage.postgres import Pool
from .storage.space import FreeSpace

__all__ = ["Head", "ReadableLog"]


class ReadableLog(ABC):
    """A log with its catalogue. Every method may be called concurrently; they raise `Unavailable` when PostgreSQL is silent.

    `base_url`: the URL at which clients reach the registry; pages and the trust configuration name it. `operator`: the DID that
    the genesis names. `signer`: the operator's key, not at a mirror. `trusted_root`: the bytes that the genesis pins, with the
    log's first key. `changes`: the changes of the newest
    leaves, for caches; replaced when the record is interrupted. `disks`: those that writes need. `contact`: where
    abuse is reported. `wheels`: those of the registry's own package index.
    """

    origin: str
    base_url: str
    operator: str
    signer: Identity | None = None
    trusted_root: bytes
    proxies: TrustedProxies
    contact: str | None
    wheels: OwnWheels
    pool: Pool
    blobs: BlobStore
    uploads: Uploads
    checker: ContentChecker
    reader: LogReader
    changes: Changes
    disks: Sequence[FreeSpace]

    @property
    @abstractmethod
    def keys(self) -> LogKeys:
        """Return the keys of the log and its clock, with those before a rotation."""

    @property
    def log_key(self) -> VerifierKey:
        """Return the log's newest key."""
        return self.keys.newest.log

    @property
    def clock_key(self) -> VerifierKey:
        """Return the newest key of the log's clock."""
        key = self.keys.newest.clock
        assert key is not None, "the genesis names it"
        return key

    @property
    def current_trusted_root(self) -> bytes:
        """Return the trusted root with every key of the log, as verifiers need it now."""
        return with_rotations(self.trusted_root, self.keys)

    @property
    @abstractmethod
    def head(self) -> Head:
        """Return the newest head that may be shown."""

    @property
    def failing_witnesses(self) -> Mapping[str, str]:
        """Return the witnesses that do not cosign now: name → code of the reason."""
        return {}

    @property
    def refusal(self) -> Refused | None:
        """Return the refusal of every write, or None when writes are accepted here."""
        return None

    @abstractmethod
    async def check_ready(self) -> None:
        """Raise `Unavailable` with the reason when this process is not ready. Takes about a second at most."""

    async def read_blobs(self, kind: ReaderKind, name: str, digests: Sequence[str], source: str) -> bytes:
        """Run a reader on logged blobs in a process with limits, as pages do. `source`: the IP address of the reader.

        Raises as `ContentChecker.read` and `Uploads.served`.
        """

        async def load() -> list[bytes]:
            contents = {digest: await self.uploads.served(digest) for digest in digests}
            check_digests(contents)
            return [contents[digest] for digest in digests]

        return await self.checker.read(kind, name, load, source)

    async def blob(self, sha256: str) -> bytes:
        """Return a blob that a logged statement names. Raises `NotFound`, also for a pending upload, or `Gone` when it was
        withdrawn."""
        return await self.uploads.served(canonical.parse_digest(sha256))

    async def leaves(self, indexes: Iterable[int], head: Head | None = None) -> dict[int, bytes]:
        """Return the leaves at `indexes`. Raises `NotFound` when one is not below the head."""
        return await self.reader.leaves(indexes, head or self.head)

    async def inclusion(self, indexes: Iterable[int], head: Head | None = None) -> dict[int, list[bytes]]:
        """Return inclusion proofs at `head`. Raises `NotFound` when an index is not below it."""
        return await self.reader.inclusion(indexes, head or self.head)

    async def consistency(self, old: int, head: Head | None = None) -> list[bytes]:
        """Return the consistency proof from the tree of `old` leaves to `head`. Raises `NotFound` when the head is smaller."""
        return await self.reader.consistency(old, head or self.head)

    async def receipt(self, statement_id: str, head: Head | None = None) -> bytes:
        """Return the receipt (C2SP tlog-proof) of the statement with this id. Raises `NotFound`."""
        canonical.parse_digest(statement_id)
        at = head or self.head
        index = (await self.reader.index_of([statement_id], at)).get(statement_id)
        if index is None:
            raise NotFound(RegistryStatementCode.UNKNOWN, f"The statement {statement_id} is not in this log.")
        return (await self.reader.receipts([index], at))[index]

    async def tile(self, path: str, head: Head | None = None) -> bytes | None:
        """Return a hash tile or entry bundle by its path, such as /tile/0/x001/234.p/5 or /tile/entries/000.

        None when the log is not large enough yet. Raises `Malformed` when it is not the path of a tile.
        """
        return await self.reader.tile(path, (head or self.head).edge)
