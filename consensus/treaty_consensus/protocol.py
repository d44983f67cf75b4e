"""Parse protocol documents, URIs, versions, topics and cards.

A protocol is a Markdown document, UTF-8, at most 256 KiB. Its hash is the SHA-256 of exactly those bytes. Its URI is its
identity and its location, for example

    https://registry.example/protocols/example.com/product-info/1.0

A topic is a slash path such as `commerce/product-info`. The *card* is a canonical JSON blob beside the document: `{"title",
"summary", "tags", "licence"}`.

Specification: `docs/specification/protocols.md`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from . import canonical
from .codes import CardCode, DocumentCode, ProtocolCode, StatementCode
from .did import Did, is_host, parse_did
from .errors import Malformed, TooLarge
from .reverse_dns import owns

# Agents give a document to a language model in one prompt.
MAX_DOCUMENT = 256 * 1024
PART_BEGIN, PART_END = "<!-- treaty document -->", "<!-- end of treaty document -->"
"""The lines of a document around the part that its manifest says."""
# Catalogue pages load many cards at once.
MAX_CARD = 8 * 1024
# The same bound as `kinds.Text`, so that every URI fits a statement field.
MAX_URI = 512

_MAJOR = re.compile(r"(?:[0-9]+!)?[0-9]+")  # of a version in normal form: its epoch and its first number
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_TOPIC = re.compile(rf"{_NAME.pattern}(?:/{_NAME.pattern}){{0,3}}")
# The lookahead prevents a host such as `example.com` from matching `example.com@evil.example`.
_ALIAS = re.compile(r"https?://([a-z0-9.-]+)(?=[/?#]|\Z)", re.IGNORECASE)
_GITHUB = re.compile(r"https://github\.com/([a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])?)(?=[/?#]|\Z)", re.IGNORECASE)
_PRINTABLE = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"([a-z0-9.-]+)(?::([1-9][0-9]{0,4}))?")


@dataclass(frozen=True)
class ProtocolUri:
    """Hold the parts of a protocol's URI. `str()` returns the URI."""

    origin: str
    namespace: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"https://{self.origin}{self.path}"

    @property
    def path(self) -> str:
        """Return the path below the registry's root, with its leading slash."""
        return f"/protocols/{self.namespace}/{self.name}/{self.version}"

    @property
    def label(self) -> str:
        """Return the name for people, such as `acme.example/hotel-booking 1.0`. The registry is left out.

        A title is chosen by the publisher: only the namespace tells a protocol from its copy.
        """
        return f"{self.namespace}/{self.name} {self.version}"

    def continues(self, base: ProtocolUri) -> bool:
        """Tell whether a protocol based on `base` is declared compatible with it: one name, and one major version.

        Both are then in one namespace, so the publisher of `base`, or who was granted its namespace, published both.
        """
        return self._major == base._major

    @property
    def _major(self) -> ProtocolUri:
        major = _MAJOR.match(self.version)
        return replace(self, version=major[0] if major else self.version)


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hold the text that a catalogue shows for a protocol. It is free text, in a blob that an operator can withdraw."""

    title: str
    summary: str
    tags: tuple[str, ...] = ()
    licence: str = ""

    def encode(self) -> bytes:
        """Return the canonical bytes. Raises `Malformed` (`card.*`) when a field exceeds its cap."""
        if not self.title or len(self.title) > 120 or len(self.summary) > 500 or len(self.licence) > 64:
            raise Malformed(
                CardCode.FORM, "A card needs a title of 1–120 characters, a summary of at most 500, a licence of at most 64."
            )
        if len(self.tags) > 16 or not all(is_name(tag) for tag in self.tags):
            raise Malformed(CardCode.FORM, "A card has at most 16 tags of lower-case letters, digits and '-'.")
        return canonical.dumps(msgspec.to_builtins(self))


def parse_card(data: bytes) -> Card:
    """Parse a card blob strictly. Raises `TooLarge` or `Malformed` (`card.*`, `canonical.*`)."""
    value = canonical.loads(data, limit=MAX_CARD, name="card")
    try:
        card = msgspec.convert(value, Card)
    except msgspec.ValidationError as error:
        raise Malformed(CardCode.FORM, f"This is not a card: {error}.") from error
    if card.encode() != data:
        raise Malformed(CardCode.FORM, "The card contains an empty field. Leave empty fields out.")
    return card


def check_document(data: bytes) -> str:
    """Check a protocol document and return its hash.

    The document is UTF-8 text, not empty, without byte-order mark and NUL.

    Raises `TooLarge` or `Malformed` (`document.*`).
    """
    if len(data) > MAX_DOCUMENT:
        raise TooLarge(DocumentCode.TEXT, f"A protocol document has at most {MAX_DOCUMENT} bytes.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(DocumentCode.TEXT, "A protocol document must be UTF-8 text.") from error
    # A byte-order mark or NUL is invisible, and would give one visible text two hashes.
    if not text.strip() or text.startswith("\ufeff") or "\0" in text:
        raise Malformed(DocumentCode.TEXT, "A protocol document must be text, not empty, without byte-order mark and NUL.")
    return canonical.hex_digest(data)


def agora_digest(data: bytes) -> bytes:
    """Return Agora's name for a document: SHA-1 of its bytes. It is a name only and never proves integrity."""
    return hashlib.sha1(data, usedforsecurity=False).digest()


