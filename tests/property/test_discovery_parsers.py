"""Online documents of strangers: whatever the bytes, a typed result within its caps or a refusal; ours come back as they were."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from treaty_agent.discovery.documents import AgentFacts, OfferedProtocol, describe
from treaty_anp.discovery import parsing
from treaty_anp.discovery.parsing import AgentDescription, CollectionPage, parse, parse_service
from treaty_consensus.did import parse_did
from treaty_consensus.errors import TreatyError

URL = "https://shop.example/ad.json"
DID = parse_did("did:wba:shop.example")

NAMES = st.sampled_from(
    [
        *("items", "next", "@id", "interfaces", "type", "protocol", "profile", "url", "digest", "version", "protocolArtifacts"),
        *("protocol_uri", "supportedInterfaces", "protocolBinding", "capabilities", "extensions", "uri", "params", "skills"),
        *("did", "identifier", "name", "description", "service", "serviceEndpoint", "id"),
    ]
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            *(
                "AgentDescription",
                "StructuredInterface",
                "MetaProtocolInterface",
                "anp-meta/1.0",
                "9c" * 32,
                "sha-256:" + "A" * 43,
            ),
            *(
                "https://a.example/x",
                "wss://a.example/",
                "wss://[",
                "//",
                "?",
                "https://[::1",
                "did:wba:a.example",
                DID.text,
                "urn:x",
            ),
        ]
    ),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=6)),
    max_leaves=30,
)


def check(document: CollectionPage | AgentDescription) -> None:
    if isinstance(document, CollectionPage):
        assert all(url.startswith("https:") for url in [*document.items, *([document.next] if document.next else [])])
        return
    assert len(document.addresses) <= parsing.MAX_ADDRESSES
    assert len(document.protocols) <= parsing.MAX_PROTOCOLS
    assert all(parsing.is_address(address) for address in document.addresses)
    assert len(set(document.uris)) == len(document.uris)
    assert all(1 <= len(uri) <= 512 and uri.isascii() and uri.isprintable() and " " not in uri for uri in document.uris)
    assert (document.name + document.description + "".join(protocol.version for protocol in document.protocols)).isprintable()
    assert document.did == "" or parse_did(document.did).text == document.did


@given(st.one_of(st.binary(max_size=200), VALUES.map(lambda value: json.dumps(value).encode())))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        check(parse(data, URL))
    except TreatyError as error:
        assert error.code.startswith("discovery.")
    try:
        assert all(url.startswith("https:") for url in parse_service(data, DID))
    except TreatyError as error:
        assert error.code == "discovery.document"


NAMED = st.from_regex(r"\A[a-z][a-z0-9]{0,10}\Z")
OFFERED = st.builds(
    OfferedProtocol,
    uri=st.builds(
        lambda name, minor: f"https://registry.example/protocols/example.com/{name}/1.{minor}", NAMED, st.integers(0, 99)
    ),
    digest=st.binary(min_size=32, max_size=32).map(bytes.hex),
    topic=NAMED,
    title=st.text(st.characters(codec="utf-8"), max_size=40),
    operations=st.lists(NAMED, max_size=3).map(tuple),
)


@given(
    st.lists(OFFERED, max_size=8, unique_by=lambda offered: offered.uri).map(tuple),
    st.lists(NAMED.map(lambda name: f"wss://{name}.example/"), min_size=1, max_size=8, unique=True).map(tuple),
    st.text(st.characters(codec="utf-8"), max_size=300),
)
def test_what_is_described_is_read_again(protocols: tuple[OfferedProtocol, ...], addresses: tuple[str, ...], text: str) -> None:
    facts = AgentFacts(DID.text, addresses, protocols, description=text)
    documents = describe(facts)
    for path in ("/ad.json", "/.well-known/agent-card.json"):
        document = parse(documents[path].body, URL)
        assert isinstance(document, AgentDescription)
        check(document)
        assert document.addresses == addresses
        assert [(p.uri, p.digest) for p in document.protocols] == [(p.uri, p.digest) for p in protocols]
