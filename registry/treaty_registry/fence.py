"""The fence: a record, outside PostgreSQL, of the newest head that may have been signed.

A file that holds the text of a checkpoint (C2SP tlog-checkpoint, without signatures):

    localhost:8080
    1042
    fH3SqG0mV3VbWq3ZQ5Y3yqYl2a1u0b8m2o7b7n0mX1s=

A head is recorded here after its commit and before its checkpoint is released. So a database whose head is behind the record is
an old copy, and one whose tree does not begin with the recorded tree is another log's or a fork; neither is ever signed. A head
that is ahead of the record is what a crash between the two steps leaves; the record follows.
"""

from __future__ import annotations

import threading
from pathlib import Path

from treaty_client import durable
from treaty_consensus.errors import Conflict, NotFound, TreatyError, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import EMPTY_ROOT

_MAX_RECORD = 4096


class Fence:
    """The record at one path. Blocks on the disk; safe for threads."""

    def __init__(self, path: Path, origin: str) -> None:
        self._path = path
        self._origin = origin
        self._lock = threading.Lock()

    def create(self) -> None:
        """Record the empty tree, for a new log. Raises `Conflict` when there is a record."""
        try:
            durable.create(self._path, self._encode(0, EMPTY_ROOT), mode=0o600)
        except FileExistsError as error:
            raise Conflict(
                "fence.exists",
                f"{self._path} exists, so a log was signed here, but its keys are missing.",
                fix="Bring the keys back, or start a new log in an empty data directory.",
            ) from error

    def read(self) -> Checkpoint:
        """The recorded head. Raises `NotFound`, or `Untrusted` when the file is not this log's record."""
        try:
            with self._path.open("rb") as file:
                data = file.read(_MAX_RECORD)
        except FileNotFoundError as error:
            raise NotFound(
                "fence.missing",
                f"{self._path}, the record of what this log has signed, is missing.",
                fix="Bring back the newest copy of this file. Never start with an older one, or without it.",
            ) from error
        try:
            record = Checkpoint.parse(data.decode())
        except (UnicodeDecodeError, TreatyError) as error:
            raise Untrusted("fence.unreadable", f"{self._path} is damaged.", fix="Bring back its newest copy.") from error
        if record.origin != self._origin:
            raise Untrusted("fence.other-log", f"{self._path} belongs to the log {record.origin}, not to {self._origin}.")
        return record

    def advance(self, size: int, root: bytes) -> None:
        """Record a head that extends the recorded one; the caller has made sure of that. Durable when it returns.

        Raises `Untrusted("fence.behind")` when the head is smaller than the recorded one, or as large and different.
        """
        with self._lock:
            record = self.read()
            if size < record.size or (size == record.size and root != record.root):
                raise behind(record, size)
            if size > record.size:
                durable.write(self._path, self._encode(size, root), mode=0o600)

    def _encode(self, size: int, root: bytes) -> bytes:
        return Checkpoint(self._origin, size, root).format().encode()


def behind(record: Checkpoint, size: int) -> Untrusted:
    """The refusal to go on from a head that is not the recorded one or a later one."""
    return Untrusted(
        "fence.behind",
        f"The database holds {size} leaves of the log {record.origin}, but a head of {record.size} leaves may have been signed, "
        "which is not a beginning of it: signing this one would fork the log.",
        fix="An old backup was restored. Recover the newest state (write-ahead log, replica) and start again.",
    )
