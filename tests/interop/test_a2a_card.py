"""The official A2A SDK reads our agent card, verifies its signature, and says what it cannot do with it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from treaty_agent.discovery.documents import AgentFacts, OfferedProtocol, describe, description_url, service_entry
from treaty_agent.transport import listener
from treaty_agent.transport.connection import Connection
from treaty_anp.discovery.parsing import CARD_PATH
from treaty_consensus.did import authentication_keys, parse_did
from treaty_io.identity import Identity

URI = "https://registry.example/protocols/example.com/product-info/1.1"
OFFERED = (OfferedProtocol(URI, "9c" * 32, "commerce/product-info", "Product information: größe, 价格", ("getProductInfo",)),)
IDENTITY = Identity.create("shop.example")


def card(protocols: tuple[OfferedProtocol, ...] = OFFERED, *addresses: str, identity: Identity = IDENTITY) -> dict[str, Any]:
    """The card that an agent serves."""
    facts = AgentFacts(identity.did, addresses or ("wss://shop.example/", "https://shop.example"), protocols, "店 \U0001f600")
    data: dict[str, Any] = json.loads(describe(facts, signer=identity)[CARD_PATH].body)
    return data


def keys(identity: Identity) -> dict[str, str]:
    """The keys that a reader finds in the document of a DID."""
    keys_of = authentication_keys(identity.did_document(), parse_did(identity.did))
    return {key_id: base64.b64encode(key).decode() for key_id, key in keys_of.items()}


@pytest.fixture(scope="module")
def a2a(a2a_script: Callable[[str], Any]) -> Iterator[Any]:
    with a2a_script("a2a_card.py") as running:
        yield running


def test_the_sdk_reads_the_security_scheme(a2a: Any) -> None:
    ours = card()
    assert a2a.call("read", card=ours) == ours, "nothing is unknown to the SDK, and nothing has its default value"
    scheme = ours["securitySchemes"]["didwba"]["httpAuthSecurityScheme"]
    assert (scheme["scheme"], ours["securityRequirements"]) == ("DIDWba", [{"schemes": {"didwba": {}}}])
    assert "securitySchemes" not in card(OFFERED, "wss://shop.example/"), "nothing is signed over WebSocket"


@pytest.mark.parametrize("protocols", [OFFERED, ()], ids=["protocols", "none"])
def test_the_sdk_verifies_our_signature(a2a: Any, protocols: tuple[OfferedProtocol, ...]) -> None:
    for identity in (IDENTITY, IDENTITY.rotated(), Identity.create("shop.example:a", bind=True)):
        ours = card(protocols, identity=identity)
        assert a2a.call("verify", card=ours, keys=keys(identity)) == "verified"


def test_the_sdk_refuses_a_changed_card_and_another_key(a2a: Any) -> None:
    ours, own_keys = card(), keys(IDENTITY)
    changes: list[dict[str, Any]] = [
        {"name": "Another shop"},
        {"supportedInterfaces": [{**ours["supportedInterfaces"][0], "url": "wss://evil.example/"}]},
        {"securitySchemes": {}},
        {"skills": []},
    ]
    for change in changes:
        assert a2a.call("verify", card={**ours, **change}, keys=own_keys) == "InvalidSignaturesError"
    other = {IDENTITY.key_id: base64.b64encode(bytes(Identity.create().public_key)).decode()}
    assert a2a.call("verify", card=ours, keys=other) == "InvalidSignaturesError"
    unsigned = {name: value for name, value in ours.items() if name != "signatures"}
    assert a2a.call("verify", card=unsigned, keys=own_keys) == "NoSignatureError"


async def test_the_sdks_resolver_reads_the_card(a2a: Any) -> None:
    async def refuse(connection: Connection) -> None:
        raise AssertionError

    facts = AgentFacts(IDENTITY.did, ("wss://shop.example/",), OFFERED, "The shop")
    document = IDENTITY.did_document(services=[service_entry(IDENTITY.did, description_url(facts))])
    documents = describe(facts, document, signer=IDENTITY)
    async with listener.listen(refuse, "127.0.0.1", 0, max_connections=1, documents=documents) as port:
        summary = await asyncio.to_thread(a2a.call, "resolve", base=f"http://127.0.0.1:{port}")
    assert summary == {"name": "The shop", "client": "no compatible transports found."}
