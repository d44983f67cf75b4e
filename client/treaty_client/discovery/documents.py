"""What an agent publishes about itself: the online documents of its protocols. All are canonical JSON and fixed bytes.

`/.well-known/agent-descriptions`, the entrance (ANP-08 v1.2): one page that lists the agents of a host

    {"@context": {…}, "@type": "CollectionPage", "url": URL,
     "items": [{"@type": "ad:AgentDescription", "name": NAME, "@id": URL of ad.json}], "next": URL?}

`/ad.json`, or `/PATH/ad.json` for a DID with a path (ANP-07 v1.1): the agent description

    {"protocolType": "ANP", "protocolVersion": "1.0.0", "type": "AgentDescription",
     "url": URL, "name": NAME, "did": DID, "description": TEXT,
     "securityDefinitions": {"didwba_sc": {"scheme": "didwba", "in": "header", "name": "Authorization"}}, "security": "didwba_sc",
     "interfaces": [
       one a protocol:
       {"type": "StructuredInterface", "protocol": PROTOCOL URI, "version": VERSION, "url": PROTOCOL URI + ".md",
        "description": TEXT, "digest": HEX},
       one an address (ANP-06 v1.2, §5), the first with the artifacts (ibid. §10.2):
       {"id": "anp-meta-N", "type": "MetaProtocolInterface", "protocol": "ANP", "version": "1.0", "profile": "anp-meta/1.0",
        "binding": "websocket" or "http", "url": ADDRESS, "negotiates": ["protocol_artifacts"], "description": TEXT,
        "protocolArtifacts": [{"protocol_id": "NAMESPACE/NAME", "protocol_uri": PROTOCOL URI, "version": VERSION,
                               "description": TEXT, "methods": [{"name": OPERATION}], "digest": "sha-256:" BASE64URL}]}]}

`url` of a StructuredInterface leads to the definition, as in ANP-07, and `digest`, an addition of ours, is the SHA-256 of the
bytes there: the protocol hash. The profile of a MetaProtocolInterface is the Hello profile's name, not `anp.meta.negotiation.v1`,
for which one would have to answer `anp.negotiate`; who looks for that one passes ours over.

`/.well-known/agent-card.json` (A2A 1.0): each protocol is an extension, and each address an interface with a binding of its own

    {"name": NAME, "description": TEXT, "version": "1.0",
     "supportedInterfaces": [{"url": ADDRESS, "protocolBinding": "anp-meta/1.0", "protocolVersion": "1.0"}],
     "capabilities": {"extensions": [{"uri": PROTOCOL URI, "description": TEXT, "required": false,
                                      "params": {"digest": HEX, "version": VERSION}}]},
     "defaultInputModes": ["application/json"], "defaultOutputModes": ["application/json"],
     "skills": [{"id": NAME-VERSION, "name": TEXT, "description": TEXT, "tags": [NAME, TOPIC?]}]}

The DID document leads to the description by a service (DID Core §5.4): `{"id": DID "#ad", "type": "AgentDescription",
"serviceEndpoint": URL of ad.json}`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from treaty_consensus import canonical
from treaty_consensus.canonical import parse_digest
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri

from ..network.egress import MAX_BODY
from ..transport.application import Document
from .reading import CARD_PATH, DESCRIPTIONS_PATH, MAX_ADDRESSES, MAX_PROTOCOLS, PROFILE, SERVICE_TYPE, is_address

JSON = "application/json"
DID_JSON = "application/did+json"

_CONTEXT = {
    "@vocab": "https://schema.org/",
    "did": "https://w3id.org/did#",
    "ad": "https://agent-network-protocol.com/ad#",
}
_BINDINGS = {"ws": "websocket", "wss": "websocket", "http": "http", "https": "http"}


@dataclass(frozen=True)
class OfferedProtocol:
    """A protocol that the agent provides. `digest`: the document's SHA-256; `title`: for people, default the URI's name;
    `operations`: those that others may call. Raises `Malformed`."""

    uri: str
    digest: str
    topic: str = ""
    title: str = ""
    operations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parse_protocol_uri(self.uri)
        parse_digest(self.digest)

    @property
    def parsed(self) -> ProtocolUri:
        """The URI's parts."""
        return parse_protocol_uri(self.uri)

    @property
    def text(self) -> str:
        """What people read."""
        return self.title or f"{self.parsed.name} {self.parsed.version}"


@dataclass(frozen=True)
class AgentFacts:
    """What an agent says of itself in public.

    `addresses`: where its Hellos are answered, as others reach it, best first: `wss:`, `ws:`, `https:` or `http:` URLs.
    `name`: default the DID. `base_url`: where its documents are served, without a path; default the first address's host.
    Raises `Malformed` (`discovery.facts`, `did.*`).
    """

    did: str
    addresses: tuple[str, ...]
    protocols: tuple[OfferedProtocol, ...] = ()
    name: str = ""
    description: str = ""
    base_url: str = ""

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
        """The URL that the documents' paths are appended to."""
        first = urlsplit(self.addresses[0])
        secure = first.scheme in ("wss", "https")
        return self.base_url or f"{'https' if secure else 'http'}://{first.netloc}"

    @property
    def label(self) -> str:
        """The name that people read."""
        return self.name or self.did

    @property
    def about(self) -> str:
        """The description that people read; others have it as mandatory."""
        return self.description or f"An agent that agrees on protocols by {PROFILE}."


