"""Keep a record, outside PostgreSQL, of the newest head that may have been signed.

The file has two slots of 512 bytes. A slot is

    SHA-256 of the rest of the slot, as 64 hexadecimal digits LF
    the text of a checkpoint (C2SP tlog-checkpoint: origin LF size LF base64(root) LF), with one extension line at most: the time
    that its newest cosignature may have (`clock`)
    NUL bytes, to the end of the slot

The valid record is the intact slot with the larger size; at equal size, the one with the later time. A new record overwrites the
other slot in one synchronous write. So a torn write damages only the new record, whose head is not signed yet. The file does not
grow, so a full disk does not block a record.

A head is recorded here after its commit and before its checkpoint is released. A database whose head is behind the record is an
old copy. A database whose tree does not start with the recorded tree belongs to another log or is a fork. Neither is ever
signed. A crash between commit and record leaves a head ahead of the record; the record is then updated.

One process owns the file of a registry of one process. The nodes of a registry of several processes share one record: a file, or
an object of an object store (`stored_fence`). Each of them may then advance the record only from the state that it has read, so a
leader that was replaced changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import LogCode, SystemCode
from treaty_consensus.errors import Conflict, NotFound, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import EMPTY_ROOT
from treaty_io import durable

from ..codes import FenceCode, KeysCode, RegistryLogCode
from .clock import SignedTime

# Enough for an origin of 259 characters, a size, a root and a time.
_SLOT = 512
_DIGEST = 64


def create_fence(path: Path, origin: str) -> None:
    """Record the empty tree for a new log. Durable on return.

    A record of the empty tree may exist already after a crash, and is replaced. Raises `Conflict` when a record of a larger tree
    exists, and `Untrusted` when the record is damaged.
    """
    if path.exists() and _newest(path.read_bytes(), path)[1].size:
        raise Conflict(
            KeysCode.MISSING,
            f"{path} exists, so a log was signed here, but its keys are missing.",
            fix="Bring the keys back, or start a new log in an empty data directory.",
        )
    # The same size for ever: a full disk does not prevent a later record.
    durable.write(path, _slot(Checkpoint(origin, 0, EMPTY_ROOT)).ljust(2 * _SLOT, b"\0"), mode=0o600)


def restore_fence(path: Path, record: Checkpoint) -> None:
    """Record the head of a restored log, which the caller has compared with every head that may have been signed.

    Durable on return. Raises `Conflict` when another record of a larger tree exists.
    """
    if path.exists() and _newest(path.read_bytes(), path)[1].size > record.size:
        raise Conflict(LogCode.EXISTS, f"{path} is the record of a larger tree.", fix="Restore into an empty data directory.")
    durable.write(path, _slot(record).ljust(2 * _SLOT, b"\0"), mode=0o600)


def read_fence(path: Path, origin: str) -> Checkpoint:
    """Return the recorded head. Raises `NotFound`, or `Untrusted` when the file is damaged or belongs to another log."""
    try:
        with path.open("rb") as file:
            # One byte more, so that a longer file is noticed.
            data = file.read(2 * _SLOT + 1)
    except FileNotFoundError as error:
        raise NotFound(
            FenceCode.DAMAGED,
            f"{path}, the record of what this log has signed, is missing.",
            fix="Bring back the newest copy of this file. Never start with an older one, or without it.",
        ) from error
    return of_origin(_newest(data, path)[1], path, origin)


class HeadRecord(Protocol):
    """The record of the newest head that may have been signed. Blocks; safe for threads. `record`: as it was read last.
    `place`: where it is, for messages."""

    record: Checkpoint
    place: str

    @property
    def signed(self) -> SignedTime | None:
        """Return the newest time that may have been signed. None: no time was signed, or the record has an older form."""

    def reread(self) -> None:
        """Read the record again, because another node may have advanced it. Raises as `read_fence`, and OSError."""

    def advance(self, size: int, root: bytes, signed: SignedTime | None = None) -> None:
        """Record a head, and the time of its signature. Durable on return.

        The caller has checked that the head extends the recorded one. Raises `Untrusted` (`log.damaged`) when the head is
        smaller than the recorded one, or has the same size and another root; `Unavailable` (`log.not-leading`) when another node
        has advanced the record since it was read; and OSError. After an error the record may be the old one or the new one.
        """

    def close(self) -> None:
        """Release what the record holds."""


class Fence:
    """The record in a file. Its process owns it until `close`, or shares it with other nodes of this machine."""

    def __init__(self, path: Path, origin: str, *, shared: bool = False) -> None:
        """Read the record, and lock it unless it is `shared`. Raises as `read_fence`, and `Unavailable` when another process
        holds the lock."""
        self.record = read_fence(path, origin)
        self.place = str(path)
        self._path = path
        self._shared = shared
        # O_DSYNC: a head may be signed as soon as its record is written, so the write must be durable on return.
        self._descriptor = os.open(path, os.O_RDWR | os.O_DSYNC | os.O_CLOEXEC)
        # `record` and `_next` change together.
        self._lock = threading.Lock()
        if shared:
            self.reread()
            return
        try:
            # A second process must not sign on this directory. It is told at once; the kernel frees the lock of a
            # dead process.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Read again under the lock, because its last holder may have advanced the record.
            self._next, self.record = self._read()
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise Unavailable(
                SystemCode.HELD, f"Another process signs with {path}.", fix="Stop the other treaty-registry on this directory."
            ) from error

    @property
    def signed(self) -> SignedTime | None:
        """See `HeadRecord`."""
        return signed_time(self.record)

    def reread(self) -> None:
        """See `HeadRecord`."""
        if self._shared:
            with self._lock, self._locked():
                self._next, self.record = self._read()

    def advance(self, size: int, root: bytes, signed: SignedTime | None = None) -> None:
        """See `HeadRecord`."""
        with self._lock, self._locked():
            record = advanced(self.record, size, root, signed)
            # Only from the record that this node has read: another one may lead by now.
            if self._shared and self._read()[1] != self.record:
                raise moved(self._path)
            if record != self.record:
                # Into the other slot. A crash damages at most the new record, whose head is not signed yet.
                os.pwrite(self._descriptor, _slot(record), self._next * _SLOT)
                self.record, self._next = record, 1 - self._next

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def _read(self) -> tuple[int, Checkpoint]:
        return _newest(os.pread(self._descriptor, 2 * _SLOT, 0), self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other nodes out while the shared record is compared and written, which takes a few milliseconds."""
        if not self._shared:
            yield
            return
        # The caller gives up after some seconds. The kernel frees the lock of a dead node.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def advanced(record: Checkpoint, size: int, root: bytes, signed: SignedTime | None) -> Checkpoint:
    """Return the record that follows `record`. Raises `Untrusted` (`log.damaged`) when the head does not extend it."""
    if size < record.size or (size == record.size and root != record.root):
        raise behind(record, size)
    return Checkpoint(record.origin, size, root, (signed.format(),) if signed else record.extensions)


