"""Write the online documents that describe an agent and its protocols, as canonical JSON.

docs/specification/discovery.md, section 1, specifies all of them: the entrance (ANP-08 v1.2), the agent description (ANP-07 v1.1
and ANP-06 v1.2), the agent card (A2A 1.0), the AI Catalog (ARD 0.9) and the service of the DID document (DID Core §5.4). For
example, the service is `{"id": "did:wba:shop.example#ad", "type": "AgentDescription", "serviceEndpoint":
"https://shop.example/ad.json"}`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from treaty_anp.discovery.parsing import (
    CARD_PATH,
    DESCRIPTIONS_PATH,
    MAX_ADDRESSES,
    MAX_DOCUMENT,
    MAX_PROTOCOLS,
    PROFILE,
    SERVICE_TYPE,
    is_address,
)
from treaty_consensus import canonical
from treaty_consensus.canonical import hex_digest, parse_digest
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri
from treaty_io.codes import AgentCode, DiscoveryCode
from treaty_io.identity import Identity, ai_catalog

from ..transport.application import Door, StaticDocument

CACHE_CONTROL = "public, max-age=60"
"""For all documents but that of a DID, which caches must revalidate: a removed key must not live longer in them."""
JSON = "application/json"
DID_JSON = "application/did+json"
CARD_TYPE = "application/a2a-agent-card+json"

_CONTEXT = {
    "@vocab": "https://schema.org/",
    "did": "https://w3id.org/did#",
    "ad": "https://agent-network-protocol.com/ad#",
}
_SECURITY = "Each HTTP request is signed by the key of a DID (RFC 9421), or refused with 401 and Accept-Signature."
_BINDINGS = {"ws": "websocket", "wss": "websocket", "http": "http", "https": "http"}


@dataclass(frozen=True)
class OfferedProtocol:
    """A protocol that the agent provides.

    `digest`: the SHA-256 of its document. `title`: for people; default the URI's name and version. `operations`: those that
    others may call. `role`: the agent's role in it. Raises `Malformed`.
    """

    uri: str
    digest: str
    topic: str = ""
    title: str = ""
    operations: tuple[str, ...] = ()
    role: str = ""

    def __post_init__(self) -> None:
        parse_protocol_uri(self.uri)
        parse_digest(self.digest)

    @property
    def parsed(self) -> ProtocolUri:
        """Return the parts of the URI."""
        return parse_protocol_uri(self.uri)

    @property
    def text(self) -> str:
        """Return the title for people."""
        return self.title or f"{self.parsed.name} {self.parsed.version}"


@dataclass(frozen=True)
class AgentFacts:
    """The public facts about an agent.

    `addresses`: its public `wss:`, `ws:`, `https:` or `http:` URLs for Hellos, best first. `name`: default the DID. `base_url`:
    the URL of its documents without a path; default the host of the first address. `doors`: those that the documents name.
    Raises `Malformed` (`agent.settings`, `did.*`).
    """

    did: str
    addresses: tuple[str, ...]
    protocols: tuple[OfferedProtocol, ...] = ()
    name: str = ""
    description: str = ""
    base_url: str = ""
    doors: tuple[Door, ...] = ()

    def __post_init__(self) -> None:
        parse_did(self.did)
        if not 1 <= len(self.addresses) <= MAX_ADDRESSES or not all(map(is_address, self.addresses)):
            raise _bad_facts(f"an agent has 1 to {MAX_ADDRESSES} addresses, ws:, wss:, http: or https: URLs")
        if len(self.protocols) > MAX_PROTOCOLS:
            raise _bad_facts(f"it lists at most {MAX_PROTOCOLS} protocols")
        base = urlsplit(self.base_url)
        if self.base_url and (not is_address(self.base_url) or base.scheme not in ("http", "https") or base.path or base.query):
            raise _bad_facts("the base URL is http(s)://HOST[:PORT]")

    @property
    def base(self) -> str:
        """Return the URL to which the documents' paths are appended."""
        first = urlsplit(self.addresses[0])
        secure = first.scheme in ("wss", "https")
        return self.base_url or f"{'https' if secure else 'http'}://{first.netloc}"

    @property
    def label(self) -> str:
        """Return the name for people."""
        return self.name or self.did

    @property
    def about(self) -> str:
        """Return the description for people. It is never empty, because other implementations require one."""
        return self.description or f"An agent that agrees on protocols by {PROFILE}."


def description_path(did: str) -> str:
    """Return the path of an agent's description: beside its DID document, or at the root."""
    return "/".join(("", *parse_did(did).path, "ad.json"))


def description_url(facts: AgentFacts) -> str:
    """Return the URL of the agent's description."""
    return facts.base + description_path(facts.did)