def description_path(did: str) -> str:
    """Where an agent's description is on its host: beside its DID document, or at the root."""
    return "/".join(("", *parse_did(did).path, "ad.json"))


def description_url(facts: AgentFacts) -> str:
    """Where the agent's description is."""
    return facts.base + description_path(facts.did)


def service_entry(did: str, url: str) -> dict[str, str]:
    """The service of a DID document that leads to the agent description at `url`."""
    return {"id": f"{did}#ad", "type": SERVICE_TYPE, "serviceEndpoint": url}


def describe(facts: AgentFacts, did_document: Mapping[str, object] | None = None) -> dict[str, Document]:
    """An agent's documents by path, to be served on its host; `did_document`, if given, as it is at its DID's own path.

    Raises `TooLarge` (`discovery.too-large`) for a description that its readers would refuse, `Malformed` for values that are no
    JSON, and `Refused` for the document of a DID that has none.
    """
    url = description_url(facts)
    page = collection_page(facts.base + DESCRIPTIONS_PATH, [(facts.label, url)])
    documents = {
        DESCRIPTIONS_PATH: _document(page),
        description_path(facts.did): _document(agent_description(facts)),
        CARD_PATH: _document(agent_card(facts)),
    }
    if did_document is not None:
        path = urlsplit(parse_did(facts.did).document_url).path
        documents[path] = _document(did_document, DID_JSON)
    return documents


def collection_page(url: str, items: Sequence[tuple[str, str]], next_url: str = "") -> dict[str, object]:
    """A page of the agents of a host: (name, URL of the description) each. `next_url`: of the page after."""
    page: dict[str, object] = {
        "@context": _CONTEXT,
        "@type": "CollectionPage",
        "url": url,
        "items": [{"@type": "ad:AgentDescription", "name": name, "@id": at} for name, at in items],
    }
    return {**page, "next": next_url} if next_url else page


def agent_description(facts: AgentFacts) -> dict[str, object]:
    """The agent description, `ad.json`."""
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
        "interfaces": [*map(_structured, facts.protocols), *_meta_protocol(facts)],
    }


def agent_card(facts: AgentFacts) -> dict[str, object]:
    """The A2A agent card."""
    return {
        "name": facts.label,
        "description": facts.about,
        "version": "1.0",
        "supportedInterfaces": [
            {"url": address, "protocolBinding": PROFILE, "protocolVersion": "1.0"} for address in facts.addresses
        ],
        "capabilities": {"extensions": list(map(_extension, facts.protocols))},
        "defaultInputModes": [JSON],
        "defaultOutputModes": [JSON],
        "skills": list(map(_skill, facts.protocols)),
    }


def _structured(protocol: OfferedProtocol) -> dict[str, object]:
    return {
        "type": "StructuredInterface",
        "protocol": protocol.uri,
        "version": protocol.parsed.version,
        "url": protocol.uri + ".md",
        "description": protocol.text,
        "digest": protocol.digest,
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


def _artifact(protocol: OfferedProtocol) -> dict[str, object]:
    uri = protocol.parsed
    return {
        "protocol_id": f"{uri.namespace}/{uri.name}",
        "protocol_uri": protocol.uri,
        "version": uri.version,
        "description": protocol.text,
        "methods": [{"name": name} for name in protocol.operations],
        "digest": "sha-256:" + base64.urlsafe_b64encode(bytes.fromhex(protocol.digest)).decode().rstrip("="),
    }


def _extension(protocol: OfferedProtocol) -> dict[str, object]:
    return {
        "uri": protocol.uri,
        "description": protocol.text,
        "required": False,
        "params": {"digest": protocol.digest, "version": protocol.parsed.version},
    }


def _skill(protocol: OfferedProtocol) -> dict[str, object]:
    uri = protocol.parsed
    operations = f" Operations: {', '.join(protocol.operations)}." if protocol.operations else ""
    return {
        "id": f"{uri.name}-{uri.version}",
        "name": protocol.text,
        "description": f"Speaks {protocol.uri}.{operations}",
        "tags": [uri.name, *([protocol.topic] if protocol.topic else [])],
    }


def _document(value: Mapping[str, object], content_type: str = JSON) -> Document:
    body = canonical.dumps(dict(value))
    if len(body) > MAX_BODY:
        raise TooLarge("discovery.too-large", f"This description has {len(body)} bytes; others read at most {MAX_BODY}.")
    return Document(content_type, body)


def _bad_facts(why: str) -> Malformed:
    return Malformed("discovery.facts", f"An agent cannot be described like this: {why}.")
