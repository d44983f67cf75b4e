"""DID documents, from where their DIDs say they are.

A document of did:wba or did:web is strict JSON of at most 64 KiB at `Did.document_url`, fetched through the egress guard. did:key
has none. What a document says holds at the moment it is fetched; what held when a statement was logged is for the log to say.

A document that says `"deactivated": true` is refused, and so is that of a DID bound to a key without that key's proof.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from treaty_consensus import canonical
from treaty_consensus.did import Did, authentication_keys, did_key_id, parse_did, public_key_of
from treaty_consensus.errors import Malformed, Refused, TreatyError, Unavailable
from treaty_consensus.kinds import MAX_DID_DOCUMENT

from ..key_binding import check_binding
from .egress import EgressGuard, without_frames

MAX_AGE = 60.0
"""Seconds for which a document is believed without asking again: for so long a key that was taken out of it still counts."""
REFETCH_AGE = 5.0
"""Seconds before a document that lacks a key is fetched again: how often strangers who name unknown keys make us ask."""
_REMEMBERED = 4096
_REMEMBERED_BYTES = 16 * 1024 * 1024
"""Of documents: strangers choose how many there are, and how large."""


@dataclass(frozen=True)
class DidDocument:
    """A document: its exact bytes, and the Ed25519 keys it lists for authentication (DID URL → 32 bytes)."""

    did: Did
    data: bytes
    keys: dict[str, bytes]


async def fetch_did_document(did: Did, guard: EgressGuard) -> DidDocument:
    """Fetch and read the document of a did:wba or did:web.

    Raises what `EgressGuard.get` raises, `Refused` for a did:key, and what `read_did_document` raises.
    """
    return read_did_document(did, await guard.get(did.document_url))


def read_did_document(did: Did, data: bytes) -> DidDocument:
    """Read the bytes of a document.

    Raises `TooLarge`; `Malformed` when it does not parse, is another DID's or lists no usable key; `Refused` (`did.deactivated`)
    when its owner took the DID out of use; `Unauthorized` (`did.binding`) when the key that the DID is bound to did not sign it.
    """
    document = canonical.parse_json(data, limit=MAX_DID_DOCUMENT, what="DID document")
    if not isinstance(document, dict):
        raise Malformed("did.document", f"The document of {did.text} is not a JSON object.")
    if document.get("id") == did.text and document.get("deactivated", False) is not False:
        raise Refused("did.deactivated", f"{did.text} was taken out of use by its owner.")
    keys = authentication_keys(document, did)
    check_binding(document, did)
    return DidDocument(did, data, keys)


class DidResolver:
    """The documents of DIDs as they are now, or were at most `max_age` seconds ago. For one event loop.

    A did:key is its own document: its one key, and no bytes. Nothing is believed beyond its age: while a host does not answer,
    its DIDs do not resolve. That a document is not usable is remembered for `REFETCH_AGE`.
    """

    def __init__(
        self,
        fetch: Callable[[Did], Awaitable[DidDocument]],
        *,
        max_age: float = MAX_AGE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fetch`: get one document, such as by `fetch_did_document`. `clock`: seconds, monotonic."""
        self._fetch = fetch
        self._max_age = max_age
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, DidDocument | TreatyError]] = OrderedDict()
        self._bytes = 0

    async def resolve(self, did: Did, *, listing: str = "") -> DidDocument:
        """The document of `did`. One that lacks the key `listing` is fetched again, unless that was done a moment ago: after a
        rotation the new key counts at once. Raises what `fetch` raises."""
        if did.method == "key":
            key = public_key_of(did)
            return DidDocument(did, b"", {did_key_id(key): key})
        fetched, known = self._known.get(did.text, (-math.inf, None))
        age = self._clock() - fetched
        if isinstance(known, DidDocument) and age < (self._max_age if not listing or listing in known.keys else REFETCH_AGE):
            return known
        if isinstance(known, TreatyError) and age < REFETCH_AGE:
            raise without_frames(known)
        asked = self._clock()
        try:
            document = await self._fetch(did)
        except Unavailable:
            raise
        except TreatyError as error:
            self._remember(did, asked, without_frames(error))
            raise
        self._remember(did, asked, document)
        return document

    async def document(self, did: str, listing: str = "") -> Mapping[str, Any]:
        """The parsed document of a DID that has one. Raises what `resolve` raises, and `Malformed` for what is no DID."""
        found = await self.resolve(parse_did(did), listing=listing)
        value: dict[str, Any] = canonical.parse_json(found.data, limit=MAX_DID_DOCUMENT, what="DID document")
        return value

    def _remember(self, did: Did, asked: float, outcome: DidDocument | TreatyError) -> None:
        self._bytes += _size(outcome) - _size(self._known.get(did.text, (0.0, None))[1])
        self._known[did.text] = (asked, outcome)
        self._known.move_to_end(did.text)
        while len(self._known) > _REMEMBERED or self._bytes > _REMEMBERED_BYTES:
            _, (_, oldest) = self._known.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(outcome: DidDocument | TreatyError | None) -> int:
    return len(outcome.data) if isinstance(outcome, DidDocument) else 0
