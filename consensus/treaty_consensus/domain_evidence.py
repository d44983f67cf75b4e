"""Define the evidence of a validated domain: the TXT records that name its keys.

    _treaty.example.org.  TXT  "did:key:z6Mk…"

The `document` of the `Validation` is JCS of

    {"authenticated": false, "name": "_treaty.example.org", "records": ["did:key:z6Mk…"]}

`authenticated`: whether the operator's resolver said that DNSSEC authenticates the answer. `records`: the texts that begin with
`did:key:`, sorted; others at the name are none of ours. What the records were, the operator attests; the keys follow from them.

Specification: `docs/specification/protocols.md`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from . import canonical
from .codes import DidCode
from .did import Did, encode_multikey, parse_did, public_key_of
from .errors import Malformed

PREFIX = "did:key:"
MAX_KEYS = 8


class DomainEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a resolver answered. Make it with `of`."""

    authenticated: bool
    name: Annotated[str, msgspec.Meta(max_length=253)]
    records: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_KEYS)]

    @classmethod
    def of(cls, did: Did, texts: set[str], *, authenticated: bool) -> DomainEvidence:
        """Return the evidence in these texts. Raises `Malformed` (`did.document`) unless 1 to 8 of them name a key."""
        named = sorted(text for text in texts if text.startswith(PREFIX))
        if not 1 <= len(named) <= MAX_KEYS:
            raise Malformed(
                DidCode.DOCUMENT, f"{record_name(did)} has {len(named)} TXT records of keys; 1 to {MAX_KEYS} are read."
            )
        evidence = cls(authenticated, record_name(did), tuple(named))
        _ = evidence.keys  # a misspelt key is refused, as its owner should see it
        return evidence

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Return the keys that the records name, Ed25519. Raises `Malformed` (`did.*`)."""
        return tuple(public_key_of(parse_did(record)) for record in self.records)

    def named_keys(self, did: Did) -> dict[str, bytes]:
        """Return the keys by their DID URLs, as a log has them."""
        return {f"{did.text}#{encode_multikey(key)}": key for key in self.keys}

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return canonical.dumps(msgspec.to_builtins(self))


def record_name(did: Did) -> str:
    """Return the name at which a domain's records are."""
    return f"_treaty.{did.host}"
