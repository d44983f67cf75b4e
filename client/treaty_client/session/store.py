"""What handlers keep between sessions (effect `Persist`), below HOME.

    HOME/sessions/HEX(SHA-256(JCS([wheel digest, role, local DID, peer DID])))/HEX(key)      the value's bytes

so a handler sees only what its own earlier sessions in that role, with that peer, kept. What one session keeps is judged with its
effects; the caps here are for sessions at the same time, and for strangers, who in the Hello's plain profile may claim any DID. A
value appears whole or not at all, durably, before `put` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from treaty_consensus import canonical
from treaty_consensus.errors import Refused, Unavailable

from .. import durable
from ..handlers.validation import MAX_STORED, MAX_STORED_KEYS

MAX_FOLDERS = 10_000
_T = TypeVar("_T")


class SessionStore:
    """The keys and values of one handler, role and pair of DIDs. Two sessions at once see each other's writes at their next
    start."""

    def __init__(self, home: Path, *, wheel: str, role: str, local: str, peer: str) -> None:
        """Touches no disk."""
        name = canonical.hex_digest(canonical.dumps([wheel, role, local, peer]))
        self._folder = home / "sessions" / name

    async def load(self) -> dict[str, bytes]:
        """All that was kept. Raises `Unavailable` (`session.storage`)."""
        return await _in_thread(self._load) if self._folder.is_dir() else {}

    async def put(self, key: str, value: bytes | None) -> None:
        """Keep a value, or forget it (None). Raises `Unavailable` (`session.storage`) or `Refused` (`session.storage-full`)."""
        await _in_thread(lambda: self._put(key, value))

    def _load(self) -> dict[str, bytes]:
        files = (path for path in self._folder.iterdir() if not path.name.startswith("."))
        return {bytes.fromhex(path.name).decode(): path.read_bytes() for path in files}

    def _put(self, key: str, value: bytes | None) -> None:
        path = self._folder / key.encode().hex()
        if value is None:
            path.unlink(missing_ok=True)
            return
        others = self._others(path.name)
        if others is None and self._is_last_folder():
            raise Refused("session.storage-full", f"Handlers keep state for {MAX_FOLDERS} peers already.")
        if others is not None and (len(others) >= MAX_STORED_KEYS or sum(others) + len(value) > MAX_STORED):
            raise Refused("session.storage-full", f"With one peer a handler keeps {MAX_STORED_KEYS} keys, {MAX_STORED} bytes.")
        durable.write(path, value, mode=0o600)

    def _others(self, name: str) -> list[int] | None:
        """The sizes of the other values; None when there is no folder yet."""
        if not self._folder.is_dir():
            return None
        return [path.stat().st_size for path in self._folder.iterdir() if path.name != name]

    def _is_last_folder(self) -> bool:
        parent = self._folder.parent
        return parent.is_dir() and sum(1 for _ in parent.iterdir()) >= MAX_FOLDERS


async def _in_thread(work: Callable[[], _T]) -> _T:
    try:
        return await asyncio.to_thread(work)
    except (OSError, ValueError) as error:
        raise Unavailable("session.storage", f"What handlers keep cannot be read or written: {error}.") from error
