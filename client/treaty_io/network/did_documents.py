"""Fetch, check and cache the documents of DIDs.

The document of a did:wba or did:web is strict JSON of at most 64 KiB at `Did.document_url`, fetched through the egress guard;
docs/specification/protocols.md has the rules. For example, the document of did:wba:shop.example is at
https://shop.example/.well-known/did.json. A did:key has no document. A document proves the keys of a DID now; the log proves the
keys at an earlier time. A document with `"deactivated": true` is refused, and so is the document of a DID that is bound to a key,
without that key's proof.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from treaty_consensus import canonical
from treaty_consensus.codes import DidCode
from treaty_consensus.did import Did, authentication_keys, did_key_id, listed_keys, parse_did, public_key_of
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError, Unavailable
from treaty_consensus.kinds import MAX_DID_DOCUMENT

from ..codes import ClientDidCode, EgressCode
from ..identity.key_binding import check_binding
from ..identity.secp256k1 import check_k1_binding, secp256k1_keys
from .egress import EgressGuard, without_frames

MAX_AGE = 60.0
"""Seconds for which a cached document is used. A removed key is accepted for that long at most."""
REFETCH_AGE = 5.0
"""Seconds before a document that lacks a key is fetched again. It bounds the fetches that strangers cause with unknown keys."""
_REMEMBERED = 4096
_REMEMBERED_BYTES = 16 * 1024 * 1024
"""The cap of all cached documents together: strangers choose their number and their size."""


@dataclass(frozen=True)
class DidDocument:
    """A DID document: its exact bytes, and its keys for authentication by their DID URLs.

    `keys`: Ed25519, 32 bytes each. `secp256k1`: points of 65 bytes, read only for an agent whose policy accepts them; they prove
    requests of peers and nothing else.
    """

    did: Did
    data: bytes
    keys: dict[str, bytes]
    secp256k1: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def request_keys(self) -> Mapping[str, bytes]:
        """Return the keys that may sign requests."""
        return {**self.secp256k1, **self.keys}


async def fetch_did_document(did: Did, guard: EgressGuard, *, secp256k1: bool = False) -> DidDocument:
    """Fetch and read the document of a did:wba or did:web.

    Raises the errors of `EgressGuard.get` and `read_did_document`, and `Refused` for a did:key.
    """
    return read_did_document(did, await guard.get(did.document_url), secp256k1=secp256k1)


def read_did_document(did: Did, data: bytes, *, secp256k1: bool = False) -> DidDocument:
    """Read the bytes of a document. `secp256k1`: also read keys of this curve, and the k1 profile's binding.

    Raises `TooLarge`; `Malformed` if it does not parse, belongs to another DID or lists no usable key; `Refused`
    (`did.deactivated`) if its owner deactivated the DID; `Unauthorized` (`did.binding`) if the key that the DID is bound to did
    not sign it.
    """
    document = canonical.parse_json(data, limit=MAX_DID_DOCUMENT, name="DID document")
    if not isinstance(document, dict):
        raise Malformed(DidCode.DOCUMENT, f"The document of {did.text} is not a JSON object.")
    if document.get("id") == did.text and document.get("deactivated", False) is not False:
        raise Refused(ClientDidCode.DEACTIVATED, f"The owner of {did.text} has deactivated it.")
    points = secp256k1_keys(document, did, "authentication") if secp256k1 and document.get("id") == did.text else {}
    keys = listed_keys(document, did, "authentication") if points else authentication_keys(document, did)
    check_binding(document, did)
    if secp256k1:
        check_k1_binding(document, did)
    return DidDocument(did, data, keys, points)


class DidResolver:
    """Return the documents of DIDs, at most `max_age` seconds old. For one event loop.

    A did:key resolves to its one key and no bytes. An older document is never used, so the DIDs of a host do not resolve while
    the host does not answer. The error for an unusable document is remembered for `REFETCH_AGE`. Only a document can refuse: a
    host that has none raises `Unavailable`, as one that fails.
    """

    def __init__(
        self,
        fetch: Callable[[Did], Awaitable[DidDocument]],
        *,
        max_age: float = MAX_AGE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use `fetch` to get one document, for example `fetch_did_document`. `clock`: monotonic seconds."""
        self._fetch = fetch
        self._max_age = max_age
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, DidDocument | TreatyError]] = OrderedDict()
        self._bytes = 0

    async def resolve(self, did: Did, *, listing: str = "") -> DidDocument:
        """Return the document of `did`. Raises the errors of `fetch`, `Unavailable` in place of `NotFound`.

        `listing`: the id of a needed key. A cached document without that key is fetched again if it is older than `REFETCH_AGE`,
        so that a new key is accepted soon after a rotation.
        """
        if did.method == "key":
            key = public_key_of(did)
            return DidDocument(did, b"", {did_key_id(key): key})
        fetched, cached = self._known.get(did.text, (-math.inf, None))
        # Monotonic: a clock that is set back must not prolong the use of a removed key.
        age = self._clock() - fetched
        if isinstance(cached, DidDocument) and age < (
            self._max_age if not listing or listing in cached.request_keys else REFETCH_AGE
        ):
            return cached
        if isinstance(cached, TreatyError) and age < REFETCH_AGE:
            raise without_frames(cached)
        # Before the fetch: the document may change while it travels, so its age counts from here.
        requested_at = self._clock()
        try:
            document = await self._fetch(did)
        # Neither is remembered here: the host may answer the next moment. The guard limits the requests.
        except Unavailable:
            raise
        except NotFound as error:
            # A web server that restarts answers 404 until its documents are there again.
            raise Unavailable(EgressCode.UNREACHABLE, error.message, fix=error.fix) from error
        except TreatyError as error:
            self._remember(did, requested_at, without_frames(error))
            raise
        self._remember(did, requested_at, document)
        return document

    async def document(self, did: str, listing: str = "") -> Mapping[str, Any]:
        """Return the parsed document of a did:wba or did:web. Raises the errors of `resolve`, and `Malformed` for a bad DID."""
        resolved = await self.resolve(parse_did(did), listing=listing)
        value: dict[str, Any] = canonical.parse_json(resolved.data, limit=MAX_DID_DOCUMENT, name="DID document")
        return value

    def _remember(self, did: Did, at: float, outcome: DidDocument | TreatyError) -> None:
        self._bytes += _size(outcome) - _size(self._known.get(did.text, (0.0, None))[1])
        self._known[did.text] = (at, outcome)
        self._known.move_to_end(did.text)
        # Both caps: strangers may choose many small documents or few large ones.
        while len(self._known) > _REMEMBERED or self._bytes > _REMEMBERED_BYTES:
            _, (_, oldest) = self._known.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(outcome: DidDocument | TreatyError | None) -> int:
    return len(outcome.data) if isinstance(outcome, DidDocument) else 0
