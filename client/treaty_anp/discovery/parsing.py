"""Read the online documents of other agents: pages, agent descriptions, A2A cards and the services of DID documents.

docs/specification/discovery.md, section 3, has the rules. For example, from the interface `{"type": "StructuredInterface",
"protocol": "https://registry.example/protocols/example.com/product-info/1.1", "digest": "9c1e…"}` the URI and the digest are
read, and other members are skipped.

The content is not trusted. A name and a DID are claims, an address is a place to ask, and a URI is a candidate. The Hello, the
policy and the ten steps of verification decide about them later. An address must have a host name of at least two labels, so that
a stranger's description cannot send this agent to an IP address or a host of its own network.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from urllib.parse import urljoin, urlsplit

import msgspec

from treaty_consensus.canonical import parse_digest
from treaty_consensus.did import Did, is_host, parse_did
from treaty_consensus.errors import Malformed, NotFound, TooLarge, TreatyError
from treaty_io.codes import DiscoveryCode

from .interfaces import RemoteInterface, read_interfaces

PROFILE = "anp-meta/1.0"
"""The Hello profile's name."""
DESCRIPTIONS_PATH = "/.well-known/agent-descriptions"
CARD_PATH = "/.well-known/agent-card.json"
SERVICE_TYPE = "AgentDescription"

MAX_DOCUMENT = 64 * 1024
# An honest document of this size has fewer entries. Lists of tiny entries would only cost time.
MAX_ENTRIES = 256
MAX_PROTOCOLS = 64
MAX_ADDRESSES = 8
MAX_TEXT = 200

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")
_ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")
_VISIBLE = re.compile(r"[!-~]{1,512}")
_SECURE = ("wss", "https")
_SCHEMES = (*_SECURE, "ws", "http")


@dataclass(frozen=True)
class SupportedProtocol:
    """A protocol that a document lists. `digest`: the claimed SHA-256 of the protocol's document. `role`: the agent's role in it,
    or "" if it is missing or malformed."""

    uri: str
    digest: str | None = None
    version: str = ""
    role: str = ""


@dataclass(frozen=True)
class AgentDescription:
    """An agent's description. `url`: its source. `did`: the claimed DID, or "" if it is missing or malformed."""

    url: str
    name: str
    did: str
    description: str
    addresses: tuple[str, ...]
    protocols: tuple[SupportedProtocol, ...]
    interfaces: tuple[RemoteInterface, ...] = ()

    @property
    def address(self) -> str:
        """Return the address to try first. Raises `NotFound` (`discovery.nothing`)."""
        if not self.addresses:
            raise NotFound(
                DiscoveryCode.NOTHING,
                f"{self.url} has no address for {PROFILE}.",
                fix=f"Call its methods: treaty call {self.url}"
                if self.interfaces
                else "Ask the agent's operator for its ws: or https: address.",
            )
        return self.addresses[0]

    @property
    def uris(self) -> tuple[str, ...]:
        """Return the URIs of the agent's protocols, in its order."""
        return tuple(protocol.uri for protocol in self.protocols)


@dataclass(frozen=True)
class CollectionPage:
    """A page of descriptions. `items`: their absolute URLs. `next`: the URL of the following page, or None."""

    items: tuple[str, ...]
    next: str | None


_Object: TypeAlias = dict[str, Any]


def parse(data: bytes, url: str) -> CollectionPage | AgentDescription:
    """Parse the document found at `url`, of any of these kinds. Raises `TooLarge` or `Malformed` (`discovery.*`)."""
    match _object(data, url):
        case {"items": list(items)} as page:
            return _page(items, page.get("next"), url)
        case {"supportedInterfaces": list()} | {"capabilities": dict(), "skills": list()} as card:
            return _card(card, url)
        case {"interfaces": list()} | {"type": "AgentDescription"} as description:
            return _description(description, url)
    raise Malformed(
        DiscoveryCode.DOCUMENT,
        f"The document at {url} is no page of agents, no agent description and no agent card.",
        fix="Check the URL.",
    )


def parse_service(data: bytes, did: Did) -> tuple[str, ...]:
    """Return the URLs of the agent descriptions that a DID's document names. Raises `TooLarge` or `Malformed`."""
    document = _object(data, did.text)
    if document.get("id") != did.text:
        raise Malformed(DiscoveryCode.DOCUMENT, f"The document at {did.document_url} is not the one of {did.text}.")
    services = [service for service in _objects(document.get("service"), did.text) if service.get("type") == SERVICE_TYPE]
    locations = [_location(service.get("serviceEndpoint"), did.document_url) for service in services]
    return tuple(dict.fromkeys(url for url in locations if url is not None))


def is_address(text: str) -> bool:
    """Return whether `text` is an absolute URL of wss, https, ws or http, without user or fragment."""
    return _host_of(text) is not None


def _object(data: bytes, url: str) -> _Object:
    if len(data) > MAX_DOCUMENT:
        raise TooLarge(DiscoveryCode.DOCUMENT, f"The document at {url} has more than {MAX_DOCUMENT} bytes.")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(DiscoveryCode.DOCUMENT, f"The document at {url} is not JSON.") from error
    if not isinstance(value, dict):
        raise Malformed(DiscoveryCode.DOCUMENT, f"The document at {url} is not a JSON object.")
    return value


def _page(items: list[Any], following: object, url: str) -> CollectionPage:
    locations = [_location(item.get("@id"), url) for item in _objects(items, url)]
    return CollectionPage(tuple(dict.fromkeys(at for at in locations if at is not None)), _location(following, url))


