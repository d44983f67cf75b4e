"""Decentralised identifiers: did:key, did:wba and did:web, their Ed25519 keys, namespaces and principals.

    did:key:z6Mk…                      the key is the identity (W3C did:key, Ed25519 only)
    did:wba:example.com                https://example.com/.well-known/did.json
    did:wba:example.com:users:alice    https://example.com/users/alice/did.json
    did:wba:example.com%3A8443:a       https://example.com:8443/a/did.json
    did:web:…                          reads like did:wba (the same host, the same document)

Hosts are domain names of lower-case A-labels, and no IP address in any spelling; path segments are `[A-Za-z0-9._-]+`. A DID
URL here is a DID, `#` and a fragment, and names a key. Ed25519 keys are read as Multikey (`z` + base58btc(0xed 0x01 ‖ 32
bytes)) and as JWK (RFC 8037), and written as Multikey.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .errors import Malformed, Refused

MAX_DID = 255
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_SEGMENT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FRAGMENT = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ED25519 = b"\xed\x01"


@dataclass(frozen=True)
class Did:
    """A parsed DID. `host` is None for did:key; `port` is None unless written."""

    text: str
    method: str
    host: str | None
    port: int | None
    path: tuple[str, ...]

    @property
    def namespace(self) -> str:
        """The one namespace this DID owns: its domain, its domain and path, or itself (did:key).

        Raises `Refused` for a DID with a port: whoever can listen on some port of a host need not be its owner.
        """
        if self.host is None:
            return self.text
        if self.port is not None:
            raise Refused("did.no-namespace", f"{self.text} names a port, and so owns no namespace.")
        return ":".join((self.host, *self.path))

    @property
    def document_url(self) -> str:
        """Where the DID document is (did:wba and did:web). Raises `Refused` for did:key, which needs none."""
        if self.host is None:
            raise Refused("did.no-document", "A did:key has no document: the key is the identity.")
        authority = self.host if self.port is None else f"{self.host}:{self.port}"
        return f"https://{authority}/{'/'.join(self.path or ('.well-known',))}/did.json"

    def principal(self, registrable: Callable[[str], str | None]) -> str | None:
        """The registrable domain that stands behind this DID, or None: did:key and single-label hosts have none.

        `registrable` maps a host to its registrable domain under the pinned Public Suffix List (ICANN section only).
        """
        if self.host is None or "." not in self.host:
            return None
        return registrable(self.host)


@lru_cache(maxsize=4096)  # a statement names its author in several places, and authors come back
def parse_did(text: str) -> Did:
    """Parse a DID in its one spelling. Raises `Malformed` (`did.*`)."""
    if len(text) > MAX_DID:
        raise Malformed("did.too-long", f"A DID has at most {MAX_DID} characters.")
    scheme, _, rest = text.partition(":")
    method, _, identifier = rest.partition(":")
    if scheme != "did" or not identifier:
        raise Malformed("did.syntax", f"Not a DID: {text[:80]!r}.")
    if method == "key":
        decode_multikey(identifier)
        return Did(text, method, None, None, ())
    if method not in ("wba", "web"):
        raise Malformed("did.method", f"did:{method[:20]} is not supported; did:key, did:wba and did:web are.")
    authority, *path = identifier.split(":")
    host, port = _authority(authority)
    if not all(_SEGMENT.fullmatch(segment) and segment not in (".", "..") for segment in path):
        raise Malformed("did.path", f"Path segments of a DID are letters, digits, '.', '_' and '-': {text[:80]!r}.")
    return Did(text, method, host, port, tuple(path))


def parse_key_id(text: str) -> tuple[Did, str]:
    """Split the DID URL of a key into its DID and fragment. Raises `Malformed`."""
    did_text, separator, fragment = text.partition("#")
    if not separator or not _FRAGMENT.fullmatch(fragment):
        raise Malformed("did.key-id", f"A key is named by DID#fragment, not {text[:80]!r}.")
    did = parse_did(did_text)
    if did.method == "key" and fragment != did.text.removeprefix("did:key:"):
        raise Malformed("did.key-id", "The one key of a did:key is named by the DID's own last part.")
    return did, fragment


def is_host(text: str) -> bool:
    """Whether `text` is a host name of lower-case A-labels, at most 253 characters."""
    return len(text) <= 253 and _HOST.fullmatch(text) is not None


def encode_multikey(public_key: bytes) -> str:
    """An Ed25519 public key (32 bytes) as Multikey text, `z6Mk…`."""
    return "z" + _base58_encode(_ED25519 + public_key)


@lru_cache(maxsize=4096)  # a statement's keys are looked up to verify it, and once more to admit it
def decode_multikey(text: str) -> bytes:
    """The 32 bytes of an Ed25519 Multikey in its one spelling. Raises `Malformed`."""
    if not 40 <= len(text) <= 60 or not text.startswith("z"):
        raise Malformed("did.multikey", "Not a base58btc Multikey.")
    data = base58_decode(text[1:])
    if len(data) != 34 or data[:2] != _ED25519:  # it begins with no zero, and so has no second spelling
        raise Malformed("did.multikey", "Not an Ed25519 Multikey.")
    return data[2:]


def base58_decode(text: str) -> bytes:
    """The bytes of base58btc text, whose length the caller has bounded. Raises `Malformed`."""
    number = 0
    for character in text:
        digit = _BASE58.find(character)
        if digit < 0:
            raise Malformed("did.multikey", "Not base58btc.")
        number = number * 58 + digit
    body = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return b"\0" * (len(text) - len(text.lstrip("1"))) + body


@lru_cache(maxsize=4096)
def did_key(public_key: bytes) -> str:
    """The did:key of an Ed25519 public key."""
    return f"did:key:{encode_multikey(public_key)}"


def did_key_id(public_key: bytes) -> str:
    """The DID URL of the one key of a did:key."""
    did = did_key(public_key)
    return f"{did}#{did.removeprefix('did:key:')}"


@lru_cache(maxsize=4096)
def public_key_of(did: Did) -> bytes:
    """The public key that a did:key is."""
    return decode_multikey(did.text.removeprefix("did:key:"))


def authentication_keys(document: Mapping[str, Any], did: Did) -> dict[str, bytes]:
    """The Ed25519 keys that a DID document lists for authentication: DID URL → 32 bytes, in the document's order.

    `document`: parsed JSON whose `id` must be the DID. Entries of `authentication` are references into `verificationMethod` or
    methods written in place (DID Core §5.3.1); keys of other kinds are passed over. Raises `Malformed` when the document is not
    this DID's or lists no usable key.
    """
    if document.get("id") != did.text:
        raise Malformed("did.document", f"The document at {did.document_url} is not the one of {did.text}.")
    keys = listed_keys(document, did, "authentication")
    if not keys:
        raise Malformed(
            "did.document",
            f"The document of {did.text} lists no Ed25519 key of its own under authentication.",
        )
    return keys


def listed_keys(document: Mapping[str, Any], did: Did, relationship: str) -> dict[str, bytes]:
    """The Ed25519 keys of this DID's own that its document lists under a verification relationship (DID Core §5.3), as
    `authentication_keys` does; there may be none."""
    methods = {_key_id(did, method): method for method in _objects(document.get("verificationMethod"))}
    listed = document.get(relationship)
    keys: dict[str, bytes] = {}
    for entry in listed if isinstance(listed, list) else []:
        method = methods.get(_absolute(did, entry)) if isinstance(entry, str) else entry
        key = _ed25519(method) if isinstance(method, dict) else None
        if isinstance(method, dict) and key is not None:
            key_id = _key_id(did, method)
            if parse_key_id(key_id)[0] == did:  # a key of somebody else's DID does not speak for this one
                keys[key_id] = key
    return keys


def _authority(text: str) -> tuple[str, int | None]:
    host, _, port = text.partition("%3A")
    if not is_host(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
        # What ends in a number is an IPv4 address to a URL parser and to `inet_aton`: 127.1, 2130706433, 0x7f.1, 0177.0.0.1.
        raise Malformed("did.host", f"The host of a DID is a domain name of lower-case A-labels, not {host[:80]!r}.")
    if port or text.endswith("%3A"):
        if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
            raise Malformed("did.port", f"Not a port: {port[:10]!r}.")
        return host, int(port)
    return host, None


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
            return key if len(key) == 32 and base64.urlsafe_b64encode(key).rstrip(b"=").decode() == x else None
    return None


def _base58_encode(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    digits = ""
    while number:
        number, remainder = divmod(number, 58)
        digits = _BASE58[remainder] + digits
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + digits
