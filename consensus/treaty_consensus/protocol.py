"""Protocol documents and their names.

A protocol is a Markdown document, UTF-8, at most 256 KiB; its hash is the SHA-256 of exactly those bytes. Its URI is its
identity and where it is:

    https://HOST/protocols/NAMESPACE/NAME/VERSION

HOST is the log's origin, NAMESPACE the publisher's (see `did`), NAME lower-case words joined by `-`, VERSION a PEP 440 version in
its normal form (equal versions are one version) without a local part. A topic is a slash path such as `commerce/product-info`.

The *card* is a canonical JSON blob beside the document: `{"title", "summary", "tags", "licence"}`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import msgspec
from packaging.version import InvalidVersion, Version

from . import canonical
from .did import Did, is_host, parse_did
from .errors import Malformed, TooLarge

MAX_DOCUMENT = 256 * 1024
MAX_CARD = 8 * 1024
MAX_URI = 512

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_TOPIC = re.compile(rf"{_NAME.pattern}(?:/{_NAME.pattern}){{0,3}}")
_ALIAS = re.compile(r"https?://([a-z0-9.-]+)(?=[/?#]|\Z)", re.IGNORECASE)
_ORIGIN = re.compile(r"([a-z0-9.-]+)(?::([1-9][0-9]{0,4}))?")


@dataclass(frozen=True)
class ProtocolUri:
    """The parts of a protocol's URI. `str()` is the URI."""

    origin: str
    namespace: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"https://{self.origin}{self.path}"

    @property
    def path(self) -> str:
        """The path below the registry's root, beginning with a slash."""
        return f"/protocols/{self.namespace}/{self.name}/{self.version}"


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a catalogue shows of a protocol; free text, in a blob that an operator can withdraw."""

    title: str
    summary: str
    tags: tuple[str, ...] = ()
    licence: str = ""

    def encode(self) -> bytes:
        """The canonical bytes. Raises `Malformed` when a field is over its cap."""
        if not self.title or len(self.title) > 120 or len(self.summary) > 500 or len(self.licence) > 64:
            raise Malformed("card.field", "A card has a title of 1–120 characters, a summary of ≤ 500, a licence of ≤ 64.")
        if len(self.tags) > 16 or not all(is_name(tag) for tag in self.tags):
            raise Malformed("card.tags", "A card has at most 16 tags of lower-case letters, digits and '-'.")
        return canonical.dumps(msgspec.to_builtins(self))


def parse_card(data: bytes) -> Card:
    """Parse a card blob strictly. Raises `TooLarge` or `Malformed`."""
    value = canonical.loads(data, limit=MAX_CARD, what="card")
    try:
        card = msgspec.convert(value, Card)
    except msgspec.ValidationError as error:
        raise Malformed("card.field", f"Not a card: {error}.") from error
    if card.encode() != data:
        raise Malformed("card.form", "A card leaves empty fields out.")
    return card


def check_document(data: bytes) -> str:
    """The hash of a protocol document, after its caps: UTF-8, no byte-order mark, not empty. Raises `TooLarge` or `Malformed`."""
    if len(data) > MAX_DOCUMENT:
        raise TooLarge("document.too-large", f"A protocol document has at most {MAX_DOCUMENT} bytes.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed("document.utf8", "A protocol document is UTF-8 text.") from error
    if not text.strip() or text.startswith("\ufeff") or "\0" in text:
        raise Malformed("document.text", "A protocol document is text, not empty, with no byte-order mark and no NUL.")
    return canonical.hex_digest(data)


def agora_digest(data: bytes) -> bytes:
    """Agora's name for a document: SHA-1 of its bytes. A name only, never an integrity anchor."""
    return hashlib.sha1(data, usedforsecurity=False).digest()


def is_name(text: str) -> bool:
    """Whether `text` is lower-case letters and digits joined by '-', 1 to 64 characters."""
    return _NAME.fullmatch(text) is not None


def is_topic(text: str) -> bool:
    """Whether `text` is a topic: one to four names joined by slashes."""
    return len(text) <= 160 and _TOPIC.fullmatch(text) is not None


def is_origin(text: str) -> bool:
    """Whether `text` is a log's origin: a host of lower-case A-labels, with a port where it is not the default."""
    match = _ORIGIN.fullmatch(text)
    return match is not None and is_host(match[1]) and (match[2] is None or int(match[2]) <= 65535)


def is_verified_alias(alias: str, publisher: Did) -> bool:
    """Whether a claim to a foreign URI holds: its host is the publisher's own domain, not that of a path or port."""
    match = _ALIAS.match(alias)
    return match is not None and publisher.host == match[1].lower() and publisher.port is None and not publisher.path


def parse_version(text: str) -> str:
    """Check that `text` is a PEP 440 version in normal form, at most 64 characters, without a local part. Raises `Malformed`."""
    try:
        version = Version(text) if len(text) <= 64 else None
    except InvalidVersion as error:
        raise Malformed("protocol.version", f"{text!r} is not a PEP 440 version, such as 1.0 or 2.1rc1.") from error
    if version is None or str(version) != text or version.local is not None:
        raise Malformed("protocol.version", f"{text[:64]!r} is not in normal form: write {str(version)[:64]!r}.")
    return text


def parse_namespace(text: str) -> str:
    """Check a namespace: a host, a host and path joined by ':', or a did:key. Raises `Malformed`."""
    did = parse_did(text if text.startswith("did:") else f"did:wba:{text}")
    if did.port is not None or did.namespace != text:
        raise Malformed("protocol.namespace", f"A namespace is a domain, a domain and path, or a did:key, not {text[:80]!r}.")
    return text


def parse_protocol_uri(text: str) -> ProtocolUri:
    """Parse a protocol URI in its one spelling. Raises `Malformed` (`protocol.uri`, `protocol.version`, `did.*`)."""
    scheme, _, rest = text.partition("://")
    parts = rest.split("/")
    if len(text) > MAX_URI or scheme != "https" or len(parts) != 5 or parts[1] != "protocols" or not is_origin(parts[0]):
        raise Malformed(
            "protocol.uri",
            f"Not a protocol URI (https://HOST/protocols/NAMESPACE/NAME/VERSION): {text[:120]!r}.",
        )
    if not is_name(parts[3]):
        raise Malformed(
            "protocol.name",
            f"A protocol's name is lower-case letters, digits and '-', not {parts[3][:64]!r}.",
        )
    return ProtocolUri(parts[0], parse_namespace(parts[2]), parts[3], parse_version(parts[4]))