def service_entry(did: str, url: str) -> dict[str, str]:
    """Return the service of a DID document that leads to the agent description at `url`."""
    return {"id": f"{did}#ad", "type": SERVICE_TYPE, "serviceEndpoint": url}


def describe(
    facts: AgentFacts, did_document: Mapping[str, object] | None = None, *, signer: Identity | None = None
) -> dict[str, StaticDocument]:
    """Return the documents of an agent by path, to be served on its host.

    `did_document`: served at the path of the DID, if given. `signer`: signs the agent card, and its entry in the AI Catalog.

    Raises `TooLarge` (`discovery.document`) for a document that readers would refuse, `Malformed` for values that are not JSON,
    and `Refused` if `did_document` is given for a did:key.
    """
    url = description_url(facts)
    page = collection_page(facts.base + DESCRIPTIONS_PATH, [(facts.label, url)])
    card = agent_card(facts)
    card_document = _document(card if signer is None else signed_card(card, signer))
    documents = {
        DESCRIPTIONS_PATH: _document(page),
        description_path(facts.did): _document(agent_description(facts)),
        CARD_PATH: card_document,
        ai_catalog.CATALOG_PATH: StaticDocument(
            ai_catalog.CATALOG_TYPE, _encoded(agent_catalog(facts, hex_digest(card_document.body), signer)), CACHE_CONTROL
        ),
    }
    if did_document is not None:
        path = urlsplit(parse_did(facts.did).document_url).path
        documents[path] = StaticDocument(DID_JSON, _encoded(did_document))
    return documents


def collection_page(url: str, items: Sequence[tuple[str, str]], next_url: str = "") -> dict[str, object]:
    """Return a page of the agents of a host. `items`: name and URL of each description. `next_url`: the following page."""
    page: dict[str, object] = {
        "@context": _CONTEXT,
        "@type": "CollectionPage",
        "url": url,
        "items": [{"@type": "ad:AgentDescription", "name": name, "@id": at} for name, at in items],
    }
    return {**page, "next": next_url} if next_url else page


def agent_description(facts: AgentFacts) -> dict[str, object]:
    """Return the agent description, `ad.json`."""
    return {
        "protocolType": "ANP",
        "protocolVersion": "1.0.0",
        "type": "AgentDescription",
        "url": description_url(facts),
        "name": facts.label,
        "did": facts.did,
        "description": facts.about,
        "securityDefinitions": {"didwba_sc": {"scheme": "didwba", "in": "header", "name": "Authorization"}},
        "security": "didwba_sc",
        "interfaces": [*map(_structured, facts.protocols), *_meta_protocol(facts), *_doors(facts)],
    }


def agent_card(facts: AgentFacts) -> dict[str, object]:
    """Return the A2A agent card, without a signature. It names the security scheme of its HTTP addresses, if there are any."""
    card: dict[str, object] = {
        "name": facts.label,
        "description": facts.about,
        "version": "1.0",
        "supportedInterfaces": [
            *({"url": address, "protocolBinding": PROFILE, "protocolVersion": "1.0"} for address in facts.addresses),
            *({"url": facts.base + door.path, **door.card} for door in facts.doors if door.card),
        ],
        "capabilities": {"extensions": list(map(_extension, facts.protocols)), **({"streaming": True} if facts.doors else {})},
        "defaultInputModes": [JSON],
        "defaultOutputModes": [JSON],
        "skills": [skill for protocol in facts.protocols for skill in _skills(protocol)],
    }
    if any(_BINDINGS[urlsplit(address).scheme] == "http" for address in facts.addresses):
        card["securitySchemes"] = {"didwba": {"httpAuthSecurityScheme": {"scheme": "DIDWba", "description": _SECURITY}}}
        # A requirement is one for all interfaces, and a door has none.
        if not facts.doors:
            card["securityRequirements"] = [{"schemes": {"didwba": {}}}]
    return card


def agent_catalog(facts: AgentFacts, card_digest: str, signer: Identity | None = None) -> dict[str, object]:
    """Return the AI Catalog of an agent: one entry, bound to the card with this SHA-256 and to the protocols' documents."""
    did = parse_did(facts.did)
    # A did:key has no host, so the agent is named by that of its documents.
    host = did.host or urlsplit(facts.base).hostname or ""
    entry: dict[str, object] = {
        "identifier": ai_catalog.air_name(host, *did.path, "agent"),
        "displayName": facts.label,
        "type": CARD_TYPE,
        "url": facts.base + CARD_PATH,
        "description": facts.about,
        "tags": sorted({protocol.topic for protocol in facts.protocols if protocol.topic}),
        "capabilities": sorted({operation for protocol in facts.protocols for operation in protocol.operations}),
        "trustManifest": ai_catalog.trust_manifest(
            facts.did,
            signer,
            [
                ai_catalog.attestation("treaty-protocol", protocol.uri + ".md", "text/markdown", protocol.digest)
                for protocol in facts.protocols
            ],
            source=facts.base + CARD_PATH,
            digest=card_digest,
        ),
    }
    return ai_catalog.catalog(facts.label, facts.did, [entry])