def is_name(text: str) -> bool:
    """Tell whether `text` is lower-case letters and digits joined by '-', 1 to 64 characters."""
    return _NAME.fullmatch(text) is not None


def is_topic(text: str) -> bool:
    """Tell whether `text` is a topic: one to four names joined by slashes."""
    return len(text) <= 160 and _TOPIC.fullmatch(text) is not None


def check_topic(topic: str) -> None:
    """Check the name of a topic. Raises `Malformed` (`statement.form`)."""
    if not is_topic(topic):
        raise Malformed(
            StatementCode.FORM,
            "A topic must be one to four lower-case names joined by '/', such as commerce/product-info.",
        )


def is_origin(text: str) -> bool:
    """Whether `text` is a log's origin: a host of lower-case A-labels, with a port where it is not the default."""
    match = _ORIGIN.fullmatch(text)
    return match is not None and is_host(match[1]) and (match[2] is None or int(match[2]) <= 65535)


def check_aliases(aliases: Sequence[str]) -> None:
    """Check the foreign names of a protocol. Raises `Malformed` (`statement.form`)."""
    if len(set(aliases)) != len(aliases) or not all(map(_PRINTABLE.fullmatch, aliases)):
        raise Malformed(StatementCode.FORM, "Aliases must be distinct URIs without spaces.")


def is_verified_alias(alias: str, publisher: Did) -> bool:
    """Tell whether a claim to a foreign name is verified: the publisher's own domain is the host of the URI, or owns the reverse
    DNS name, or is that of the GitHub account whose repository the URI names.

    A validated account owns what its name at GitHub's pages would own, below github.com. Another publisher with a port or a path
    does not own the domain.
    """
    if publisher.validated_by == "oidc":
        account = publisher.path[0]
        repository = _GITHUB.match(alias)
        return repository[1].lower() == account if repository else owns(f"{account}.github.io", alias)
    if publisher.host is None or publisher.port is not None or publisher.path:
        return False
    match = _ALIAS.match(alias)
    if match is None:
        return owns(publisher.host, alias)
    if publisher.host == match[1].lower():
        return True
    # GitHub serves OWNER.github.io for this account alone. Names of accounts have no case.
    repository = _GITHUB.match(alias)
    return repository is not None and publisher.host == f"{repository[1].lower()}.github.io"


def parse_version(text: str) -> str:
    """Return `text` if it is a PEP 440 version in normal form, at most 64 characters, without a local part.

    Raises `Malformed` (`protocol.name`).
    """
    from packaging.version import InvalidVersion, Version  # here: most imports of this module read no version

    try:
        version = Version(text) if len(text) <= 64 else None
    except InvalidVersion as error:
        raise Malformed(ProtocolCode.NAME, f"{text!r} is not a PEP 440 version, such as 1.0 or 2.1rc1.") from error
    # A local part names a private build, and equal versions must have one spelling, because a version is immutable.
    if version is None or str(version) != text or version.local is not None:
        raise Malformed(ProtocolCode.NAME, f"{text[:64]!r} is not in normal form: write {str(version)[:64]!r}.")
    return text


def parse_namespace(text: str) -> str:
    """Return `text` if it is a namespace: a host, a host and path joined by ':', or a did:key. Raises `Malformed`."""
    did = parse_did(text if text.startswith("did:") else f"did:wba:{text}")
    if did.port is not None or did.namespace != text:
        raise Malformed(ProtocolCode.NAME, f"A namespace must be a domain, a domain and path, or a did:key, not {text[:80]!r}.")
    return text


def owners_of(namespace: str) -> tuple[str, ...]:
    """Return the DIDs whose namespace this is. All methods of a domain have one, so the identity of each may be the owner's."""
    return (
        (namespace,)
        if namespace.startswith("did:")
        else tuple(f"did:{method}:{namespace}" for method in ("wba", "web", "treaty"))
    )


def parse_protocol_uri(text: str) -> ProtocolUri:
    """Parse a protocol URI. Raises `Malformed` (`protocol.name`, `did.*`)."""
    scheme, _, rest = text.partition("://")
    parts = rest.split("/")
    # No query and no escapes: a URI is a key of facts, so it has one spelling.
    if len(text) > MAX_URI or scheme != "https" or len(parts) != 5 or parts[1] != "protocols" or not is_origin(parts[0]):
        raise Malformed(
            ProtocolCode.NAME,
            f"This is not a protocol URI (https://HOST/protocols/NAMESPACE/NAME/VERSION): {text[:120]!r}.",
        )
    if not is_name(parts[3]):
        raise Malformed(
            ProtocolCode.NAME,
            f"A protocol's name must be lower-case letters, digits and '-', not {parts[3][:64]!r}.",
        )
    return ProtocolUri(parts[0], parse_namespace(parts[2]), parts[3], parse_version(parts[4]))
