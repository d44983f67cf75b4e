"""DID documents, from where their DIDs say they are.

A document of did:wba or did:web is strict JSON of at most 64 KiB at `Did.document_url`, fetched through the egress guard. did:key
has none. What a document says holds at the moment it is fetched; what held when a statement was logged is for the log to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from treaty_consensus import canonical
from treaty_consensus.did import Did, authentication_keys
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import MAX_DID_DOCUMENT

from .egress import EgressGuard


@dataclass(frozen=True)
class DidDocument:
    """A fetched document: its exact bytes, and the Ed25519 keys it lists for authentication (DID URL → 32 bytes)."""

    did: Did
    data: bytes
    keys: dict[str, bytes]


async def fetch_did_document(did: Did, guard: EgressGuard) -> DidDocument:
    """Fetch and read the document of a did:wba or did:web.

    Raises what `EgressGuard.get` raises, `Refused` for a did:key, and `Malformed` when the document does not parse, is another
    DID's or lists no usable key.
    """
    return read_did_document(did, await guard.get(did.document_url))


def read_did_document(did: Did, data: bytes) -> DidDocument:
    """Read the bytes of a document. Raises `TooLarge` or `Malformed`."""
    document = canonical.parse_json(data, limit=MAX_DID_DOCUMENT, what="DID document")
    if not isinstance(document, dict):
        raise Malformed("did.document", f"The document of {did.text} is not a JSON object.")
    return DidDocument(did, data, authentication_keys(document, did))
