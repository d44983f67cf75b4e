"""What this agent agreed on with whom, so that the next Hello can offer the hash.

HOME/agreements.json, newest first, at most 256:

    {"agreements": [{"peer": TEXT, "topic": TEXT, "did": DID, "hash": HEX, "uri": URI, "candidates": [URI, …]}, …]}

`peer` is the address a source connected to, or the DID of the source that came; the agreed text itself is in the store under its
hash. This is a cache: losing it costs a longer handshake, believing it costs nothing, because a hash counts only when the peer
confirms it and this agent has the verified code. A file that does not parse is started anew; of two processes the later writer
wins.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import TreatyError
from treaty_consensus.kinds import Digest

from .. import durable

MAX_AGREEMENTS = 256
MAX_FILE = 4 * 1024 * 1024


class Remembered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One agreement. `candidates`: what was offered then, for a peer that no longer speaks `hash`."""

    peer: str
    topic: str
    did: str
    hash: Digest
    uri: str
    candidates: tuple[str, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agreements: tuple[Remembered, ...]


class Agreements:
    """HOME/agreements.json."""

    def __init__(self, home: Path) -> None:
        """Reads the file at the first use."""
        self._path = home / "agreements.json"
        self._known: dict[tuple[str, str], Remembered] | None = None

    def get(self, peer: str, topic: str) -> Remembered | None:
        """What was agreed on last with this peer about this topic."""
        return self._read().get((peer, topic))

    def knows(self, did: str) -> bool:
        """Whether this agent connected to somebody of this DID and agreed with them. Who came and claimed it does not count."""
        return any(entry.did == did != entry.peer for entry in self._read().values())

    def remember(self, agreement: Remembered) -> None:
        """Put an agreement first; the oldest beyond the cap is forgotten. Writes only what changed. Raises OSError."""
        known = self._read()
        key = (agreement.peer, agreement.topic)
        if known.get(key) != agreement:
            rest = [other for place, other in known.items() if place != key]
            self._write([agreement, *rest][:MAX_AGREEMENTS])

    def forget(self, peer: str, topic: str) -> None:
        """Offer no hash to this peer about this topic until the next agreement. Raises OSError."""
        known = self._read()
        if (peer, topic) in known:
            self._write([other for place, other in known.items() if place != (peer, topic)])

    def _read(self) -> dict[tuple[str, str], Remembered]:
        if self._known is None:
            try:
                value = canonical.parse_json(self._path.read_bytes(), limit=MAX_FILE, what="agreements.json")
                entries = msgspec.convert(value, _File).agreements
            except (OSError, TreatyError, msgspec.ValidationError):
                entries = ()
            self._known = {(entry.peer, entry.topic): entry for entry in entries[:MAX_AGREEMENTS]}
        return self._known

    def _write(self, entries: list[Remembered]) -> None:
        self._known = {(entry.peer, entry.topic): entry for entry in entries}
        durable.write(self._path, canonical.dumps(msgspec.to_builtins(_File(tuple(entries)))), mode=0o600)
