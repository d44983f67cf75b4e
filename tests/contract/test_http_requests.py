"""What holds for every request: caps, conditions, methods, and refusals that tell nothing but what they mean to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from http_api import post, problem, publish, unchanged
from registries import TOPIC, Web, ballot, bucket, publication, settings_for
from signers import NOW, Signer

from treaty_consensus import kinds
from treaty_registry.app import create_app
from treaty_registry.registry import Registry
from treaty_registry.serving.request_head import MAX_HEADER_BYTES
from treaty_registry.settings import Quotas

RECORD = "/protocols/alice.example/product-info/1.0"


async def test_every_resource_answers_conditions_and_head(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    statement = publication(alice)
    signed = await publish(api, alice, statement)
    paths = [
        RECORD,
        f"{RECORD}.md",
        f"{RECORD}.bundle",
        f"{RECORD}.bundle?since=2",
        "/protocols?q=product",
        "/protocols/alice.example/product-info",
        f"/hashes/{statement.body.document.sha256}",
        f"/blobs/sha256/{statement.body.document.sha256}",
        f"/resolve?uri={statement.body.uri}",
        "/topics",
        f"/topics/{TOPIC}",
        f"/topics/{TOPIC}.bundle",
        f"/ballots?topic={TOPIC}&did={alice.did}",
        f"/identities/{alice.did}",
        f"/statements/{signed.id}",
        f"/proofs/{signed.id}",
        "/checkpoint",
        "/tile/0/000.p/3",
        "/tile/entries/000.p/3",
        "/log",
        "/trust-config.json",
        "/sigstore/trusted-root.json",
    ]
    api.headers["X-Request-ID"] = "the-same-request"  # otherwise each answer names another one
    for path in paths:
        plain = await api.get(path)
        assert plain.status_code == 200 and plain.content, path
        again, head = await api.get(path), await api.head(path)
        assert again.content == plain.content and again.headers == plain.headers == head.headers, path
        assert head.status_code == 200 and head.content == b"", path
        assert int(plain.headers["content-length"]) == len(plain.content)
        etag = plain.headers["etag"]
        for condition in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            unmodified = await api.get(path, headers={"If-None-Match": condition})
            assert unmodified.status_code == 304 and unmodified.content == b"", (path, condition)
            assert unmodified.headers["etag"] == etag and "content-type" not in unmodified.headers
            assert unmodified.headers["cache-control"] == plain.headers["cache-control"]
        assert (await api.head(path, headers={"If-None-Match": etag})).status_code == 304
        assert (await api.get(path, headers={"If-None-Match": '"other"'})).content == plain.content


async def test_an_entity_tag_changes_with_what_it_tags(api: httpx.AsyncClient, alice: Signer) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    before = {path: (await api.get(path)).headers["etag"] for path in (RECORD, f"{RECORD}.md", "/protocols", f"{RECORD}.bundle")}
    assert (await post(api, alice.statement(kinds.Status(statement.body.uri, "deprecated")))).status_code == 201
    changed = {path for path, etag in before.items() if (await api.get(path, headers={"If-None-Match": etag})).status_code == 200}
    assert changed == {RECORD, "/protocols", f"{RECORD}.bundle"}


@pytest.mark.threat(72)
async def test_heads_over_the_caps_are_refused(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    leaf = alice.statement(ballot(registry, 0)).leaf
    long_header = {"X-Long": "a" * MAX_HEADER_BYTES}
    many = {f"X-{number}": "a" * 100 for number in range(MAX_HEADER_BYTES // 100)}
    async with unchanged(registry):
        for headers in (long_header, many):
            problem(await api.get("/checkpoint", headers=headers), 431, "http.too-large")
            json_type = {"Content-Type": "application/json"}
            problem(await api.post("/statements", content=leaf, headers=json_type | headers), 431, "http.too-large")
        problem(await api.get("/protocols/" + "a" * 1_100), 414, "http.too-large")
        problem(await api.get("/protocols?q=" + "a" * 2_050), 414, "http.too-large")
        problem(await api.get("/checkpoint?" + "a" * 2_050), 414, "http.too-large")
    assert (await api.get("/checkpoint", headers={"X-Long": "a" * (MAX_HEADER_BYTES - 1_000)})).status_code == 200


async def test_unknown_paths_and_methods_are_refused(api: httpx.AsyncClient, registry: Registry) -> None:
    async with unchanged(registry):
        for path in ("/nothing", "/static/nothing.css", "/blobs", "/blobs/sha256/", "/schema/nothing.json", "/sigstore", "/tile"):
            response = await api.get(path)
            assert response.status_code in (400, 404) and response.headers["cache-control"] == "no-store", path
        for method, path, allowed in (
            ("DELETE", "/protocols", "GET"),
            ("PUT", "/checkpoint", "GET"),
            ("POST", RECORD, "GET"),
            ("PATCH", "/statements", "POST"),
            ("DELETE", f"/blobs/sha256/{'0' * 64}", "PUT"),
            ("GET", "/statements", "POST"),
            ("GET", "/sigstore/api/v2/signingCert", "POST"),
        ):
            response = await api.request(method, path)
            problem(response, 405, "http.method")
            assert allowed in response.headers["allow"], path
            assert ("GET" in response.headers["allow"]) == ("HEAD" in response.headers["allow"])


@pytest.mark.threat(89)
async def test_a_fault_of_ours_says_nothing_of_itself(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(api, alice, publication(alice))

    async def broken(*_args: object) -> None:
        raise RuntimeError("the secret is in /root/keys")

    monkeypatch.setattr(registry, "blob", broken)
    monkeypatch.setattr(registry, "submit", broken)
    responses = [
        await api.get(f"{RECORD}.md"),
        await api.get(f"{RECORD}.md?x"),
        await post(api, alice.statement(ballot(registry, 0))),
    ]
    for response in responses:
        problem(response, 500, "http.internal")
        assert b"secret" not in response.content and b"RuntimeError" not in response.content


async def test_reads_from_memory_survive_a_lost_database(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    await publish(api, alice, publication(alice))
    before = await api.get(RECORD)
    await registry.pool.close()
    assert (await api.get(RECORD)).content == before.content
    for path in ("/protocols?q=other", "/topics", "/protocols/alice.example/other/1.0", "/health/ready"):
        response = await api.get(path)
        problem(response, 503, "database.unreachable")
        assert response.headers["retry-after"]
    assert (await api.get("/health/live")).json() == {"status": "live"}


async def test_health(api: httpx.AsyncClient) -> None:
    for state in ("live", "ready"):
        response = await api.get(f"/health/{state}")
        assert response.json() == {"status": state} and response.headers["cache-control"] == "no-store"


async def test_quotas_ask_to_come_back_later(tmp_path: Path, database: str, web: Web, alice: Signer) -> None:
    settings = replace(settings_for(tmp_path / "registry", database), quotas=Quotas(prefix=bucket(3)))
    async with Registry.open(settings, resolve=web.resolve) as registry:
        transport = httpx.ASGITransport(create_app(registry))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="https://registry.example") as api:
            for seq in range(3):
                assert (await post(api, alice.statement(ballot(registry, seq)))).status_code == 201
            async with unchanged(registry):
                refused = await post(api, alice.statement(ballot(registry, 3)))
                problem(refused, 429, "quota.sender")
            assert refused.headers["retry-after"]
            assert (await api.get("/checkpoint")).status_code == 200, "reading costs nothing"


@pytest.mark.deep
async def test_many_readers_at_once_get_the_same(api: httpx.AsyncClient, alice: Signer) -> None:
    for number in range(5):
        await publish(api, alice, publication(alice, version=f"1.{number}"))
    paths = [f"/protocols/alice.example/product-info/1.{number}" for number in range(6)] * 30
    responses = await asyncio.gather(*map(api.get, paths))
    for path, response in zip(paths, responses, strict=True):
        if path.endswith("1.5"):
            problem(response, 404, "protocol.unknown")
        else:
            assert response.json()["uri"].endswith(path)


@pytest.mark.deep
async def test_a_post_is_seen_at_once_by_whoever_waits_for_its_receipt(
    api: httpx.AsyncClient, registry: Registry, alice: Signer
) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)

    async def write_and_read(number: int) -> None:
        state = ("deprecated", "active")[number % 2]
        signed = alice.statement(kinds.Status(statement.body.uri, state), issued=NOW + number)  # type: ignore[arg-type]
        receipt = await post(api, signed)
        assert receipt.status_code == 201
        answer = await api.get(f"/statements/{signed.id}")
        assert answer.content == signed.leaf

    await asyncio.gather(*map(write_and_read, range(40)))
    assert (await api.get(RECORD)).status_code == 200
