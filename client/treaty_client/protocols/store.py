"""Store verified bytes under their SHA-256, and pin in treaty.lock the protocols and handlers that were accepted.

A blob, a wheel or a bundle with its proofs, is HOME/store/sha256/AB/ABCD…, named by 64 hexadecimal digits. Bytes are hashed at
every read. A file with another hash is deleted and counts as absent, so damage costs a download and is never run.

docs/specification/home.md specifies treaty.lock, a JSON file for version control:

    {"lock": 1, "protocols": {"https://HOST/protocols/NAMESPACE/NAME": {
       "publisher": DID, "signer": {"identity": TEXT, "issuer": URL}, "tenure": NUMBER, "identity"?: {…}, "versions": {…}}}}

The newest bundle of each protocol is named in HOME/proofs.json, and not in the lock, which must not change with each new proof:

    {"proofs": {URI: HEX, …}}

All are safe among threads and processes. A blob appears whole. One process at a time changes lock and proofs, under
HOME/treaty.lock.lock.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from treaty_consensus import canonical
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import Count, Digest
from treaty_consensus.protocol import ProtocolUri
from treaty_io import durable
from treaty_io.state_file import StateFile

MAX_LOCK = 16 * 1024 * 1024
_FIX = "Put back an earlier version. If there is none, move it away: the next fetch pins publisher and signer anew."


class Store:
    """Blobs under their SHA-256, below `home`."""

    def __init__(self, home: Path) -> None:
        self._root = home / "store" / "sha256"

    def put(self, data: bytes) -> str:
        """Store `data` and return its digest."""
        digest = canonical.hex_digest(data)
        if self.get(digest) is None:
            # Not synced: a blob lost in a crash is detected by its hash and fetched again.
            durable.write_unsynced(self._path(digest), data, mode=0o600)
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return the bytes with that digest, or None."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if canonical.hex_digest(data) != digest:
            # Damaged: delete it, so that `put` writes it again.
            path.unlink(missing_ok=True)
            return None
        return data

    def discard(self, digest: str) -> None:
        """Delete the bytes with that digest. A process that reads them later finds them absent."""
        self._path(digest).unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        # Parsed first, so that no text but a digest becomes a path.
        return self._root / digest[:2] / canonical.parse_digest(digest)


class LockedSigner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The signer of a handler's attestation, and the issuer of that identity."""

    identity: str
    issuer: str


class LockedStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A status of a protocol or of a handler: its leaf and its state."""

    index: Count
    state: str


class LockedVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One version as last verified.

    `document`: the protocol hash. `published`, `handler`: the leaves that name document and wheel, None in an old lock.
    `status`, `handler_status`: those of protocol and handler, once one of them was yanked or revoked. `bundle`: of an old lock;
    it is not used.
    """

    document: Digest
    entry_point: str
    filename: str
    wheel: Digest
    published: Count | None = None
    handler: Count | None = None
    status: LockedStatus | None = None
    handler_status: LockedStatus | None = None
    bundle: Digest | None = None


class LockedIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An identity statement: its leaf, its keys in order, its id."""

    index: Count
    keys: tuple[str, ...]
    statement: Digest


class LockedProtocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The accepted publisher and signer of a protocol's handlers. `identity`: None for a did:key, and in an old lock."""

    publisher: str
    tenure: int
    signer: LockedSigner
    versions: dict[str, LockedVersion] = {}
    identity: LockedIdentity | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lock: int
    protocols: dict[str, LockedProtocol]


class Lockfile:
    """HOME/treaty.lock."""

    def __init__(self, home: Path, settle: Callable[[], None] = lambda: None) -> None:
        """`settle`: makes the changes of this process that are still owed to the file."""
        self._settle = settle
        self._file = StateFile(home / "treaty.lock", _File, limit=MAX_LOCK, code=SystemCode.STATE, fix=_FIX)
        self._lock = home / "treaty.lock.lock"

    def read(self) -> dict[str, LockedProtocol]:
        """Return all entries by `line_of`. Raises `Malformed` if the file is invalid."""
        # First: a check against an entry that is only owed would pass.
        self._settle()
        return self._read()

    def _read(self) -> dict[str, LockedProtocol]:
        content = self._file.read()
        if content is None:
            return {}
        if content.lock != 1:
            raise Malformed(SystemCode.STATE, f"{self._file.path} was written by another version of Treaty.")
        return content.protocols

    @contextmanager
    def changing(self) -> Iterator[dict[str, LockedProtocol]]:
        """Yield the entries, to be changed in place; one process at a time. They are written durably if the block ends without an
        error.
        """
        # Before the lock is held: an owed change needs it too.
        self._settle()
        # Read under the lock, so that no change by another process is lost.
        with durable.exclusive(self._lock):
            before = self._read()
            after = dict(before)
            yield after
            # An unchanged lock keeps its bytes, which are under version control.
            if after != before:
                # It shows what its owner uses. A team that shares it, under version control, has chosen another mode.
                mode = stat.S_IMODE(self._file.path.stat().st_mode) if before else 0o600
                self._file.write(_File(1, after), mode=mode)


class _Proofs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    proofs: dict[str, Digest]


class Proofs:
    """The newest bundle of each protocol: HOME/proofs.json and the store. A lost file costs a request for each protocol."""

    def __init__(self, home: Path, store: Store) -> None:
        self._store, self._file = store, StateFile(home / "proofs.json", _Proofs, limit=MAX_LOCK)

    def get(self, uri: str) -> bytes | None:
        """Return the newest bundle of a protocol, or None."""
        digest = self._read().get(uri)
        return self._store.get(digest) if digest is not None else None

    def put(self, uri: str, bundle: bytes) -> None:
        """Name the newest bundle of a protocol. Only while the lock is held."""
        digests = self._read()
        # The bundle first, and the former one last: a crash in between leaves unused bytes, and never a name without them.
        digest, replaced = self._store.put(bundle), digests.get(uri)
        if digest != replaced:
            self._file.write(_Proofs({**digests, uri: digest}))
            if replaced is not None:
                self._store.discard(replaced)

    def _read(self) -> dict[str, Digest]:
        content = self._file.latest()
        return dict(content.proofs) if content else {}


def line_of(uri: ProtocolUri) -> str:
    """Return a protocol's URI without its version."""
    return str(uri).rpartition("/")[0]
