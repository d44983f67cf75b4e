"""What was negotiated with success, so that the next negotiation can be shorter.

HOME/flow-history.json, newest first, at most 256:

    {"negotiations": [{"peer": DID, "purpose": TEXT, "protocol": ID, "uri": URI, "digest": HEX, "parameters": {…}, "extensions":
    {…},
                       "count": N}, …]}

`recall`: the same peer and purpose; what was agreed on is proposed and confirmed in one flight. `predict`: the same purpose with
others, or other purposes with this peer; the protocol that succeeded most often, at least twice, is proposed at once. A
shortcut that fails costs one round trip, and is forgotten. A file that does not parse is started anew; of two processes the
later writer wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import rfc8785

from treaty_consensus.errors import TreatyError
from treaty_handler.values import decode_json

from .. import durable
from .actions import Agreed, Shortcut

MAX_ENTRIES = 256
MAX_FILE = 4 * 1024 * 1024
MIN_SUCCESSES = 2


class Negotiated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One success. `count`: how often it came to the same."""

    peer: str
    purpose: str
    protocol: str
    uri: str
    digest: str
    parameters: dict[str, Any]
    extensions: dict[str, Any]
    count: int


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    negotiations: tuple[Negotiated, ...]


class History:
    """HOME/flow-history.json."""

    def __init__(self, home: Path) -> None:
        """Reads the file at the first use."""
        self._path = home / "flow-history.json"
        self._known: dict[tuple[str, str], Negotiated] | None = None

    def recall(self, peer: str, purpose: str, ids: Collection[str]) -> Shortcut | None:
        """What was agreed on with this peer for this purpose, if it is among `ids`."""
        known = self._read().get((peer, purpose))
        if known is None or known.protocol not in ids:
            return None
        return Shortcut(Agreed(known.protocol, known.parameters, known.extensions, known.uri, known.digest), confirmed=True)

    def predict(self, peer: str, purpose: str, ids: Collection[str]) -> str | None:
        """The id among `ids` that most likely will be agreed on; None without a pattern."""
        successes = Counter[str]()
        for entry in self._read().values():
            if entry.protocol in ids and (entry.peer == peer or entry.purpose == purpose):
                successes[entry.protocol] += entry.count
        best = min(successes, key=lambda id: (-successes[id], id), default=None)
        return best if best is not None and successes[best] >= MIN_SUCCESSES else None

    def remember(self, peer: str, purpose: str, agreed: Agreed) -> None:
        """A negotiation succeeded. Raises OSError."""
        known = self._read()
        before = known.get((peer, purpose))
        count = before.count + 1 if before is not None and before.protocol == agreed.protocol else 1
        entry = Negotiated(
            peer, purpose, agreed.protocol, agreed.uri, agreed.digest, agreed.parameters, agreed.extensions, min(count, 1_000_000)
        )
        rest = [other for key, other in known.items() if key != (peer, purpose)]
        self._write([entry, *rest][:MAX_ENTRIES])

    def forget(self, peer: str, purpose: str) -> None:
        """Its shortcut failed. Raises OSError."""
        known = self._read()
        if (peer, purpose) in known:
            self._write([other for key, other in known.items() if key != (peer, purpose)])

    def _read(self) -> dict[tuple[str, str], Negotiated]:
        if self._known is None:
            try:
                data = self._path.read_bytes()
                entries = msgspec.convert(decode_json(data), _File).negotiations if len(data) <= MAX_FILE else ()
            except (OSError, ValueError, TreatyError, msgspec.ValidationError):
                entries = ()
            self._known = {(entry.peer, entry.purpose): entry for entry in entries[:MAX_ENTRIES]}
        return self._known

    def _write(self, entries: list[Negotiated]) -> None:
        self._known = {(entry.peer, entry.purpose): entry for entry in entries}
        durable.write(self._path, rfc8785.dumps(msgspec.to_builtins(_File(tuple(entries)))), mode=0o600)
