"""`/statements` and `/proofs`: one statement, many, the same again, and every way to be refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from http_api import post, problem, publish, put, say, unchanged
from registries import ballot, publication
from signers import Signer

from treaty_consensus import canonical, kinds
from treaty_consensus.log.proof import Receipt
from treaty_consensus.statement import MAX_LEAF
from treaty_registry.keys import Operator
from treaty_registry.registry import Registry
from treaty_registry.routes import requests

NDJSON = {"Content-Type": "application/x-ndjson"}


async def test_a_statement_gets_a_receipt_that_verifies(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    signed = alice.statement(ballot(registry, 0))
    response = await post(api, signed)
    assert response.status_code == 201
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["location"] == f"/proofs/{signed.id}"
    receipt = Receipt.parse(response.content)
    checkpoint = receipt.verify(signed.leaf, registry.log_key, registry.clock_key)
    assert checkpoint.checkpoint.size > receipt.index and checkpoint.time is not None


async def test_a_repeated_statement_is_not_logged_twice(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    signed = await say(api, alice, ballot(registry, 0))
    size = registry.head.size
    again = await post(api, signed)
    assert again.status_code == 200 and registry.head.size == size
    assert Receipt.parse(again.content).index == size - 1
    Receipt.parse(again.content).verify(signed.leaf, registry.log_key)


async def test_a_logged_statement_is_read_back_with_its_proof(
    newest: httpx.AsyncClient, registry: Registry, alice: Signer
) -> None:
    api = newest
    signed = await say(api, alice, ballot(registry, 0))
    leaf = await api.get(f"/statements/{signed.id}")
    assert leaf.content == signed.leaf and "immutable" in leaf.headers["cache-control"]
    proof = await api.get(f"/proofs/{signed.id}")
    assert proof.headers["cache-control"] == "no-cache"
    Receipt.parse(proof.content).verify(signed.leaf, registry.log_key)
    await say(api, alice, ballot(registry, 1))
    newer = Receipt.parse((await api.get(f"/proofs/{signed.id}")).content)
    assert newer.verify(signed.leaf, registry.log_key).checkpoint.size == registry.head.size


@pytest.mark.parametrize("resource", ["statements", "proofs"])
async def test_what_is_not_logged_is_not_found(api: httpx.AsyncClient, resource: str) -> None:
    unknown = {"statements": "statement.unknown", "proofs": "statement.unknown"}[resource]
    problem(await api.get(f"/{resource}/{'0' * 64}"), 404, unknown)
    problem(await api.get(f"/{resource}/{'0' * 63}G"), 400, "canonical.text")


async def test_refusals_say_why_and_change_nothing(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer
) -> None:
    await say(api, alice, ballot(registry, 0))
    await say(api, bob, ballot(registry, 0))
    unsigned = alice.statement(ballot(registry, 1))
    forged = replace(unsigned, signatures=(bytes(64),))
    statement = publication(alice)
    cases = [
        (b"", 400, "canonical.json"),
        (b"[]", 400, "statement.form"),
        (unsigned.leaf.replace(b'"payload"', b' "payload"', 1), 400, "canonical.json"),
        (b"\xff", 400, "canonical.json"),
        (forged.leaf, 401, "statement.signature-invalid"),
        (alice.statement(ballot(registry, 1), log="other.example").leaf, 422, "statement.other-log"),
        (alice.statement(ballot(registry, 7)).leaf, 409, "statement.previous"),
        (alice.statement(statement.body).leaf, 404, "blob.missing"),
        (bob.statement(kinds.Status(statement.body.uri, "yanked")).leaf, 404, "protocol.unknown"),
        (alice.statement(kinds.Withdrawal("0" * 64, "illegal")).leaf, 401, "statement.not-operator"),
    ]
    for leaf, status, code in cases:
        async with unchanged(registry):
            response = await api.post("/statements", content=leaf, headers={"Content-Type": "application/json"})
            details = problem(response, status, code)
        assert (status == 401) == ("www-authenticate" in response.headers)
        assert alice.did not in details["title"]


@pytest.mark.threat(72)
async def test_bodies_of_other_kinds_and_sizes_are_refused(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    leaf = alice.statement(ballot(registry, 0)).leaf
    async with unchanged(registry):
        for content_type in ("text/plain", "application/octet-stream", "application/json-seq", ""):
            response = await api.post("/statements", content=leaf, headers={"Content-Type": content_type})
            problem(response, 415, "http.media-type")
        json_type = {"Content-Type": "application/json; charset=utf-8"}
        problem(await api.post("/statements", content=b" " * (MAX_LEAF + 1), headers=json_type), 413, "http.too-large")
        problem(await api.post("/statements", content=_chunks(MAX_LEAF + 1), headers=json_type), 413, "http.too-large")
    assert (await api.post("/statements", content=leaf, headers=json_type)).status_code == 201


async def test_a_batch_has_one_outcome_a_line(api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer) -> None:
    statement = await say(api, alice, ballot(registry, 0))
    fresh = [alice.statement(ballot(registry, 1)), bob.statement(ballot(registry, 0)), alice.statement(ballot(registry, 2))]
    lines = [fresh[0].leaf, b'{"no":"statement"}', fresh[1].leaf, statement.leaf, fresh[2].leaf]
    response = await api.post("/statements", content=b"\n".join(lines) + b"\n", headers=NDJSON)
    assert response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson"
    outcomes = [json.loads(line) for line in response.content.splitlines()]
    assert [outcome["status"] for outcome in outcomes] == [201, 400, 201, 200, 201]
    assert outcomes[1].keys() == {"status", "problem"} and outcomes[1]["problem"]["code"] == "statement.form"
    for outcome, signed in zip(outcomes[:1] + outcomes[2:], [fresh[0], fresh[1], statement, fresh[2]], strict=True):
        assert outcome["id"] == signed.id
        Receipt.parse(outcome["receipt"].encode()).verify(signed.leaf, registry.log_key)
    async with unchanged(registry):
        again = await api.post("/statements", content=b"\n".join(lines), headers=NDJSON)
    assert [json.loads(line)["status"] for line in again.content.splitlines()] == [200, 400, 200, 200, 200]


async def test_a_batch_is_capped_in_lines_and_bytes(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    leaf = alice.statement(ballot(registry, 0)).leaf
    async with unchanged(registry):
        problem(await api.post("/statements", content=b"{}\n" * 257, headers=NDJSON), 413, "statement.batch: at most")
        problem(await api.post("/statements", content=leaf + b"\n\n" + leaf, headers=NDJSON), 400, "statement.batch: Every line")
        problem(await api.post("/statements", content=b"", headers=NDJSON), 400, "statement.batch")
        problem(await api.post("/statements", content=_chunks(2 * 1024 * 1024 + 1), headers=NDJSON), 413, "http.too-large")
    full = await api.post("/statements", content=b"{}\n" * 256, headers=NDJSON)
    assert full.status_code == 200 and len(full.content.splitlines()) == 256


async def test_only_what_is_refused_by_the_log_is_refused_in_a_batch(
    api: httpx.AsyncClient, registry: Registry, operator: Operator, alice: Signer
) -> None:
    statement = publication(alice)
    signed = alice.statement(statement.body)
    for data in statement.blobs.values():
        await put(api, data, signed)
    twice = [signed.leaf, alice.statement(statement.body, issued=1).leaf]
    response = await api.post("/statements", content=b"\n".join(twice), headers=NDJSON)
    outcomes = [json.loads(line) for line in response.content.splitlines()]
    assert [outcome["status"] for outcome in outcomes] == [201, 409]
    assert outcomes[1]["problem"]["code"] == "publish.version-exists"


async def test_an_unknown_agent_is_looked_up_and_logged_first(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    problem(await api.get(f"/identities/{alice.did}"), 404, "identity.unknown")
    signed = await publish(api, alice, publication(alice))
    answer = (await api.get(f"/identities/{alice.did}")).json()
    assert answer["did"] == alice.did and answer["tenure"] == 1 and list(answer["keys"]) == [alice.key_id]
    assert answer["index"] < Receipt.parse((await api.get(f"/proofs/{signed.id}")).content).index
    leaf = (await api.get(f"/statements/{answer['statement']}")).content
    assert canonical.loads(leaf, limit=MAX_LEAF)["signatures"][0]["keyid"].startswith(registry.operator)


async def test_a_did_key_is_its_own_identity(api: httpx.AsyncClient, registry: Registry) -> None:
    answer = (await api.get(f"/identities/{registry.operator}")).json()
    assert answer == {"did": registry.operator, "tenure": 1, "keys": answer["keys"]}
    assert list(answer["keys"]) == [f"{registry.operator}#{registry.operator.removeprefix('did:key:')}"]
    problem(await api.get("/identities/did:nobody:x"), 400, "did.method")


async def test_a_body_that_does_not_arrive_is_not_waited_for(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.05)
    leaf = alice.statement(ballot(registry, 0)).leaf

    async def dripping() -> AsyncIterator[bytes]:
        yield leaf[:10]
        await asyncio.sleep(60)
        yield leaf[10:]

    async with unchanged(registry):
        response = await api.post("/statements", content=dripping(), headers={"Content-Type": "application/json"})
        problem(response, 408, "http.timeout")


async def test_the_direct_route_answers_as_the_framework_does(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slash at the end is another spelling of the path, which only the framework's router reads.
    direct, routed = "/statements", "/statements/"
    leaf, plain = alice.statement(ballot(registry, 0)).leaf, "application/json"
    requests_: list[tuple[bytes, dict[str, str] | list[tuple[str, str]]]] = [
        (b"", {}),
        (leaf, {}),
        (leaf, {"Content-Type": "text/plain"}),
        (b"[]", {"Content-Type": plain}),
        (leaf, {"Content-Type": "Application/JSON ;charset=utf-8"}),
        (leaf[:-1], {"Content-Type": plain}),
        (b" " * (MAX_LEAF + 1), {"Content-Type": plain}),
        (bob.statement(ballot(registry, 7)).leaf, {"Content-Type": plain}),
        (b"{}\n" * 257, NDJSON),
        (b"{}\n\n", NDJSON),
        (leaf + b"\n{}\n", NDJSON),
        (b"[]", [("Content-Type", plain), ("Content-Type", "text/plain")]),
        (b"[]", [("Content-Type", "text/plain"), ("Content-Type", plain)]),
    ]
    new = [await api.post(path, content=each.statement(ballot(registry, 0)).leaf, headers={"Content-Type": plain})
           for path, each in ((direct, alice), (routed, bob))]  # fmt: skip
    assert [response.status_code for response in new] == [201, 201]
    assert _shape(new[0]).keys() == _shape(new[1]).keys()
    for content, headers in requests_:
        answers = [await api.post(path, content=content, headers=headers) for path in (direct, routed)]
        first, second = ((answer.status_code, _shape(answer), answer.content) for answer in answers)
        assert first == second, (content[:40], headers)
    monkeypatch.setattr(registry.intake.admission, "charge", _fail)
    for answer in [await api.post(path, content=leaf, headers={"Content-Type": plain}) for path in (direct, routed)]:
        problem(answer, 500, "http.internal")


def _shape(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name not in ("x-request-id", "date")}


def _fail(*_: object) -> bool:
    raise RuntimeError("a fault")


async def _chunks(size: int) -> AsyncIterator[bytes]:
    while size > 0:
        yield b" " * min(size, 65_536)
        size -= 65_536