def _description(value: _Object, url: str) -> AgentDescription:
    interfaces = list(_objects(value.get("interfaces"), url))
    agent = _agent(value, url, list(_described(interfaces)), list(_artifacts(interfaces, url)), _meta_addresses(interfaces))
    callable_ones = read_interfaces(
        interfaces,
        location=lambda reference: _location(reference, url),
        line=lambda text: _line(text, MAX_TEXT),
        here=url,
        servers=value.get("servers"),
    )
    return replace(agent, interfaces=callable_ones)


def _card(value: _Object, url: str) -> AgentDescription:
    capabilities = value.get("capabilities")
    extensions = capabilities.get("extensions") if isinstance(capabilities, dict) else None
    listed = []
    for extension in _objects(extensions, url):
        params = extension.get("params")
        params = params if isinstance(params, dict) else {}
        listed.append((extension.get("uri"), params.get("digest"), params.get("version"), params.get("role")))
    interfaces = _objects(value.get("supportedInterfaces"), url)
    addresses = [interface.get("url") for interface in interfaces if interface.get("protocolBinding") == PROFILE]
    return _agent(value, url, listed, [], addresses)


_Listed: TypeAlias = tuple[object, object, object, object]


def _agent(value: _Object, url: str, listed: list[_Listed], more: list[_Listed], addresses: list[object]) -> AgentDescription:
    """Build a description. `listed` and `more`: unchecked URI, digest, version and role. The first entry of a repeated URI
    counts."""
    protocols: dict[str, SupportedProtocol] = {}
    for uri, digest, version, role in (*listed, *more):
        if isinstance(uri, str) and len(uri) <= 512 and _URI.fullmatch(uri) and uri not in protocols:
            protocols[uri] = SupportedProtocol(uri, _digest(digest), _line(version, 64), _role(role))
    if len(protocols) > MAX_PROTOCOLS:
        raise TooLarge(DiscoveryCode.DOCUMENT, f"The agent at {url} lists more than {MAX_PROTOCOLS} protocols.")
    reachable = dict.fromkeys(address for address in addresses if isinstance(address, str) and _is_public(address))
    ordered = sorted(reachable, key=lambda address: urlsplit(address).scheme not in _SECURE)[:MAX_ADDRESSES]
    did = _did(value.get("did") or value.get("identifier"))
    name = _line(value.get("name"), MAX_TEXT) or did or url
    return AgentDescription(url, name, did, _line(value.get("description"), MAX_TEXT), tuple(ordered), tuple(protocols.values()))


def _described(interfaces: list[_Object]) -> Iterator[_Listed]:
    for interface in interfaces:
        if interface.get("type") == "StructuredInterface":
            yield interface.get("protocol"), interface.get("digest"), interface.get("version"), interface.get("role")


def _artifacts(interfaces: list[_Object], url: str) -> Iterator[_Listed]:
    for interface in interfaces:
        if interface.get("type") == "MetaProtocolInterface":
            for artifact in _objects(interface.get("protocolArtifacts"), url):
                yield artifact.get("protocol_uri"), artifact.get("digest"), artifact.get("version"), artifact.get("role")


def _meta_addresses(interfaces: list[_Object]) -> list[object]:
    addresses = []
    for interface in interfaces:
        match interface:
            case {"type": "MetaProtocolInterface", "profile": str(profile), "url": at} if profile == PROFILE:
                addresses.append(at)
            case {"type": "StructuredInterface", "protocol": str(protocol), "url": str(at)} if _URI.fullmatch(protocol):
                addresses += [at] if at.startswith(("ws:", "wss:")) else []
    return addresses


def _objects(value: object, url: str) -> list[_Object]:
    items = value if isinstance(value, list) else []
    if len(items) > MAX_ENTRIES:
        raise TooLarge(DiscoveryCode.DOCUMENT, f"A list at {url} has more than {MAX_ENTRIES} entries.")
    return [item for item in items if isinstance(item, dict)]


def _location(value: object, base: str) -> str | None:
    """Return the https URL of a reference, which may be relative to the document's own; None if there is none."""
    if not isinstance(value, str) or not _VISIBLE.fullmatch(value):
        return None
    try:
        url = urljoin(base, value)
        return url if urlsplit(url).scheme == "https" else None
    except ValueError:
        return None


def _host_of(text: str) -> str | None:
    if not _VISIBLE.fullmatch(text):
        return None
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    plain = parts.username is None and not parts.fragment
    return parts.hostname if plain and parts.scheme in _SCHEMES else None


def _is_public(text: str) -> bool:
    """Return whether an address has a host name that can be in the public DNS."""
    host = _host_of(text)
    if host is None or not is_host(host):
        return False
    *rest, last = host.split(".")
    return bool(rest) and last[0].isalpha() and last != "localhost"  # a last label such as `0x1` makes it an IPv4 address


def _did(value: object) -> str:
    try:
        return parse_did(value).text if isinstance(value, str) else ""
    except TreatyError:
        return ""


def _digest(value: object) -> str | None:
    """Return a SHA-256 in hexadecimal, from hexadecimal digits or from ANP-06's `sha-256:` and base64url; else None."""
    if not isinstance(value, str) or len(value) > 80:
        return None
    try:
        if value.startswith("sha-256:"):
            encoded = value.removeprefix("sha-256:").rstrip("=")
            raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
            return raw.hex() if len(raw) == 32 else None
        return parse_digest(value.removeprefix("sha256:"))
    except (Malformed, binascii.Error, ValueError):
        return None


def _role(value: object) -> str:
    return value if isinstance(value, str) and _ROLE.fullmatch(value) else ""


def _line(value: object, limit: int) -> str:
    """Return foreign text as one printable line."""
    text = value[:limit] if isinstance(value, str) else ""
    return "".join(character if character.isprintable() else " " for character in text).strip()