def signed_card(card: Mapping[str, object], signer: Identity) -> dict[str, object]:
    """Return a card with an AgentCardSignature (A2A 1.0 section 8.4): a detached JWS over `card_payload`, by the signer's key.

    `kid` is the DID URL of the key, which is in the document of the DID, or in the did:key itself.
    """
    protected, signature = signer.sign_detached(card_payload(card))
    return {**card, "signatures": [{"protected": protected, "signature": signature}]}


def card_payload(card: Mapping[str, object]) -> bytes:
    """Return the signed bytes of a card: JCS without `signatures` and without empty values.

    A2A's canonical form leaves out fields with their default value, so our cards have none of these but empty lists.
    """
    return canonical.dumps(_without_empty({name: value for name, value in card.items() if name != "signatures"}))


def _without_empty(value: object) -> Any:
    match value:
        case dict():
            return {name: member for name, item in value.items() if (member := _without_empty(item)) not in ("", [], {})}
        case list():
            return [member for item in value if (member := _without_empty(item)) not in ("", [], {})]
    return value


def _structured(protocol: OfferedProtocol) -> dict[str, object]:
    return {
        "type": "StructuredInterface",
        "protocol": protocol.uri,
        "version": protocol.parsed.version,
        "url": protocol.uri + ".md",
        "description": protocol.text,
        "digest": protocol.digest,
        **_role(protocol),
    }


def _meta_protocol(facts: AgentFacts) -> list[dict[str, object]]:
    interfaces: list[dict[str, object]] = [
        {
            "id": f"anp-meta-{number}",
            "type": "MetaProtocolInterface",
            "protocol": "ANP",
            "version": "1.0",
            "profile": PROFILE,
            "binding": _BINDINGS[urlsplit(address).scheme],
            "url": address,
            "negotiates": ["protocol_artifacts"],
            "description": "Agrees on a protocol by Hello: a known hash, a URI, or a negotiated document.",
        }
        for number, address in enumerate(facts.addresses, start=1)
    ]
    interfaces[0]["protocolArtifacts"] = list(map(_artifact, facts.protocols))
    return interfaces


def _doors(facts: AgentFacts) -> list[dict[str, object]]:
    return [
        {"type": "StructuredInterface", "url": facts.base + door.path, **door.description}
        for door in facts.doors
        if door.description
    ]


def _artifact(protocol: OfferedProtocol) -> dict[str, object]:
    uri = protocol.parsed
    return {
        "protocol_id": f"{uri.namespace}/{uri.name}",
        "protocol_uri": protocol.uri,
        "version": uri.version,
        "description": protocol.text,
        "methods": [{"name": name} for name in protocol.operations],
        "digest": "sha-256:" + base64.urlsafe_b64encode(bytes.fromhex(protocol.digest)).decode().rstrip("="),
        **_role(protocol),
    }


def _extension(protocol: OfferedProtocol) -> dict[str, object]:
    return {
        "uri": protocol.uri,
        "description": protocol.text,
        "params": {"digest": protocol.digest, "version": protocol.parsed.version, **_role(protocol)},
    }


def _role(protocol: OfferedProtocol) -> dict[str, str]:
    return {"role": protocol.role} if protocol.role else {}


def _skills(protocol: OfferedProtocol) -> list[dict[str, object]]:
    """Return a skill for each operation, or one for a role that only calls."""
    uri = protocol.parsed
    tags = [uri.name, *([protocol.topic] if protocol.topic else [])]
    if not protocol.operations:
        about = f"Speaks {protocol.uri}."
        return [{"id": f"{uri.name}-{uri.version}", "name": protocol.text, "description": about, "tags": tags}]
    return [
        {
            "id": f"{uri.name}-{uri.version}-{operation}",
            "name": operation,
            "description": f"The operation {operation} of {protocol.text}, by {protocol.uri}.",
            "tags": tags,
        }
        for operation in protocol.operations
    ]


def _document(value: Mapping[str, object]) -> StaticDocument:
    # A changed address must reach readers within the time that they use a cached DID document.
    return StaticDocument(JSON, _encoded(value), CACHE_CONTROL)


def _encoded(value: Mapping[str, object]) -> bytes:
    body = canonical.dumps(dict(value))
    # Refused here and not at the readers: the operator can shorten it, and they cannot.
    if len(body) > MAX_DOCUMENT:
        raise TooLarge(DiscoveryCode.DOCUMENT, f"This description has {len(body)} bytes; others read at most {MAX_DOCUMENT}.")
    return body


def _bad_facts(why: str) -> Malformed:
    return Malformed(AgentCode.SETTINGS, f"An agent cannot be described like this: {why}.")
