"""Parse decentralised identifiers: did:key, did:wba, did:web and did:treaty, with their Ed25519 keys, namespaces and principals.

    did:key:z6Mk…                      the key is the identity (W3C did:key, Ed25519 only)
    did:wba:example.com                https://example.com/.well-known/did.json
    did:wba:example.com:users:alice    https://example.com/users/alice/did.json
    did:wba:example.com%3A8443:a       https://example.com:8443/a/did.json
    did:web:…                          reads like did:wba (the same host, the same document)
    did:treaty:github.com:alice        no document: a log's operator states the keys of the account (`kinds.Validation`)
    did:treaty:example.com             the same of a domain, by a TXT record

Hosts are domain names of lower-case A-labels; IP addresses are refused in every notation. Path segments are
`[A-Za-z0-9._-]+`. A DID URL is a DID, `#` and a fragment, and names a key. Ed25519 keys are read as Multikey (`z` +
base58btc(0xed 0x01 ‖ 32 bytes)) and as JWK (RFC 8037), and written as Multikey.

Specification: `docs/specification/protocols.md`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from .codes import DidCode
from .errors import Malformed, Refused

# A DID is part of fact keys, URLs and log entries, so its length needs a bound.
MAX_DID = 255
# RFC 1123 labels of at most 63 characters; a name has at most 253 (RFC 1035).
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_SEGMENT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FRAGMENT = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Of GitHub, in lower case: its names have no case, and one account has one DID.
_ACCOUNT = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")
FORGES: Final = frozenset({"github.com"})
"""The hosts whose accounts are proved by tokens of their workflows."""
Validated: TypeAlias = Literal["oidc", "dns"]
"""How an operator validated the name of a did:treaty: by a token of a workflow, or by a TXT record."""
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# The multicodec prefix of an Ed25519 public key.
_ED25519 = b"\xed\x01"


@dataclass(frozen=True)
class Did:
    """Hold a parsed DID.

    `host`: None for did:key.
    `port`: None unless the DID contains one.
    """

    text: str
    method: str
    host: str | None
    port: int | None
    path: tuple[str, ...]

    @property
    def namespace(self) -> str:
        """Return the one namespace that this DID owns: its domain, its domain and path, or itself (did:key).

        Raises `Refused` (`did.method`) for a DID with a port: a process that listens on a port need not belong to the
        owner of the host.
        """
        if self.host is None:
            return self.text
        if self.port is not None:
            raise Refused(
                DidCode.METHOD, f"{self.text} names a port, so it owns no namespace. Publish with a DID without a port."
            )
        return ":".join((self.host, *self.path))

    @property
    def validated_by(self) -> Validated | None:
        """Return how an operator validates this name; None for a DID that is its key or has a document."""
        if self.method != "treaty":
            return None
        return "oidc" if self.path else "dns"

    @property
    def document_url(self) -> str:
        """Return the URL of the DID document (did:wba and did:web). Raises `Refused` (`did.method`) for the other methods."""
        if self.host is None:
            raise Refused(DidCode.METHOD, "A did:key has no document: the key is the identity.")
        if self.validated_by is not None:
            raise Refused(
                DidCode.METHOD,
                f"{self.text} has no document: only a log knows its keys.",
                fix="Have the registry validate a key for it: docs/guides/publishing-from-ci.md.",
            )
        authority = self.host if self.port is None else f"{self.host}:{self.port}"
        return f"https://{authority}/{'/'.join(self.path or ('.well-known',))}/did.json"

    def principal(self, registrable: Callable[[str], str | None]) -> str | None:
        """Return the registrable domain of this DID, or None for a did:key, a did:treaty and a host of a single label.

        `registrable`: maps a host to its registrable domain by the pinned Public Suffix List (ICANN section only).
        """
        # A single label is a name in a local network. It has no registrable domain. An account costs nothing, and of a TXT record
        # only the operator says that it was there, so neither has a weight.
        if self.host is None or "." not in self.host or self.validated_by is not None:
            return None
        return registrable(self.host)


# A statement names its author in several places, and authors return. Bounded, because foreign text fills it.
@lru_cache(maxsize=4096)
def parse_did(text: str) -> Did:
    """Parse a DID. Raises `Malformed` (`did.*`)."""
    if len(text) > MAX_DID:
        raise Malformed(DidCode.SYNTAX, f"A DID has at most {MAX_DID} characters.")
    scheme, _, rest = text.partition(":")
    method, _, identifier = rest.partition(":")
    if scheme != "did" or not identifier:
        raise Malformed(DidCode.SYNTAX, f"This is not a DID: {text[:80]!r}.")
    if method == "key":
        decode_multikey(identifier)
        return Did(text, method, None, None, ())
    if method not in ("wba", "web", "treaty"):
        raise Malformed(DidCode.METHOD, f"did:{method[:20]} is not supported. Use did:key, did:wba, did:web or did:treaty.")
    authority, *path = identifier.split(":")
    host, port = _authority(authority)
    # A URL parser would resolve "." and ".." and fetch another document.
    if not all(_SEGMENT.fullmatch(segment) and segment not in (".", "..") for segment in path):
        raise Malformed(DidCode.SYNTAX, f"Path segments of a DID must be letters, digits, '.', '_' and '-': {text[:80]!r}.")
    if method == "treaty" and (port is not None or not _is_validated(host, path)):
        raise Malformed(
            DidCode.SYNTAX, f"A did:treaty names a domain, or an account in lower case at {' or '.join(FORGES)}: {text[:80]!r}."
        )
    return Did(text, method, host, port, tuple(path))


def parse_key_id(text: str) -> tuple[Did, str]:
    """Split the DID URL of a key into its DID and fragment. Raises `Malformed` (`did.*`)."""
    did_text, separator, fragment = text.partition("#")
    if not separator or not _FRAGMENT.fullmatch(fragment):
        raise Malformed(DidCode.SYNTAX, f"A key must be named by DID#fragment, not {text[:80]!r}.")
    did = parse_did(did_text)
    # The did:key method defines this fragment; any other would be a second name of the same key.
    if did.method == "key" and fragment != did.text.removeprefix("did:key:"):
        raise Malformed(DidCode.SYNTAX, "The fragment of a did:key's key must be the last part of the DID.")
    return did, fragment


def is_host(text: str) -> bool:
    """Tell whether `text` is a host name of lower-case A-labels, at most 253 characters."""
    return len(text) <= 253 and _HOST.fullmatch(text) is not None


def encode_multikey(public_key: bytes) -> str:
    """Return an Ed25519 public key (32 bytes) as Multikey text, `z6Mk…`."""
    return "z" + _base58_encode(_ED25519 + public_key)


# Each key is decoded once to verify a statement and once to admit it.
@lru_cache(maxsize=4096)
def decode_multikey(text: str) -> bytes:
    """Return the 32 bytes of an Ed25519 Multikey. Raises `Malformed` (`did.multikey`)."""
    if not 40 <= len(text) <= 60 or not text.startswith("z"):
        raise Malformed(DidCode.MULTIKEY, "This is not a base58btc Multikey.")
    data = base58_decode(text[1:])
    # The data begin with 0xed, not with zero, so base58 has no second notation for them.
    if len(data) != 34 or data[:2] != _ED25519:
        raise Malformed(DidCode.MULTIKEY, "This is not an Ed25519 Multikey.")
    return data[2:]


def base58_decode(text: str) -> bytes:
    """Decode base58btc text. The caller bounds its length, because the time is quadratic. Raises `Malformed` (`did.multikey`)."""
    number = 0
    for character in text:
        digit = _BASE58.find(character)
        if digit < 0:
            raise Malformed(DidCode.MULTIKEY, "This is not base58btc.")
        number = number * 58 + digit
    body = number.to_bytes((number.bit_length() + 7) // 8, "big")
    # Base58 writes each leading zero byte as "1".
    return b"\0" * (len(text) - len(text.lstrip("1"))) + body


@lru_cache(maxsize=4096)
def did_key(public_key: bytes) -> str:
    """Return the did:key of an Ed25519 public key."""
    return f"did:key:{encode_multikey(public_key)}"


def did_key_id(public_key: bytes) -> str:
    """Return the DID URL of the one key of a did:key."""
    did = did_key(public_key)
    return f"{did}#{did.removeprefix('did:key:')}"


@lru_cache(maxsize=4096)
def public_key_of(did: Did) -> bytes:
    """Return the public key that a did:key contains."""
    return decode_multikey(did.text.removeprefix("did:key:"))


def authentication_keys(document: Mapping[str, Any], did: Did) -> dict[str, bytes]:
    """Return the Ed25519 keys that a DID document lists for authentication: DID URL → 32 bytes, in the document's order.

    Entries of `authentication` are references into `verificationMethod` or embedded methods (DID Core §5.3.1). Keys of other
    types are skipped.

    `document`: parsed JSON; its `id` must be the DID.

    Raises `Malformed` (`did.document`) when the document belongs to another DID or lists no usable key.
    """
    # A document of another DID proves nothing about this one, even on the right host.
    if document.get("id") != did.text:
        raise Malformed(DidCode.DOCUMENT, f"The document at {did.document_url} has another id than {did.text}.")
    keys = listed_keys(document, did, "authentication")
    if not keys:
        raise Malformed(
            DidCode.DOCUMENT,
            f"The document of {did.text} lists no Ed25519 key of its own under authentication.",
        )
    return keys


def listed_keys(
    document: Mapping[str, Any], did: Did, relationship: str, read: Callable[[Mapping[str, Any]], bytes | None] | None = None
) -> dict[str, bytes]:
    """Return the Ed25519 keys of this DID that its document lists under a verification relationship (DID Core §5.3).

    Entries are read as in `authentication_keys`. The result may be empty. `read`: returns the key of a method, or None, for keys
    of another type.
    """
    read = read or _ed25519
    methods = {_key_id(did, method): method for method in _objects(document.get("verificationMethod"))}
    listed = document.get(relationship)
    keys: dict[str, bytes] = {}
    for entry in listed if isinstance(listed, list) else []:
        method = methods.get(_absolute(did, entry)) if isinstance(entry, str) else entry
        key = read(method) if isinstance(method, dict) else None
        if isinstance(method, dict) and key is not None:
            key_id = _key_id(did, method)
            if parse_key_id(key_id)[0] == did:  # a key of another DID does not act for this one
                keys[key_id] = key
    return keys


def _authority(text: str) -> tuple[str, int | None]:
    host, _, port = text.partition("%3A")
    if not is_host(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
        # URL parsers and `inet_aton` read a host that ends in a number as IPv4: 127.1, 2130706433, 0x7f.1, 0177.0.0.1.
        raise Malformed(DidCode.SYNTAX, f"The host of a DID must be a domain name of lower-case A-labels, not {host[:80]!r}.")
    if port or text.endswith("%3A"):
        if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
            raise Malformed(DidCode.SYNTAX, f"This is not a port: {port[:10]!r}.")
        return host, int(port)
    return host, None


def _is_validated(host: str, path: list[str]) -> bool:
    """Whether it is a name that an operator can validate: an account at a forge, or a domain."""
    if not path:
        return "." in host
    return host in FORGES and len(path) == 1 and _ACCOUNT.fullmatch(path[0]) is not None


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _absolute(did: Did, reference: str) -> str:
    return did.text + reference if reference.startswith("#") else reference


def _key_id(did: Did, method: Mapping[str, Any]) -> str:
    reference = method.get("id")
    return _absolute(did, reference) if isinstance(reference, str) else ""


def _ed25519(method: Mapping[str, Any]) -> bytes | None:
    match method:
        case {"type": "Multikey" | "Ed25519VerificationKey2020", "publicKeyMultibase": str(text)}:
            try:
                return decode_multikey(text)
            except Malformed:
                return None
        case {"publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": str(x)}} if len(x) == 43:
            try:
                key = base64.b64decode(x + "=", altchars=b"-_", validate=True)
            except ValueError:
                return None
            # Re-encoded, because unused bits of the last character may be set: one key, one text.
            return key if len(key) == 32 and base64.urlsafe_b64encode(key).rstrip(b"=").decode() == x else None
    return None


def _base58_encode(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    digits = ""
    while number:
        number, remainder = divmod(number, 58)
        digits = _BASE58[remainder] + digits
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + digits
