"""Hold an agent's identity: a DID and the Ed25519 private key that signs for it.

The file is one line of canonical JSON, readable only by its owner (0600):

    {"did": DID, "key": DID-URL, "kept"?: [{"key": DID-URL, "seed": B64(32 bytes)}, …], "seed": B64(32 bytes)}

`seed` is the private key (RFC 8032 §5.1.5). A did:key needs nothing else. For a did:wba, publish `did_document()` at the DID's
`document_url`. The document follows ANP's e1 profile: one Ed25519 Multikey, for authentication and assertion. A DID may be bound
to its first key (`key_binding`); then the document carries a proof by that key.

A rotation replaces the key by a new one with the next free name (`#key-2`). `kept` are former keys that are still needed: the key
that the DID is bound to, for the proof; and the keys before the newest rotations, because a log may still know one of them and
accepts a successor only with its signature.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from treaty_consensus import canonical
from treaty_consensus.codes import SystemCode
from treaty_consensus.did import Did, did_key, did_key_id, encode_multikey, parse_did, parse_key_id
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused

from .. import durable
from ..codes import ClientIdentityCode
from .key_binding import b64url_encode, bound_segment, is_bound, with_proof

if TYPE_CHECKING:
    from treaty_consensus.kinds import Body
    from treaty_consensus.statement import Statement

# More than a DID of the longest length with all its kept keys.
MAX_FILE = 4096
MAX_KEPT = 4
"""Former keys that are kept: a log may miss this many rotations."""
FRAGMENT = "key-1"
_CONTEXTS = ["https://www.w3.org/ns/did/v1", "https://w3id.org/security/multikey/v1"]
_PROOF_CONTEXTS = [_CONTEXTS[0], "https://w3id.org/security/data-integrity/v2", _CONTEXTS[1]]


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    seed: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    did: str
    key: str
    seed: str
    kept: tuple[_Kept, ...] = ()


class KeyPair(NamedTuple):
    """A private key and its DID URL."""

    id: str
    private: Ed25519PrivateKey

    @property
    def public(self) -> bytes:
        """The raw public key, 32 bytes."""
        return self.private.public_key().public_bytes_raw()


@dataclass(frozen=True)
class Identity:
    """A DID with its private keys. Raises `Malformed` when the parts do not belong together. `key_id`: the DID URL of
    `private_key`."""

    did: str
    key_id: str
    private_key: Ed25519PrivateKey = field(repr=False, compare=False)
    kept: tuple[KeyPair, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = [self.key_id, *(pair.id for pair in self.kept)]
        foreign = [key_id for key_id in ids if parse_key_id(key_id)[0].text != self.did]
        # Checked at every load: a file that was edited by hand must not sign with a key of another DID.
        if foreign or len(set(ids)) != len(ids) or (self.parsed.method == "key" and did_key(self.public_key) != self.did):
            raise Malformed(ClientIdentityCode.FILE, f"{(foreign or ids)[0]} is not a key of {self.did}.")
        if is_bound(self.parsed) and self._binding is None:
            raise Malformed(ClientIdentityCode.FILE, f"The key that {self.did} is bound to is missing.")

    @classmethod
    def create(cls, name: str | None = None, *, bind: bool = False, record: bool = False) -> Identity:
        """Return an identity with a new key: a did:key, or the did:wba of `name`, a host or a host and path joined by ':'. Raises
        `Malformed`.

        `bind`: add the path segment that binds the DID to this key for ever (ANP's e1 profile). `record`: the did:treaty of a
        domain that names its keys in TXT records.
        """
        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw()
        if name is None:
            return cls(did_key(public), did_key_id(public), key)
        if record:
            recorded = parse_did(f"did:treaty:{name}").text
            return cls(recorded, f"{recorded}#{encode_multikey(public)}", key)
        did = parse_did(f"did:wba:{name}:{bound_segment(public)}" if bind else f"did:wba:{name}").text
        return cls(did, f"{did}#{FRAGMENT}", key)

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read the file. Raises `NotFound`, `Refused` when other users may read it, `Malformed` or `TooLarge`."""
        try:
            with path.open("rb") as file:
                # Of the open file, so that a swap of the path has no effect.
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                data = file.read(MAX_FILE + 1)
        except FileNotFoundError as error:
            raise NotFound(
                ClientIdentityCode.MISSING, f"There is no identity at {path}.", fix="Make one: treaty identity new"
            ) from error
        # Refused, not repaired: others may have read the key already, and its owner has to decide.
        # Windows has no such modes: its folders of users say who may read.
        if mode & 0o077 and sys.platform != "win32":
            raise Refused(ClientIdentityCode.FILE, f"Other users of this machine may read {path}.", fix=f"Run: chmod 600 {path}")
        value = canonical.loads(data.removesuffix(b"\n"), limit=MAX_FILE, name="identity file")
        try:
            parts = msgspec.convert(value, _File)
        except msgspec.ValidationError as error:
            raise Malformed(ClientIdentityCode.FILE, f"{path} is not an identity file: {error}.") from error
        earlier = tuple(KeyPair(pair.key, _private_key(pair.seed, path)) for pair in parts.kept)
        return cls(parts.did, parts.key, _private_key(parts.seed, path), earlier)

    def save(self, path: Path) -> None:
        """Write a new file, 0600, durably. Raises `Conflict` when the file exists: a lost key cannot be restored."""
        try:
            durable.create(path, self._encoded(), mode=0o600)
        except FileExistsError as error:
            raise Conflict(
                SystemCode.EXISTS,
                f"There is an identity at {path} already.",
                fix="Use another home (--home FOLDER), or move the file away first.",
            ) from error

    def rotated(self) -> Identity:
        """Return the same DID with a new key, and the former keys that are still needed. Raises `Refused` for a did:key."""
        if self.parsed.method == "key":
            raise Refused(
                ClientIdentityCode.ROTATE, "A did:key contains its key, so it cannot be rotated.", fix="Use a domain: did:wba."
            )
        old_key, binding = KeyPair(self.key_id, self.private_key), self._binding
        # The key of a bound DID stays for ever: without it no document of the DID can be proved again.
        everything = (*self.kept, old_key)
        earlier = tuple(pair for pair in everything if pair in everything[-MAX_KEPT:] or pair == binding)
        # Above every former number: a name that is used twice would let an old signature count under a new key.
        number = 1 + max(_number(pair.id) for pair in everything)
        key = Ed25519PrivateKey.generate()
        # A log names the key of a did:treaty by the key itself.
        name = encode_multikey(key.public_key().public_bytes_raw()) if self.parsed.validated_by else f"key-{number}"
        return replace(self, key_id=f"{self.did}#{name}", private_key=key, kept=earlier)

    def supersede(self, old: Identity, path: Path) -> None:
        """Replace the file of `old` by this identity, its rotation. A crash leaves one of the two. Raises `Conflict` when the
        file has another content now, and the errors of `load`."""
        # The lock covers check and write: of two rotations one must fail.
        with durable.exclusive(path.with_name(f"{path.name}.lock")):
            if Identity.load(path)._encoded() != old._encoded():  # compare contents: another key may have the same name
                raise Conflict(ClientIdentityCode.FILE, f"{path} changed since this rotation began.")
            durable.write(path, self._encoded(), mode=0o600)

    @property
    def parsed(self) -> Did:
        """The DID's parts."""
        return parse_did(self.did)

    @property
    def public_key(self) -> bytes:
        """The raw public key, 32 bytes."""
        return self.private_key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature, 64 bytes."""
        return self.private_key.sign(message)

    def sign_detached(self, payload: bytes) -> tuple[str, str]:
        """Return the protected header and the signature of a JWS with detached payload (RFC 7515 appendix F)."""
        protected = b64url_encode(canonical.dumps({"alg": "EdDSA", "kid": self.key_id, "typ": "JOSE"}))
        return protected, b64url_encode(self.sign(f"{protected}.{b64url_encode(payload)}".encode("ascii")))

    def statement(self, body: Body, *, log: str, issued: int) -> Statement:
        """Return a statement signed only by this identity, for the log of that origin; `issued` in Unix seconds. Raises
        `Malformed`."""
        from treaty_consensus import statement  # all kinds of statements, which an identity that signs none does not need

        draft = statement.draft(body, log=log, by=(self.key_id,), issued=issued)
        return draft.seal({self.key_id: self.sign(draft.signing_input)})

    def did_document(
        self, *, services: Sequence[Mapping[str, object]] = (), created: int | None = None, deactivated: bool = False
    ) -> dict[str, object]:
        """Return the DID document, to be served as JSON at `parsed.document_url`. Raises `Refused` for a did:key, which has none.

        `services`: its `service` entries.
        `created`: the time of a bound DID's proof, Unix seconds; now by default.
        `deactivated`: return the document that takes the DID out of use, without a key for authentication.
        """
        _ = self.parsed.document_url
        current, binding = KeyPair(self.key_id, self.private_key), self._binding
        # A deactivated document lists no key for authentication, so peers refuse the DID at once.
        speaking = [] if deactivated else [current]
        listed = speaking if binding is None or binding in speaking else [*speaking, binding]
        document: dict[str, object] = {
            "@context": _CONTEXTS if binding is None else _PROOF_CONTEXTS,
            "id": self.did,
            "verificationMethod": [_method(self.did, pair) for pair in listed],
            "authentication": [pair.id for pair in speaking],
            "assertionMethod": [pair.id for pair in listed],
        }
        if services:
            document["service"] = [dict(service) for service in services]
        if deactivated:
            document["deactivated"] = True
        if binding is None:
            return document
        return with_proof(document, binding.id, binding.private.sign, created=int(time.time()) if created is None else created)

    @property
    def _binding(self) -> KeyPair | None:
        """The key that the DID is bound to, or None."""
        if not is_bound(self.parsed):
            return None
        pairs = (KeyPair(self.key_id, self.private_key), *self.kept)
        return next((pair for pair in pairs if bound_segment(pair.public) == self.parsed.path[-1]), None)

    def _encoded(self) -> bytes:
        earlier = [{"key": pair.id, "seed": _seed(pair.private)} for pair in self.kept]
        value: dict[str, object] = {"did": self.did, "key": self.key_id, "seed": _seed(self.private_key)}
        return canonical.dumps(value | ({"kept": earlier} if earlier else {})) + b"\n"


def _method(did: str, pair: KeyPair) -> dict[str, str]:
    return {"id": pair.id, "type": "Multikey", "controller": did, "publicKeyMultibase": encode_multikey(pair.public)}


def _number(key_id: str) -> int:
    """Return the number in a key's name as `create` and `rotated` make it; 1 for any other name."""
    _, _, digits = key_id.partition("#key-")
    try:
        return canonical.parse_decimal(digits, limit=1 << 30)
    except Malformed:
        return 1


def _seed(key: Ed25519PrivateKey) -> str:
    return canonical.b64encode(key.private_bytes_raw())


def _private_key(seed: str, path: Path) -> Ed25519PrivateKey:
    data = canonical.b64decode(seed, limit=32)
    if len(data) != 32:
        raise Malformed(ClientIdentityCode.FILE, f"The seed in {path} does not have 32 bytes.")
    return Ed25519PrivateKey.from_private_bytes(data)
