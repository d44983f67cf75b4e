"""What an agent keeps: bytes under their SHA-256, and treaty.lock, which says whose handlers they are.

    HOME/store/sha256/AB/ABCD…      a blob, 64 hexadecimal digits: a wheel, or a bundle with all its proofs

Bytes are checked against their name whenever they are read; a file that is not what it is called is deleted and counts as absent,
so damage costs a download and is never run. treaty.lock is JSON, kept in HOME and fit for version control:

    {"lock": 1, "protocols": {
       "https://HOST/protocols/NAMESPACE/NAME": {
         "publisher": DID, "signer": {"identity": TEXT, "issuer": URL}, "tenure": NUMBER,
         "identity"?: {"index": NUMBER, "keys": [MULTIKEY, …], "statement": HEX},
         "versions": {VERSION: {"bundle": HEX, "document": HEX, "entry_point": TEXT, "filename": TEXT, "handler"?: NUMBER,
                                "handler_status"?: {"index": NUMBER, "state": TEXT},
                                "published"?: NUMBER, "status"?: {"index": NUMBER, "state": TEXT}, "wheel": HEX}}}}}

`publisher`, `tenure` and `signer` say whose code was accepted for a protocol, all its versions: it is step 10 of the verification
that they are still the same. `identity` is the publisher's newest identity at that time, absent for a did:key; `published` and
`handler` are the leaves of the publish and handler statements. With these a machine that never spoke with the registry refuses
another history of publisher and version. A lock written before they existed lacks them, and gains them at the next fetch. What
else was seen of a registry stays on the machine (`registries.memory`).

Both are safe among threads and processes: blobs appear whole, and the lock is changed by one process at a time, under
HOME/treaty.lock.lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Unavailable, Untrusted
from treaty_consensus.kinds import Count, Digest, Handler, Publish, Status
from treaty_consensus.protocol import ProtocolUri

from . import durable
from .verification.evidence import Evidence

MAX_LOCK = 16 * 1024 * 1024


def default_home() -> Path:
    """$TREATY_HOME, or ~/.treaty."""
    return Path(os.environ.get("TREATY_HOME") or Path.home() / ".treaty")


class Store:
    """Bytes under their SHA-256, below `home`."""

    def __init__(self, home: Path) -> None:
        self._root = home / "store" / "sha256"

    def put(self, data: bytes) -> str:
        """Keep `data`, and return its digest."""
        digest = canonical.hex_digest(data)
        if self.get(digest) is None:
            durable.write_unsynced(self._path(digest), data)
        return digest

    def get(self, digest: str) -> bytes | None:
        """The bytes of that digest, or None when they are not here (any more)."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if canonical.hex_digest(data) != digest:
            path.unlink(missing_ok=True)
            return None
        return data

    def discard(self, digest: str) -> None:
        """Forget the bytes of that digest; a process that is about to read them will find them absent."""
        self._path(digest).unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self._root / digest[:2] / canonical.parse_digest(digest)


class Signer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who attested a handler, and who vouches for that identity."""

    identity: str
    issuer: str


class LockedStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A status of a protocol or of a handler: its leaf, and what it says."""

    index: Count
    state: str


class LockedVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One version as it was verified last. `bundle`: the proofs; `document`: the protocol hash; `published`, `handler`: the
    leaves that name document and wheel, None in an old lock. `status`, `handler_status`: of protocol
    and handler, once they were yanked or revoked."""

    bundle: Digest
    document: Digest
    entry_point: str
    filename: str
    wheel: Digest
    published: Count | None = None
    handler: Count | None = None
    status: LockedStatus | None = None
    handler_status: LockedStatus | None = None


class LockedIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An identity statement: its leaf, its keys in order, its id."""

    index: Count
    keys: tuple[str, ...]
    statement: Digest


class LockedProtocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whose handlers were accepted for a protocol. `identity`: None for a did:key, and in an old lock."""

    publisher: str
    tenure: int
    signer: Signer
    versions: dict[str, LockedVersion] = {}
    identity: LockedIdentity | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lock: int
    protocols: dict[str, LockedProtocol]


class Lockfile:
    """HOME/treaty.lock."""

    def __init__(self, home: Path) -> None:
        self._path = home / "treaty.lock"
        self._lock = home / "treaty.lock.lock"

    def read(self) -> dict[str, LockedProtocol]:
        """All entries, by `line_of`. Raises `Malformed` when the file is not what it should be."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            file = msgspec.convert(canonical.parse_json(data, limit=MAX_LOCK, what="treaty.lock"), _File)
        except msgspec.ValidationError as error:
            raise Malformed("lock.file", f"{self._path} is not a lock: {error}.") from error
        if file.lock != 1:
            raise Malformed("lock.file", f"{self._path} was written by another version of Treaty.")
        return file.protocols

    @contextmanager
    def changing(self) -> Iterator[dict[str, LockedProtocol]]:
        """The entries, to be changed in place by one process at a time; written durably when the block ends without an error."""
        with durable.exclusive(self._lock):
            before = self.read()
            after = dict(before)
            yield after
            if after != before:
                value = msgspec.to_builtins(_File(1, after))
                durable.write(self._path, json.dumps(value, indent=2, sort_keys=True).encode() + b"\n")


