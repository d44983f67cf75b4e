"""The official SDK's crawler and models read our online documents, and we read descriptions as the SDK writes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from treaty_agent.discovery.documents import AgentFacts, OfferedProtocol, describe
from treaty_agent.transport import listener
from treaty_agent.transport.connection import Connection
from treaty_anp.discovery.parsing import AgentDescription, SupportedProtocol, parse

DID = "did:wba:shop.example"
URI = "https://registry.example/protocols/example.com/product-info/1.1"
FACTS = AgentFacts(
    DID, ("wss://shop.example/", "https://shop.example/"), (OfferedProtocol(URI, "9c" * 32, operations=("getProductInfo",)),)
)
DOCUMENTS = describe(FACTS)


@pytest.fixture(scope="module")
def sdk(sdk_script: Callable[[str], Any]) -> Iterator[Any]:
    with sdk_script("discovery.py") as running:
        yield running


async def nobody(connection: Connection) -> None:
    raise AssertionError


async def crawled(sdk: Any, path: str) -> dict[str, Any]:
    async with listener.listen(nobody, "127.0.0.1", 0, max_connections=1, documents=DOCUMENTS) as port:
        page: dict[str, Any] = await asyncio.to_thread(sdk.call, "crawl", url=f"http://127.0.0.1:{port}{path}")
        return page


async def test_000_65_the_sdks_crawler_reads_our_description(sdk: Any) -> None:
    page = await crawled(sdk, "/ad.json")
    assert page["content"].encode() == DOCUMENTS["/ad.json"].body
    assert [(i["type"], i["protocol"], i["url"], i["version"]) for i in page["interfaces"]] == [
        ("StructuredInterface", URI, URI + ".md", "1.1"),
        ("MetaProtocolInterface", "ANP", "wss://shop.example/", "1.0"),
        ("MetaProtocolInterface", "ANP", "https://shop.example/", "1.0"),
    ]
    assert page["tools"] == []


@pytest.mark.parametrize("path", ["/.well-known/agent-descriptions", "/.well-known/agent-card.json"])
async def test_the_sdks_crawler_reads_our_other_documents(sdk: Any, path: str) -> None:
    page = await crawled(sdk, path)
    assert page["content"].encode() == DOCUMENTS[path].body
    assert page["interfaces"] == []


def test_our_description_fits_the_sdks_model(sdk: Any) -> None:
    ours = json.loads(DOCUMENTS["/ad.json"].body)
    modelled = sdk.call("model", document=ours)
    assert (modelled["did"], modelled["name"], modelled["url"]) == (DID, DID, "https://shop.example/ad.json")
    assert [i["protocol"] for i in modelled["interfaces"]] == [URI, "ANP", "ANP"]
    assert sdk.call("methods", document=ours) == []


def test_what_the_sdks_model_writes_is_read(sdk: Any) -> None:
    """Its model drops the members that it does not know: the protocol's URI stays, the digest and the address's profile go."""
    modelled = sdk.call("model", document=json.loads(DOCUMENTS["/ad.json"].body))
    description = parse(json.dumps(modelled).encode(), "https://shop.example/ad.json")
    assert isinstance(description, AgentDescription)
    assert (description.did, description.protocols) == (DID, (SupportedProtocol(URI, None, "1.1"),))
    assert description.addresses == ()