def moved(place: object) -> Unavailable:
    """Return the error for a record that another node has advanced."""
    return Unavailable(
        RegistryLogCode.NOT_LEADING, f"Another node has advanced {place}; it writes this log now.", fix="Send again in a while."
    )


def failed(record: HeadRecord, error: OSError | TimeoutError) -> Unavailable:
    """Return the error for a record that its object store or its disk does not read or write."""
    reason = str(error) or "no answer in time"
    return Unavailable(
        FenceCode.FAILED,
        f"The record of signed heads at {record.place} cannot be read or written: {reason}",
        fix="See that its object store or its disk works. The registry tries again by itself.",
    )


def behind(record: Checkpoint, size: int) -> Untrusted:
    """Return the error for a head that does not extend the recorded one."""
    return Untrusted(
        LogCode.DAMAGED,
        f"The database holds {size} leaves of the log {record.origin}, but a head of {record.size} leaves may have been signed, "
        "and that head is not part of this history. Signing this one would fork the log.",
        fix="An old backup was restored, or this is not the database of this log (TREATY_DATABASE_URL). Recover the newest state "
        "(write-ahead log, replica) and start again.",
    )


def _slot(record: Checkpoint) -> bytes:
    rest = b"\n" + record.format().encode().ljust(_SLOT - _DIGEST - 1, b"\0")
    assert len(rest) == _SLOT - _DIGEST, "an origin has at most 259 characters"
    return hex_digest(rest).encode() + rest


def of_origin(record: Checkpoint, path: object, origin: str) -> Checkpoint:
    """Return the record of the log `origin` at `path`. Raises `Untrusted` (`fence.damaged`) when it is another log's."""
    if record.origin != origin:
        raise Untrusted(FenceCode.DAMAGED, f"{path} belongs to the log {record.origin}, not to {origin}.")
    return record


def _newest(data: bytes, path: Path) -> tuple[int, Checkpoint]:
    """Return the number of the slot to write next, and the valid record."""
    records = [_read(data[begin : begin + _SLOT]) for begin in (0, _SLOT)]
    heads = {record.size: record.root for record in records if record}
    ages = [(record.size, _time(record)) if record else (-1, 0) for record in records]
    newest = records[ages.index(max(ages))]
    # Two heads of one size with different roots are a fork, so neither slot is trusted.
    if newest is None or len(data) != 2 * _SLOT or any(record and heads[record.size] != record.root for record in records):
        raise Untrusted(FenceCode.DAMAGED, f"{path} is damaged.", fix="Bring back its newest copy.")
    return ages.index(min(ages)), newest


def signed_time(record: Checkpoint) -> SignedTime | None:
    """Return the time in a record, or None."""
    return SignedTime.parse(record.extensions[0]) if record.extensions else None


def _time(record: Checkpoint) -> int:
    signed = signed_time(record)
    return signed.time if signed else -1


def _read(slot: bytes) -> Checkpoint | None:
    """Return the record in a slot, or None when the slot is empty or damaged."""
    digest, rest = slot[:_DIGEST], slot[_DIGEST:]
    if hex_digest(rest).encode() != digest:
        return None
    try:
        return Checkpoint.parse(rest[1:].rstrip(b"\0").decode())
    except (UnicodeDecodeError, TreatyError):
        return None