def line_of(uri: ProtocolUri) -> str:
    """A protocol's URI without its version."""
    return str(uri).rpartition("/")[0]


def check_unchanged(locked: LockedProtocol | None, found: LockedProtocol, line: str) -> None:
    """Raises `Untrusted` (`lock.publisher`, `lock.tenure`, `lock.signer`) when a protocol's handlers are now somebody else's."""
    if locked is None:
        return
    changes = (
        ("publisher", locked.publisher, found.publisher),
        ("tenure", str(locked.tenure), str(found.tenure)),
        ("signer", locked.signer.identity, found.signer.identity),
        ("signer", locked.signer.issuer, found.signer.issuer),
    )
    for what, before, now in changes:
        if before != now:
            raise Untrusted(
                f"lock.{what}",
                f"The handlers of {line} came from the {what} {before}, this one comes from {now}.",
                fix="If that is meant to be so, fetch it again with --accept-change.",
            )


def check_pins(entries: Mapping[str, LockedProtocol], origin: str, evidence: Evidence, *, is_kept: bool = False) -> None:
    """Check the history that a lock pins for a registry: identities of the publishers, and what was published as each version.

    `is_kept`: the evidence was kept, and may be of an older log than the lock. Raises `Untrusted` (`lock.identity`,
    `lock.document`) when the log now says something else, and `Unavailable` (`lock.behind`) when the answer is of an older log
    than the lock.
    """
    for line, locked in entries.items():
        if not line.startswith(f"https://{origin}/"):
            continue
        _check_identity(locked, evidence, is_kept)
        for logged in evidence.statements:
            body = logged.statement.body
            if isinstance(body, Publish) and body.uri.startswith(f"{line}/"):
                _check_version(locked.versions.get(body.uri.removeprefix(f"{line}/")), body, logged.index)


def check_status(entries: Mapping[str, LockedProtocol], uri: ProtocolUri, evidence: Evidence) -> LockedVersion | None:
    """Check that what is known of a protocol is as new as the statuses that the lock pins: its own, and the locked handler's.

    Return the locked version as it is to be from now on: with statuses that take back, or that follow such ones. None where
    the lock does not hold the version. Raises `Untrusted` (`lock.status`) when the evidence, of an answer about the protocol, has
    an older status or none. That of a handler counts only where the handler is listed.
    """
    locked = entries.get(line_of(uri))
    version = locked.versions.get(uri.version) if locked is not None else None
    if locked is None or version is None:
        return None
    bodies = [(logged, logged.statement.body) for logged in evidence.statements]
    listed = {(logged.statement.author.text, body.wheel.sha256) for logged, body in bodies if isinstance(body, Handler)}
    newest: dict[str | None, LockedStatus] = {}
    for logged, body in bodies:
        if not isinstance(body, Status) or body.uri != str(uri):
            continue
        if body.wheel is None or logged.statement.author.text == locked.publisher:
            newest[body.wheel] = LockedStatus(logged.index, body.state)
    status = _newer_status(version.status, newest.get(None), str(uri))
    handler_status = version.handler_status
    if (locked.publisher, version.wheel) in listed:
        handler_status = _newer_status(handler_status, newest.get(version.wheel), f"the handler {version.filename} of {uri}")
    return msgspec.structs.replace(version, status=status, handler_status=handler_status)


def _newer_status(pinned: LockedStatus | None, found: LockedStatus | None, what: str) -> LockedStatus | None:
    if pinned is None:
        return found if found is not None and found.state in ("yanked", "revoked") else None
    if found is None or found.index < pinned.index:
        raise Untrusted(
            "lock.status",
            f"The lock says that leaf {pinned.index} makes {what} {pinned.state}; the registry shows an older status, or none.",
            fix="Do not use it: the registry, or somebody between, keeps from you what the log holds.",
        )
    return found


def _check_identity(locked: LockedProtocol, evidence: Evidence, is_kept: bool) -> None:
    pinned, size = locked.identity, evidence.checkpoint.checkpoint.size
    known = [(logged.index, logged.statement.id) for logged in evidence.identities(locked.publisher)]
    if pinned is None or not known or (pinned.index, pinned.statement) in known:
        return
    if pinned.index >= size:
        if is_kept:
            return
        raise Unavailable(
            "lock.behind",
            f"The lock knows an identity of {locked.publisher} at leaf {pinned.index}; the answer is of a log of {size} leaves.",
            fix="Try again. If it stays so, this server of the registry lags behind, or somebody keeps news from you.",
        )
    raise Untrusted(
        "lock.identity",
        f"The lock says that leaf {pinned.index} is the identity {pinned.statement} of {locked.publisher}; the "
        "registry tells another history of its keys.",
        fix="Do not use it: no rotation of keys changes this. Ask the publisher for its keys; the lock has those of then.",
    )


def _check_version(version: LockedVersion | None, found: Publish, index: int) -> None:
    if version is None or (version.document == found.document.sha256 and version.published in (None, index)):
        return
    raise Untrusted(
        "lock.document",
        f"The lock holds {found.uri} with the document {version.document}; the registry says that it was published with "
        f"{found.document.sha256}, as leaf {index}.",
        fix="Do not use it: a version is published once. Only if the lock is wrong, remove the version from it.",
    )
