"""Keep the state of handlers between sessions, which `Persist` stores and `Opened` returns.

The state is below HOME (docs/specification/home-caches.md):

    HOME/sessions/WHOSE/HEX(SHA-256(JCS([wheel digest, role, local DID, peer DID])))/HEX(key)      the value's bytes

WHOSE is `proved`, `claimed` or `shared`. A handler sees only the state of its own earlier sessions in that role, with that peer.
The state of a proved peer is only for proofs: who claims the same DID has other state, which every later claim of it sees. A
shared role has one state for all its peers.

The sandbox limits the state of one session. The caps here limit concurrent sessions and strangers, who may claim any DID in the
plain Hello profile, and so cannot use up the folders of proved peers. A value is written durably and as a whole before `put`
returns.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from treaty_consensus import canonical
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Refused, Unavailable
from treaty_io import durable
from treaty_io.codes import SessionCode
from treaty_io.identity import ClaimedPeer, ProvedPeer
from treaty_sandbox.validation import MAX_STORED, MAX_STORED_KEYS

MAX_FOLDERS = 10_000
"""Pairs of handler and peer with stored state, of proved peers and of claims each: strangers may claim any number of DIDs."""

_T = TypeVar("_T")


class HandlerState(Protocol):
    """The storage of a handler; `SessionStore` implements it. Both methods raise `Unavailable` or `Refused`
    (`system.file…`)."""

    async def load(self) -> dict[str, bytes]:
        """Return all stored values by key."""

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value; None deletes it."""


class NullState:
    """The storage of a handler under test, or with a peer that does not name itself: it stores nothing."""

    async def load(self) -> dict[str, bytes]:
        return {}

    async def put(self, key: str, value: bytes | None) -> None:
        pass


class SessionStore:
    """The keys and values of one handler, role and pair of DIDs. Two concurrent sessions see each other's writes at their next
    start."""

    def __init__(self, folder: Path) -> None:
        """Use `of_proved`, `of_claimed` or `of_all` instead. Access no disk yet."""
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._counted_at = 0

    @classmethod
    def of_proved(cls, home: Path, wheel: str, role: str, local: str, peer: ProvedPeer) -> SessionStore:
        """Return the state of an agent that proved its DID."""
        return cls(_folder(home, "proved", wheel, role, local, peer.did))

    @classmethod
    def of_claimed(cls, home: Path, wheel: str, role: str, local: str, peer: ClaimedPeer) -> SessionStore:
        """Return the state of all agents that claim a DID."""
        return cls(_folder(home, "claimed", wheel, role, local, peer.did))

    @classmethod
    def of_all(cls, home: Path, wheel: str, role: str, local: str) -> SessionStore:
        """Return the state of a shared role."""
        return cls(_folder(home, "shared", wheel, role, local))

    async def load(self) -> dict[str, bytes]:
        """Return all stored values by key. Raises `Unavailable` (`system.file`)."""
        return await _in_thread(self._load) if self._folder.is_dir() else {}

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value; None deletes it. Raises `Unavailable` (`system.file`) or `Refused` (`session.storage-full`)."""
        await _in_thread(lambda: self._put(key, value))

    def _load(self) -> dict[str, bytes]:
        files = (path for path in self._folder.iterdir() if not path.name.startswith("."))
        return {bytes.fromhex(path.name).decode(): path.read_bytes() for path in files}

    def _put(self, key: str, value: bytes | None) -> None:
        path = self._folder / key.encode().hex()
        if value is None:
            path.unlink(missing_ok=True)
            return
        if not self._folder.is_dir() and self._is_last_folder():
            raise Refused(SessionCode.STORAGE_FULL, f"Handlers already store state for {MAX_FOLDERS} peers.")
        self._count()
        others = {**self._sizes, path.name: 0}
        if len(others) > MAX_STORED_KEYS or sum(others.values()) + len(value) > MAX_STORED:
            raise Refused(
                SessionCode.STORAGE_FULL, f"A handler stores at most {MAX_STORED_KEYS} keys and {MAX_STORED} bytes for one peer."
            )
        # Atomic: a crash leaves the old value or the new one.
        durable.write(path, value, mode=0o600)
        self._sizes[path.name] = len(value)
        # The system sets coarse times, so that a write of another session right after this one could have the same.
        now = time.time_ns()
        os.utime(self._folder, ns=(now, now))
        self._counted_at = self._changed_at()

    def _count(self) -> None:
        """Read the sizes of all values, unless nothing in the folder changed since this store's last write.

        Reading a thousand sizes takes longer than writing the value. Of two sessions that write at the same moment one may miss
        the other's value until the next change: the caps bound strangers, and may be exceeded by a value.
        """
        changed_at = self._changed_at()
        if not changed_at or changed_at != self._counted_at:
            files = self._folder.iterdir() if changed_at else ()
            self._sizes = {path.name: path.stat().st_size for path in files if not path.name.startswith(".")}
            self._counted_at = changed_at

    def _changed_at(self) -> int:
        """Return the time of the folder's last change, in nanoseconds; 0 without a folder."""
        return self._folder.stat().st_mtime_ns if self._folder.is_dir() else 0

    def _is_last_folder(self) -> bool:
        parent = self._folder.parent
        return parent.is_dir() and sum(1 for _ in parent.iterdir()) >= MAX_FOLDERS


def _folder(home: Path, whose: str, *names: str) -> Path:
    return home / "sessions" / whose / canonical.hex_digest(canonical.dumps(list(names)))


async def _in_thread(work: Callable[[], _T]) -> _T:
    try:
        return await asyncio.to_thread(work)
    except (OSError, ValueError) as error:
        raise Unavailable(SystemCode.FILE, f"The stored state of handlers cannot be read or written: {error}.") from error
