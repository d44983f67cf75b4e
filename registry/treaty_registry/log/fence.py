"""The fence: a record, outside PostgreSQL, of the newest head that may have been signed.

The file has two slots of 512 bytes. A slot is

    SHA-256 of the rest of the slot, as 64 hexadecimal digits LF
    the text of a checkpoint (C2SP tlog-checkpoint: origin LF size LF base64(root) LF), with one extension line at most: the time
    that its newest cosignature may have (`clock`)
    NUL bytes, to the end of the slot

The slot that is intact and has the larger size counts, of two with one size the one with the later time; a new record is written
over the other one, in one synchronous write. So a torn write damages only the record that was being written, whose head was not
signed yet. Nothing grows: a full disk does not keep a record from being written.

A head is recorded here after its commit and before its checkpoint is released. So a database whose head is behind the record is
an old copy, and one whose tree does not begin with the recorded tree is another log's or a fork; neither is ever signed. A head
that is ahead of the record is what a crash between the two steps leaves; the record follows.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from treaty_client import durable
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Conflict, NotFound, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import EMPTY_ROOT

from .clock import SignedTime

_SLOT = 512
_DIGEST = 64


def create_fence(path: Path, origin: str) -> None:
    """Record the empty tree, for a new log. Durable when it returns.

    Raises `Conflict` when there is a record already of more than the empty tree, which is what a crash at this point may have
    left, and `Untrusted` when there is a damaged one.
    """
    if path.exists() and _newest(path.read_bytes(), path)[1].size:
        raise Conflict(
            "fence.exists",
            f"{path} exists, so a log was signed here, but its keys are missing.",
            fix="Bring the keys back, or start a new log in an empty data directory.",
        )
    durable.write(path, _slot(Checkpoint(origin, 0, EMPTY_ROOT)).ljust(2 * _SLOT, b"\0"), mode=0o600)


def read_fence(path: Path, origin: str) -> Checkpoint:
    """The recorded head. Raises `NotFound`, or `Untrusted` when the file is damaged or another log's."""
    try:
        with path.open("rb") as file:
            data = file.read(2 * _SLOT + 1)
    except FileNotFoundError as error:
        raise NotFound(
            "fence.missing",
            f"{path}, the record of what this log has signed, is missing.",
            fix="Bring back the newest copy of this file. Never start with an older one, or without it.",
        ) from error
    return _of(_newest(data, path)[1], path, origin)


class Fence:
    """The record at one path, held by this process alone until `close`. Blocks on the disk; safe for threads."""

    def __init__(self, path: Path, origin: str) -> None:
        """Raises as `read_fence`, and `Unavailable` when another process holds the record."""
        self.record = read_fence(path, origin)
        self._descriptor = os.open(path, os.O_RDWR | os.O_DSYNC | os.O_CLOEXEC)
        self._lock = threading.Lock()
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._next, self.record = _newest(os.pread(self._descriptor, 2 * _SLOT, 0), path)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise Unavailable(
                "fence.held", f"Another process signs with {path}.", fix="Stop the other treaty-registry on this directory."
            ) from error

    @property
    def signed(self) -> SignedTime | None:
        """The newest time that may have been signed; None for a log that has signed none, or whose record is of an older form."""
        return _signed(self.record)

    def advance(self, size: int, root: bytes, signed: SignedTime | None = None) -> None:
        """Record a head that extends the recorded one, which the caller has made sure of, and when it is signed. Durable when it
        returns.

        Raises `Untrusted("fence.behind")` when the head is smaller than the recorded one, or as large and different, and OSError.
        """
        with self._lock:
            if size < self.record.size or (size == self.record.size and root != self.record.root):
                raise behind(self.record, size)
            record = Checkpoint(self.record.origin, size, root, (signed.format(),) if signed else self.record.extensions)
            if record != self.record:
                os.pwrite(self._descriptor, _slot(record), self._next * _SLOT)
                self.record, self._next = record, 1 - self._next

    def close(self) -> None:
        """Let others have it."""
        os.close(self._descriptor)


def behind(record: Checkpoint, size: int) -> Untrusted:
    """The refusal to go on from a head that is not the recorded one or a later one."""
    return Untrusted(
        "fence.behind",
        f"The database holds {size} leaves of the log {record.origin}, but a head of {record.size} leaves may have been signed, "
        "which is not a beginning of it: signing this one would fork the log.",
        fix="An old backup was restored. Recover the newest state (write-ahead log, replica) and start again.",
    )


def _slot(record: Checkpoint) -> bytes:
    rest = b"\n" + record.format().encode().ljust(_SLOT - _DIGEST - 1, b"\0")
    assert len(rest) == _SLOT - _DIGEST, "an origin has at most 259 characters"
    return hex_digest(rest).encode() + rest


def _of(record: Checkpoint, path: Path, origin: str) -> Checkpoint:
    if record.origin != origin:
        raise Untrusted("fence.other-log", f"{path} belongs to the log {record.origin}, not to {origin}.")
    return record


def _newest(data: bytes, path: Path) -> tuple[int, Checkpoint]:
    """The number of the slot to write next, and the record that counts."""
    records = [_read(data[begin : begin + _SLOT]) for begin in (0, _SLOT)]
    heads = {record.size: record.root for record in records if record}
    ages = [(record.size, _time(record)) if record else (-1, 0) for record in records]
    newest = records[ages.index(max(ages))]
    if newest is None or len(data) != 2 * _SLOT or any(record and heads[record.size] != record.root for record in records):
        raise Untrusted("fence.unreadable", f"{path} is damaged.", fix="Bring back its newest copy.")
    return ages.index(min(ages)), newest


def _signed(record: Checkpoint) -> SignedTime | None:
    return SignedTime.parse(record.extensions[0]) if record.extensions else None


def _time(record: Checkpoint) -> int:
    signed = _signed(record)
    return signed.time if signed else -1


def _read(slot: bytes) -> Checkpoint | None:
    """The record in a slot, or None when the slot is empty or damaged."""
    digest, rest = slot[:_DIGEST], slot[_DIGEST:]
    if hex_digest(rest).encode() != digest:
        return None
    try:
        return Checkpoint.parse(rest[1:].rstrip(b"\0").decode())
    except (UnicodeDecodeError, TreatyError):
        return None
