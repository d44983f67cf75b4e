"""What an agent publishes of itself, and how it is read again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treaty_agent.discovery.client import candidates
from treaty_agent.discovery.documents import (
    AgentFacts,
    OfferedProtocol,
    collection_page,
    describe,
    description_url,
    service_entry,
)
from treaty_anp.discovery import parsing
from treaty_anp.discovery.parsing import AgentDescription, CollectionPage, SupportedProtocol, parse, parse_service
from treaty_anp.hello_profile.hello import MAX_CANDIDATES
from treaty_consensus.did import did_key, parse_did
from treaty_consensus.errors import Malformed, NotFound, TooLarge, TreatyError
from treaty_io.network.egress import MAX_BODY

DID = "did:wba:shop.example"
HASH = "9c" * 32
URI = "https://registry.example/protocols/example.com/product-info/1.1"
OLD = "https://registry.example/protocols/example.com/product-info/1.0"
URL = "https://shop.example/ad.json"
OFFERED = (
    OfferedProtocol(URI, HASH, "commerce/product-info", "Product information", ("getProductInfo",)),
    OfferedProtocol(OLD, "ab" * 32),
)
FACTS = AgentFacts(DID, ("wss://shop.example/", "https://shop.example/"), OFFERED, "The shop", "Sells laptops.")


def served(facts: AgentFacts = FACTS) -> dict[str, Any]:
    return {path: json.loads(document.body) for path, document in describe(facts).items()}


def described(**members: object) -> AgentDescription:
    description = parse(json.dumps({"type": "AgentDescription", **members}).encode(), URL)
    assert isinstance(description, AgentDescription)
    return description


def interface(**members: object) -> dict[str, object]:
    return {"type": "StructuredInterface", "protocol": URI, **members}


def test_000_65_an_online_document_lists_the_supported_uris() -> None:
    documents = served()
    well_known = {f"/.well-known/{name}" for name in ("agent-descriptions", "agent-card.json", "ai-catalog.json")}
    assert set(documents) == {"/ad.json", *well_known}
    interfaces = documents["/ad.json"]["interfaces"]
    assert [i["protocol"] for i in interfaces if i["type"] == "StructuredInterface"] == [URI, OLD]
    assert interfaces[0] == {
        "type": "StructuredInterface",
        "protocol": URI,
        "version": "1.1",
        "url": URI + ".md",
        "description": "Product information",
        "digest": HASH,
    }
    assert [e["uri"] for e in documents["/.well-known/agent-card.json"]["capabilities"]["extensions"]] == [URI, OLD]


@pytest.mark.parametrize("path", ["/ad.json", "/.well-known/agent-card.json"])
def test_000_65_a_reader_knows_the_offers_and_their_addresses(path: str) -> None:
    description = parse(describe(FACTS)[path].body, "https://shop.example" + path)
    assert isinstance(description, AgentDescription)
    assert description.protocols == (SupportedProtocol(URI, HASH, "1.1"), SupportedProtocol(OLD, "ab" * 32, "1.0"))
    assert description.addresses == ("wss://shop.example/", "https://shop.example/")
    assert (description.name, description.description) == ("The shop", "Sells laptops.")
    assert description.did == (DID if path == "/ad.json" else "")


def test_page_and_did_document_lead_to_the_description() -> None:
    page = parse(describe(FACTS)["/.well-known/agent-descriptions"].body, "https://shop.example/.well-known/agent-descriptions")
    assert page == CollectionPage((URL,), None)
    document = {"id": DID, "service": [service_entry(DID, description_url(FACTS))]}
    assert document["service"] == [{"id": f"{DID}#ad", "type": "AgentDescription", "serviceEndpoint": URL}]
    assert parse_service(json.dumps(document).encode(), parse_did(DID)) == (URL,)


def test_the_artifacts_of_anp_06_are_read_as_a_last_resort() -> None:
    (meta, second) = served()["/ad.json"]["interfaces"][2:]
    assert meta["negotiates"] == ["protocol_artifacts"]
    assert meta["profile"] == second["profile"] == "anp-meta/1.0"
    assert [(i["binding"], i["url"]) for i in (meta, second)] == [
        ("websocket", "wss://shop.example/"),
        ("http", "https://shop.example/"),
    ]
    artifact = meta["protocolArtifacts"][0]
    assert artifact["digest"].startswith("sha-256:")
    assert artifact["methods"] == [{"name": "getProductInfo"}]
    assert described(interfaces=[meta]).protocols == (
        SupportedProtocol(URI, HASH, "1.1"),
        SupportedProtocol(OLD, "ab" * 32, "1.0"),
    )


def test_equal_facts_make_equal_bytes() -> None:
    own_document = {"id": DID, "proof": {"proofValue": "z…"}}
    assert describe(FACTS) == describe(FACTS)
    document = describe(FACTS, own_document)["/.well-known/did.json"]
    assert (document.content_type, json.loads(document.body)) == ("application/did+json", own_document)


def test_an_agent_below_a_path_has_its_documents_there() -> None:
    facts = AgentFacts("did:wba:shop.example:agents:a", ("ws://127.0.0.1:9000/",), base_url="https://shop.example")
    documents = describe(facts, {"id": facts.did})
    assert {"/agents/a/ad.json", "/agents/a/did.json"} < set(documents)
    assert description_url(facts) == "https://shop.example/agents/a/ad.json"
    # An entry of a catalog has the DID's host. A did:key has none.
    other = AgentFacts(facts.did, facts.addresses, base_url="https://cloud.example")
    alone = AgentFacts(did_key(bytes(32)), ("wss://[::1]:9000/",))
    for named, name in ((other, "shop.example:agents:a"), (alone, "--1")):
        (entry,) = json.loads(describe(named)["/.well-known/ai-catalog.json"].body)["entries"]
        assert entry["identifier"] == f"urn:air:{name}:agent"
    assert description_url(AgentFacts(DID, ("ws://127.0.0.1:9000/x",))) == "http://127.0.0.1:9000/ad.json"


@pytest.mark.parametrize(
    "facts",
    [
        {"addresses": ()},
        {"addresses": ("ftp://shop.example/",)},
        {"addresses": ("wss://user@shop.example/",)},
        {"addresses": ("wss://shop.example/\n",)},
        {"addresses": ("wss://shop.example/",) * 9},
        {"protocols": OFFERED * 33},
        {"did": "did:example:1"},
        {"base_url": "https://shop.example/agents"},
        {"base_url": "wss://shop.example"},
    ],
)
def test_impossible_facts_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        AgentFacts(**{"did": DID, "addresses": ("wss://shop.example/",), **facts})


def test_a_protocol_is_offered_by_its_uri_and_hash() -> None:
    with pytest.raises(Malformed):
        OfferedProtocol("https://elsewhere.example/", HASH)
    with pytest.raises(Malformed):
        OfferedProtocol(URI, HASH.upper())


def test_what_others_would_refuse_is_not_published() -> None:
    with pytest.raises(TooLarge) as caught:
        describe(AgentFacts(DID, ("wss://shop.example/",), description="x" * MAX_BODY))
    assert caught.value.code == "discovery.document"


def test_a_description_of_another_implementation_is_read() -> None:
    """After the example of ANP-07: members we do not know, floats, and interfaces that are not ours."""
    description = described(
        protocolType="ANP",
        name="Grand Hotel Assistant",
        did="did:wba:grand-hotel.example:service:hotel-assistant",
        Infomations=[{"type": "Product", "price": 1288.5, "geo": [30.2741, 120.1551]}],
        interfaces=[
            {"type": "NaturalLanguageInterface", "protocol": "YAML", "url": "https://grand-hotel.example/nl.yaml"},
            {"type": "StructuredInterface", "protocol": "openrpc", "content": {}},
            {"type": "StructuredInterface", "protocol": "MCP", "version": "1.0", "url": "https://grand-hotel.example/mcp.json"},
            {"type": "MetaProtocolInterface", "profile": "anp.meta.negotiation.v1", "url": "https://grand-hotel.example/anp"},
        ],
    )
    assert (description.name, description.protocols, description.addresses) == ("Grand Hotel Assistant", (), ())
    assert description.did == "did:wba:grand-hotel.example:service:hotel-assistant"
    with pytest.raises(NotFound) as caught:
        _ = description.address
    assert caught.value.code == "discovery.nothing"


def test_foreign_cards_of_either_a2a_version_are_read() -> None:
    interfaces = [{"url": "https://a.example/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
    extensions = [{"uri": URI, "required": True, "params": {"weight": 0.5}}, {"uri": "no uri"}, {"params": {}}, "x"]
    new = {"name": "A", "supportedInterfaces": interfaces, "capabilities": {"extensions": extensions}}
    old = {"name": "A", "url": "https://a.example/", "capabilities": {"extensions": extensions}, "skills": []}
    for card in (new, old):
        description = parse(json.dumps(card).encode(), "https://a.example/card")
        assert isinstance(description, AgentDescription)
        assert (description.protocols, description.addresses, description.did) == ((SupportedProtocol(URI),), (), "")


@pytest.mark.parametrize(
    "uri, digest, expected",
    [
        (URI, HASH, HASH),
        (URI, "sha256:" + HASH, HASH),
        (URI, HASH.upper(), None),
        (URI, "sha-256:AAAA", None),
        (URI, "sha-256:" + "!" * 43, None),
        (URI, 5, None),
        ("urn:treaty:x", None, None),
        ("anp:protocol:data-sharing:1.0", None, None),
    ],
)
def test_any_uri_is_a_protocol_and_an_invalid_digest_is_dropped(uri: str, digest: object, expected: str | None) -> None:
    assert described(interfaces=[interface(protocol=uri, digest=digest)]).protocols == (SupportedProtocol(uri, expected),)


@pytest.mark.parametrize(
    "uri", ["openrpc", "https://a b", "https://x/\x1b[2J", "https://" + "x" * 512, "", 5, None, ["https://x/"]]
)
def test_what_is_no_uri_is_no_protocol(uri: object) -> None:
    assert described(interfaces=[interface(protocol=uri)]).protocols == ()


@pytest.mark.parametrize(
    "address",
    [
        "wss://127.0.0.1/",
        "wss://127.1/",
        "wss://2130706433/",
        "wss://127.0.0.0x1/",
        "wss://[::1]/",
        "wss://localhost/",
        "wss://shop.localhost/",
        "wss://internal/",
        "wss://Shop_.example/",
        "wss://user:pass@shop.example/",
        "wss://shop.example/#fragment",
        "wss://shop.example:99999/",
        "wss://shop.example/ x",
        "ftp://shop.example/",
        "file:///etc/passwd",
        "wss://",
        5,
    ],
)
def test_an_address_is_at_a_name_of_the_public_dns(address: object) -> None:
    entry = {"type": "MetaProtocolInterface", "profile": parsing.PROFILE, "url": address}
    assert described(interfaces=[entry, interface(url=address)]).addresses == ()


def test_addresses_over_tls_come_first_and_are_few() -> None:
    urls = ["ws://a.example/", "http://b.example/", "wss://c.example/", "https://d.example/", "wss://c.example/"]
    entries = [{"type": "MetaProtocolInterface", "profile": parsing.PROFILE, "url": url} for url in urls]
    description = described(interfaces=[*entries, interface(url="wss://e.example/"), interface(url="https://f.example/")])
    assert description.addresses == (
        "wss://c.example/",
        "https://d.example/",
        "wss://e.example/",
        "ws://a.example/",
        "http://b.example/",
    )
    many = [{**entries[0], "url": f"wss://{n}.a.example/"} for n in range(20)]
    assert len(described(interfaces=many).addresses) == parsing.MAX_ADDRESSES


def test_text_for_people_is_one_printable_line() -> None:
    description = described(name="\x1b[31mShop\n\u202eevil", description="d" * 1000, interfaces=[interface(version="1\n2")])
    assert description.name == "[31mShop  evil"
    assert len(description.description) == parsing.MAX_TEXT
    assert description.protocols[0].version == "1 2"


def test_of_a_uri_that_occurs_twice_the_first_counts() -> None:
    artifacts = {"type": "MetaProtocolInterface", "protocolArtifacts": [{"protocol_uri": URI, "digest": "cd" * 32}]}
    description = described(interfaces=[artifacts, interface(digest=HASH), interface(digest="ab" * 32)])
    assert description.protocols == (SupportedProtocol(URI, HASH),)


def test_a_name_that_is_missing_is_the_did_or_the_place() -> None:
    assert described(did=DID).name == DID
    assert described(did="did:all:x", identifier=5, name=5).name == URL


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'"x"',
        b"{}",
        b"{",
        b"\xff",
        b'{"interfaces": NaN}',
        b'{"interfaces": {}}',
        b'{"items": {}}',
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"a": "\xed\xa0\x80"}',
        b'{"n": ' + b"9" * 60_000 + b"}",
    ],
)
def test_what_is_none_of_the_documents_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        parse(data, URL)
    assert caught.value.code == "discovery.document"


def test_caps_come_before_parsing() -> None:
    for data in (
        b" " * (MAX_BODY + 1),
        json.dumps({"interfaces": [{}] * 257}).encode(),
        json.dumps({"items": [5] * 257}).encode(),
    ):
        with pytest.raises(TooLarge) as caught:
            parse(data, URL)
        assert caught.value.code == "discovery.document"
    with pytest.raises(TooLarge):
        described(interfaces=[interface(protocol=f"urn:{n}") for n in range(65)])
    assert len(described(interfaces=[interface(protocol=f"urn:{n}") for n in range(64)]).protocols) == 64


def test_items_are_https_and_may_be_relative() -> None:
    page = collection_page(URL, [("a", "/a/ad.json"), ("b", "http://x.example/ad.json"), ("c", "/a/ad.json")], "?page=2")
    items = [*page["items"], {"@id": "https://[x/"}, {"@id": 5}, {}, 5]  # type: ignore[misc]
    page_of_items = parse(json.dumps({**page, "items": items}).encode(), "https://h.example/.well-known/agent-descriptions")
    assert page_of_items == CollectionPage(
        ("https://h.example/a/ad.json",), "https://h.example/.well-known/agent-descriptions?page=2"
    )


@pytest.mark.parametrize("document", [{}, {"id": "did:wba:other.example"}, []])
def test_the_document_of_another_did_leads_nowhere(document: object) -> None:
    with pytest.raises(TreatyError) as caught:
        parse_service(json.dumps(document).encode(), parse_did(DID))
    assert caught.value.code == "discovery.document"


def test_other_services_are_passed_over() -> None:
    services = [
        {"type": "ANPMessageService", "serviceEndpoint": "https://shop.example/anp"},
        {"type": "AgentDescription", "serviceEndpoint": {"uri": URL}},
        {"type": "AgentDescription", "serviceEndpoint": "http://shop.example/ad.json"},
        "x",
    ]
    assert parse_service(json.dumps({"id": DID, "service": services}).encode(), parse_did(DID)) == ()


def test_000_63_consensus_then_common_then_other_offers() -> None:
    agent = described(interfaces=[interface(protocol=uri) for uri in ("urn:theirs", "urn:both", "urn:also")])
    own = ["urn:mine", "urn:also", "urn:elected", "urn:both", "urn:mine"]
    assert candidates(agent, own, consensus={"urn:elected"}) == ("urn:elected", "urn:also", "urn:both", "urn:mine")
    assert candidates(agent, own, consensus={"urn:theirs"}) == ("urn:also", "urn:both", "urn:mine", "urn:elected")


def test_000_63_without_preference_listed_protocols_are_offered() -> None:
    agent = described(interfaces=[interface(protocol=f"urn:{n}") for n in range(20)])
    assert candidates(agent) == tuple(f"urn:{n}" for n in range(MAX_CANDIDATES))
    assert len(candidates(agent, [f"urn:x{n}" for n in range(20)])) == MAX_CANDIDATES
