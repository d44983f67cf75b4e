"""Agents for tests: deterministic keys that sign real statements."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from treaty_consensus import did, kinds, statement

ORIGIN = "registry.example"
NOW = 1_790_000_000


@dataclass(frozen=True)
class Signer:
    """One DID with one key, derived from its name."""

    did: str
    key_id: str
    private_key: Ed25519PrivateKey

    @property
    def public_key(self) -> bytes:
        return self.private_key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self.private_key.sign(message)

    def statement(self, body: kinds.Body, *, log: str = ORIGIN, issued: int = NOW) -> statement.Statement:
        return signed(body, self, log=log, issued=issued)


def key_signer(name: str) -> Signer:
    """A did:key."""
    key = _key(name)
    public = key.public_key().public_bytes_raw()
    return Signer(did.did_key(public), did.did_key_id(public), key)


def domain_signer(domain: str, method: str = "wba") -> Signer:
    """A did:wba (or did:web) of a domain, with one key named `key-1`."""
    text = f"did:{method}:{domain}"
    return Signer(text, f"{text}#key-1", _key(text))


def signed(body: kinds.Body, *signers: Signer, log: str = ORIGIN, issued: int = NOW) -> statement.Statement:
    """A statement that all `signers` sign."""
    draft = statement.draft(body, log=log, by=tuple(s.key_id for s in signers), issued=issued)
    return draft.seal({s.key_id: s.sign(draft.signing_input) for s in signers})


def identity_body(signer: Signer, *, tenure: int = 1, previous: str | None = None, document: str = "") -> kinds.Identity:
    """The operator's testimony of a signer's document."""
    digest = hashlib.sha256((document or signer.did).encode()).hexdigest()
    key = kinds.Key(signer.key_id, did.encode_multikey(signer.public_key))
    return kinds.Identity(signer.did, kinds.Blob(digest, 500), (key,), tenure, previous)


def _key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
