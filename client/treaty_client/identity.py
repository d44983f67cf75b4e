"""An agent's identity: a DID and the Ed25519 private key that signs for it.

The file is one line of canonical JSON, readable by its owner alone (0600):

    {"did": DID, "key": DID-URL, "seed": B64(32 bytes)}

`seed` is the private key (RFC 8032 §5.1.5). A did:key needs nothing else; for a did:wba publish `did_document()` at the DID's
`document_url`. The document has what ANP's e1 profile has (one Ed25519 Multikey, for authentication and assertion), without its
optional proof: the profile's key-bound path segment is the caller's to choose.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from treaty_consensus import canonical, statement
from treaty_consensus.did import Did, did_key, did_key_id, encode_multikey, parse_did, parse_key_id
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused
from treaty_consensus.kinds import Body
from treaty_consensus.statement import Statement

from . import durable

MAX_FILE = 4096
FRAGMENT = "key-1"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    did: str
    key: str
    seed: str


@dataclass(frozen=True)
class Identity:
    """`did` signs with `private_key`, which others know as `key_id`. Raises `Malformed` when the three do not belong together."""

    did: str
    key_id: str
    private_key: Ed25519PrivateKey = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        did, _ = parse_key_id(self.key_id)
        if did.text != self.did or (did.method == "key" and did_key(self.public_key) != self.did):
            raise Malformed("identity.key", f"{self.key_id} is not a key of {self.did}.")

    @classmethod
    def create(cls, name: str | None = None) -> Identity:
        """A new key: a did:key, or the did:wba of `name`, a host or a host and path joined by ':'. Raises `Malformed`."""
        key = Ed25519PrivateKey.generate()
        if name is None:
            public = key.public_key().public_bytes_raw()
            return cls(did_key(public), did_key_id(public), key)
        did = parse_did(f"did:wba:{name}").text
        return cls(did, f"{did}#{FRAGMENT}", key)

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read the file. Raises `NotFound`, `Refused` when others may read it, `Malformed` or `TooLarge`."""
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                data = file.read(MAX_FILE + 1)
        except FileNotFoundError as error:
            raise NotFound("identity.missing", f"There is no identity at {path}.", fix="Make one: treaty identity new") from error
        if mode & 0o077:
            raise Refused("identity.mode", f"Others on this machine may read {path}.", fix=f"Run: chmod 600 {path}")
        value = canonical.loads(data.removesuffix(b"\n"), limit=MAX_FILE, what="identity file")
        try:
            parts = msgspec.convert(value, _File)
        except msgspec.ValidationError as error:
            raise Malformed("identity.file", f"{path} is not an identity file: {error}.") from error
        seed = canonical.b64decode(parts.seed, limit=32)
        if len(seed) != 32:
            raise Malformed("identity.file", f"The seed in {path} has not 32 bytes.")
        return cls(parts.did, parts.key, Ed25519PrivateKey.from_private_bytes(seed))

    def save(self, path: Path) -> None:
        """Write a new file, 0600, durably. Raises `Conflict` when there is one: a lost key cannot be made again."""
        seed = canonical.b64encode(self.private_key.private_bytes_raw())
        data = canonical.dumps({"did": self.did, "key": self.key_id, "seed": seed}) + b"\n"
        try:
            durable.create(path, data, mode=0o600)
        except FileExistsError as error:
            raise Conflict(
                "identity.exists", f"There is an identity at {path} already.", fix="Move it away first, or name another file."
            ) from error

    @property
    def parsed(self) -> Did:
        """The DID's parts."""
        return parse_did(self.did)

    @property
    def public_key(self) -> bytes:
        """The raw public key, 32 bytes."""
        return self.private_key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """The Ed25519 signature, 64 bytes."""
        return self.private_key.sign(message)

    def statement(self, body: Body, *, log: str, issued: int) -> Statement:
        """A statement by this identity alone, for the log of that origin; `issued` in Unix seconds. Raises `Malformed`."""
        draft = statement.draft(body, log=log, by=(self.key_id,), issued=issued)
        return draft.seal({self.key_id: self.sign(draft.signing_input)})

    def did_document(self) -> dict[str, object]:
        """The DID document, to be served as JSON at `parsed.document_url`. Raises `Refused` for a did:key, which has none."""
        _ = self.parsed.document_url
        method = {
            "id": self.key_id,
            "type": "Multikey",
            "controller": self.did,
            "publicKeyMultibase": encode_multikey(self.public_key),
        }
        return {
            "@context": ["https://www.w3.org/ns/did/v1", "https://w3id.org/security/multikey/v1"],
            "id": self.did,
            "verificationMethod": [method],
            "authentication": [self.key_id],
            "assertionMethod": [self.key_id],
        }
