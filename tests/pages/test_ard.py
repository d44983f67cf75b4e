"""A registry in Agentic Resource Discovery: its AI Catalog, its search, its facets and its list."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_api import described, problem, publish, say, unchanged
from pages_read import browsing, everybody_reports
from registries import Web, ballot, publication
from signers import ORIGIN, Signer, domain_signer, key_signer

from treaty_consensus import canonical, kinds
from treaty_consensus.did import parse_did, public_key_of
from treaty_io.identity.ai_catalog import CATALOG_PATH
from treaty_registry.registry import Registry
from treaty_registry.serving.ard import MAX_REQUEST

MEMBERS = {"identifier", "displayName", "type", "url", "description", "tags", "version", "metadata", "trustManifest"}
NAME = re.compile(r"urn:air:[a-zA-Z0-9.-]+(:[a-zA-Z0-9._-]+)+")


@pytest.fixture
async def browser(registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    """A client in front of the registry."""
    async with browsing(registry) as client:
        yield client


@pytest.fixture
def agents(web: Web) -> list[Signer]:
    """Three agents with domains."""
    found = [domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie")]
    web.serve(*found)
    return found


def verify(manifest: dict[str, Any]) -> None:
    """Check a trust manifest as a reader of AI Catalog does: by the DID in `identity`, which is the key itself."""
    protected, payload, signature = manifest["signature"].split(".")
    header = json.loads(base64.urlsafe_b64decode(protected + "=="))
    assert payload == "" and header["alg"] == "EdDSA" and header["kid"].partition("#")[0] == manifest["identity"]
    signed = canonical.dumps({name: value for name, value in manifest.items() if name != "signature"})
    body = base64.urlsafe_b64encode(signed).rstrip(b"=")
    key = Ed25519PublicKey.from_public_bytes(public_key_of(parse_did(manifest["identity"])))
    key.verify(base64.urlsafe_b64decode(signature + "=="), protected.encode() + b"." + body)


def check(entry: dict[str, Any], operator: str) -> None:
    """Check the members that the published schemas of ARD 0.9 demand, and the signature."""
    assert NAME.fullmatch(entry["identifier"]) and entry["displayName"] and entry["type"] and entry["url"]
    assert entry.keys() <= MEMBERS and "data" not in entry
    assert all(value is None or isinstance(value, str) for value in entry.get("metadata", {}).values())
    manifest = entry["trustManifest"]
    assert manifest["identity"] == operator and manifest["identityType"] == "did"
    for attested in manifest["attestations"]:
        assert attested.keys() <= {"type", "uri", "mediaType", "digest"} and attested["uri"].startswith("http")
    verify(manifest)


async def ask(browser: httpx.AsyncClient, path: str, **body: object) -> dict[str, Any]:
    """The answer to a request of ARD."""
    answer = await browser.post(path, json=body)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def test_the_catalog_has_the_registry_and_what_is_elected(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    async def entries() -> list[dict[str, Any]]:
        answer = await browser.get(CATALOG_PATH)
        assert answer.headers["content-type"] == "application/ai-catalog+json"
        said = answer.json()
        assert said.keys() == {"specVersion", "host", "entries"} and said["specVersion"] == "1.0"
        assert said["host"] == {"displayName": ORIGIN, "identifier": registry.operator}
        for entry in said["entries"]:
            check(entry, registry.operator)
        return list(said["entries"])

    (itself,) = await entries()
    assert itself["identifier"] == f"urn:air:{ORIGIN}:registry" and itself["type"] == "application/ai-registry+json"
    # Leaf 0 of the log names the key that signs.
    assert (await browser.get("/log", headers={"Accept": "application/json"})).json()["operator"] == registry.operator
    await publish(browser, agents[1], described(agents[1], "helper", title="H", summary="Obey", topic="music"))
    made = publication(agents[0], "first")
    await publish(browser, agents[0], made)
    for epoch in range(3):
        await everybody_reports(registry, agents, made.body.document.sha256, epoch)
        for agent in agents if epoch == 0 else ():
            await say(browser, agent, ballot(registry, 0, made.body.document.sha256))
        await registry.decide()
    _, elected = await entries()
    assert elected["identifier"] == "urn:air:alpha.example:first" and elected["version"] == "1.0"
    assert elected["url"] == f"{made.body.uri}.md" and elected["metadata"]["election"] == "consensus"
    manifest = elected["trustManifest"]
    digest = f"sha256:{made.body.document.sha256}"
    assert manifest["provenance"] == [{"relation": "publishedFrom", "sourceId": made.body.uri, "sourceDigest": digest}]
    assert manifest["attestations"][0]["digest"] == digest
    # Another version or document in its place does not verify.
    for forged in ({"sourceId": made.body.uri.replace("1.0", "1.1")}, {"sourceDigest": f"sha256:{'0' * 64}"}):
        with pytest.raises(InvalidSignature):
            verify({**manifest, "provenance": [{**manifest["provenance"][0], **forged}]})
    await say(browser, agents[0], kinds.Status(made.body.uri, "revoked"))
    assert [entry["type"] for entry in await entries()] == ["application/ai-registry+json"]


@pytest.mark.threat(405)
async def test_a_search_takes_sentences_and_a_did_key_stands_below_the_registry(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    alone = key_signer("alone")
    await publish(browser, agents[0], described(agents[0], "weather", title="Weather", summary="Asks", topic="weather"))
    await publish(browser, alone, described(alone, "forecast", title="Forecast of weather", summary="A", topic="weather/days"))
    await publish(browser, agents[1], described(agents[1], "music", title="Music", summary="Plays", topic="music"))
    sentence = {"text": "find me weather forecast tools"}
    said = await ask(browser, "/search", query=sentence, federation="none")
    assert said.keys() == {"results"}
    assert [result["displayName"] for result in said["results"]] == ["Forecast of weather", "Weather"]
    scores = [result.pop("score") for result in said["results"]]
    assert all(isinstance(score, int) and 0 < score <= 100 for score in scores) and scores == sorted(scores, reverse=True)
    assert {result.pop("source") for result in said["results"]} == {registry.base_url}
    for result in said["results"]:
        check(result, registry.operator)
    # No stranger's key names itself after a domain.
    assert said["results"][0]["identifier"] == f"urn:air:{ORIGIN}:{alone.did}:forecast"
    assert (await ask(browser, "/search", query=sentence, federation="referrals"))["referrals"] == []
    # Pages.
    first = await ask(browser, "/search", query=sentence, pageSize=1)
    second = await ask(browser, "/search", query=sentence, pageSize=1, pageToken=first["pageToken"])
    assert [page["results"][0]["displayName"] for page in (first, second)] == ["Forecast of weather", "Weather"]
    assert "pageToken" not in second
    # Filters, and facets of the same results.
    for filters, names in (
        ({"metadata.topic": "weather/days"}, ["Forecast of weather"]),
        ({"metadata.namespace": ["alpha.example"], "metadata.state": "active"}, ["Weather"]),
        ({"type": ["text/markdown", "application/mcp-server-card+json"]}, ["Forecast of weather", "Weather"]),
        ({"type": "application/mcp-server-card+json"}, []),
    ):
        found = await ask(browser, "/search", query={**sentence, "filter": filters})
        assert [result["displayName"] for result in found["results"]] == names, filters
    fields = [{"field": "type"}, {"field": "metadata.topic", "limit": 1}, {"field": "version", "minCount": 3}]
    explored = await ask(browser, "/explore", query={"text": "weather"}, resultType={"facets": fields})
    assert explored == {
        "resultType": "facets",
        "facets": {
            "type": {"buckets": [{"value": "text/markdown", "count": 2}], "otherCount": 0},
            "metadata.topic": {"buckets": [{"value": "weather", "count": 1}], "otherCount": 1},
            "version": {"buckets": [], "otherCount": 2},
        },
    }
    everything = await ask(browser, "/explore", resultType={"facets": [{"field": "metadata.namespace"}]})
    assert len(everything["facets"]["metadata.namespace"]["buckets"]) == 3
    # The list is of the newest first.
    listed = (await browser.get("/agents?pageSize=2")).json()
    rest = (await browser.get(f"/agents?pageToken={listed['pageToken']}")).json()
    assert [entry["displayName"] for entry in (*listed["items"], *rest["items"])] == ["Music", "Forecast of weather", "Weather"]
    assert "pageToken" not in rest
    # A change is seen at once, and no GET is answered by what a POST cached.
    await say(browser, agents[0], kinds.Status(f"https://{ORIGIN}/protocols/alpha.example/weather/1.0", "yanked"))
    assert len((await ask(browser, "/search", query=sentence, federation="none"))["results"]) == 1
    assert (await browser.get("/search")).status_code == 405


@pytest.mark.threat(405)
async def test_requests_beyond_the_bounds_are_refused(browser: httpx.AsyncClient, registry: Registry) -> None:
    facets = {"facets": [{"field": "type"}]}
    refused: list[tuple[str, object, str]] = [
        ("/search", {"query": {"text": " "}}, "http.request"),
        ("/search", {"query": {}}, "http.request"),
        ("/search", {"query": {"text": "x"}, "pageSize": 101}, "http.request"),
        ("/search", {"query": {"text": "x"}, "pageSize": 0}, "http.request"),
        ("/search", {"query": {"text": "x"}, "federation": "all"}, "http.request"),
        ("/search", {"query": {"text": "x"}, "more": 1}, "http.request"),
        ("/search", {"query": {"text": "x"}, "pageToken": "x"}, "search.query"),
        ("/search", {"query": {"text": "x" * 401}}, "search.query"),
        ("/search", {"query": {"text": " ".join(map(str, range(33)))}}, "search.query"),
        ("/search", {"query": {"text": "x", "filter": {"publisher": "alpha.example"}}}, "search.query"),
        ("/search", {"query": {"text": "x", "filter": {"handler": "none"}}}, "search.query"),
        ("/search", {"query": {"text": "x", "filter": {"metadata.topic": ["a", "b"]}}}, "search.query"),
        ("/search", {"query": {"text": "x", "filter": {"metadata.topic": "A"}}}, "search.query"),
        ("/search", {"query": {"text": "x", "filter": {"metadata.state": "consensus"}}}, "search.query"),
        ("/search", {"query": {"text": "x", "filter": {"metadata.namespace": "x y"}}}, "search.query"),
        ("/search", [[[]]], "http.request"),
        ("/explore", {"resultType": {"facets": []}}, "http.request"),
        ("/explore", {"resultType": {"facets": [{"field": "type"}] * 9}}, "http.request"),
        ("/explore", {"resultType": {"facets": [{"field": "trustManifest.identity"}]}}, "search.query"),
        ("/explore", {"query": {"filter": {"color": "red"}}, "resultType": facets}, "search.query"),
    ]
    async with unchanged(registry):
        for path, body, code in refused:
            problem(await browser.post(path, json=body), 400, code)
        problem(await browser.post("/search", content=b"\xff{"), 400, "http.request")
        problem(await browser.post("/search", content=b"[" * MAX_REQUEST), 400, "http.request")
        problem(await browser.post("/search", content=b" " * (MAX_REQUEST + 1)), 413, "http.too-large")
        problem(await browser.get("/protocols?cursor=s-50-3", headers={"Accept": "application/json"}), 400, "search.query")
        for query, code in (
            ("pageToken=s-50-3", "search.query"),
            ("filter=type%3D1", "search.query"),
            ("orderBy=x", "search.query"),
            ("pageSize=101", "http.request"),
        ):
            problem(await browser.get(f"/agents?{query}", headers={"Accept": "application/json"}), 400, code)
