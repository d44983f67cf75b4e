"""`/blobs`: what may be uploaded, when it is served, how, and until when."""

from __future__ import annotations

import httpx
import pytest
from http_api import post, problem, publish, put, unchanged
from registries import publication
from signers import Signer

from treaty_consensus import canonical, kinds
from treaty_consensus.statement import Statement
from treaty_registry.keys import Operator
from treaty_registry.registry import Registry


@pytest.mark.threat(84)
async def test_an_upload_is_served_once_its_statement_is_logged(api: httpx.AsyncClient, alice: Signer) -> None:
    statement = publication(alice)
    signed = alice.statement(statement.body)
    path = f"/blobs/sha256/{statement.body.document.sha256}"
    for data in statement.blobs.values():
        first, second = await put(api, data, signed), await put(api, data, signed)
        assert (first.status_code, second.status_code) == (201, 204)
        assert first.content == second.content == b""
    problem(await api.get(path), 404, "blob.unknown")
    assert (await post(api, signed)).status_code == 201
    served = await api.get(path)
    assert served.status_code == 200 and served.content == statement.document
    assert (await put(api, statement.document, signed)).status_code == 204


@pytest.mark.threat(84)
async def test_a_blob_is_an_inert_attachment_that_never_changes(api: httpx.AsyncClient, alice: Signer) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    path = f"/blobs/sha256/{statement.body.document.sha256}"
    for _ in range(2):  # made, then from memory
        headers = (await api.get(path)).headers
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-disposition"] == "attachment"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "public, max-age=31536000, immutable"
        assert headers["etag"] == f'"{statement.body.document.sha256}"'


async def test_bytes_that_were_changed_in_the_store_are_not_served(
    api: httpx.AsyncClient, registry: Registry, alice: Signer
) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    digest = statement.body.document.sha256
    await registry.blobs.put(digest, statement.document[:-1] + b"x")
    for path in (f"/blobs/sha256/{digest}", statement.body.uri.removeprefix(f"https://{registry.origin}") + ".md"):
        answer = await api.get(path)
        problem(answer, 503, "blobs.damaged")
        assert answer.headers["cache-control"] == "no-store"
    await registry.blobs.put(digest, statement.document)
    assert (await api.get(f"/blobs/sha256/{digest}")).content == statement.document


@pytest.mark.deep
async def test_uploads_that_do_not_fit_are_refused(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    await publish(api, alice, publication(alice))
    statement = publication(alice, version="2.0")
    signed = alice.statement(statement.body)
    path = f"/blobs/sha256/{statement.body.document.sha256}"
    named = {"Treaty-Statement": canonical.b64encode(signed.leaf)}
    other = bytes(len(statement.document))
    cases = [
        (path, other, named, 400, "blob.digest: SHA-256"),
        (path, statement.document[:-1], named, 422, "blob.digest: bytes"),
        (path, statement.document + b".", named, 413, "http.too-large"),
        (path, statement.document, {}, 400, "http.request"),
        (path, statement.document, {"Treaty-Statement": "e30"}, 400, "canonical.text"),
        (path, statement.document, {"Treaty-Statement": canonical.b64encode(b"{}")}, 400, "statement.form"),
        (path, statement.document, {"Treaty-Statement": "A" * 17_000}, 400, "http.request"),
        (f"/blobs/sha256/{canonical.hex_digest(other)}", other, named, 400, "blob.digest: does not name"),
        ("/blobs/sha256/abc", other, named, 400, "canonical.text"),
        (
            path,
            statement.document,
            {"Treaty-Statement": canonical.b64encode(_forged(signed))},
            401,
            "statement.signature-invalid",
        ),
    ]
    for target, data, headers, status, code in cases:
        async with unchanged(registry):
            problem(await api.put(target, content=data, headers=headers), status, code)
    assert await registry.pool.fetchval("select count(*) from pending_blobs") == 0


async def test_statements_of_strangers_hold_no_uploads(api: httpx.AsyncClient, registry: Registry, bob: Signer) -> None:
    document = b"{}"
    key = kinds.Key(bob.key_id, "z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp")
    claimed = kinds.Identity(bob.did, kinds.Blob(canonical.hex_digest(document), len(document)), (key,), 1)
    problem(await put(api, document, bob.statement(claimed)), 422, "blob.digest")
    assert await registry.pool.fetchval("select count(*) from pending_blobs") == 0


@pytest.mark.parametrize("form", ["blob", "md"])
async def test_withdrawn_bytes_are_gone_even_from_memory(
    api: httpx.AsyncClient, registry: Registry, operator: Operator, alice: Signer, form: str
) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    document = statement.body.document.sha256
    path = (
        f"/blobs/sha256/{document}" if form == "blob" else f"/protocols/alice.example/{statement.body.uri.split('/')[-2]}/1.0.md"
    )
    assert (await api.get(path)).content == (await api.get(path)).content == statement.document
    await _withdraw(api, registry, operator, document)
    problem(await api.get(path), 410, "blob.withdrawn")
    problem(await put(api, statement.document, alice.statement(statement.body)), 410, "blob.withdrawn")
    record = (await api.get("/protocols/alice.example/product-info/1.0")).json()
    assert record["hash"] == document, "the log keeps what was published"


async def test_a_withdrawn_card_leaves_no_words_behind(
    api: httpx.AsyncClient, registry: Registry, operator: Operator, alice: Signer
) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    assert len((await api.get("/protocols", params={"q": "shop"})).json()["protocols"]) == 1
    await _withdraw(api, registry, operator, statement.body.card.sha256)
    assert (await api.get("/protocols", params={"q": "shop"})).json()["protocols"] == []
    (summary,) = (await api.get("/protocols", params={"q": "product"})).json()["protocols"]
    assert (summary["title"], summary["summary"], summary["tags"]) == ("", "", [])
    record = (await api.get("/protocols/alice.example/product-info/1.0")).json()
    assert record["card"] == {"title": "", "summary": "", "tags": [], "licence": ""}
    bundle = (await api.get("/protocols/alice.example/product-info/1.0.bundle")).json()
    assert statement.body.card.sha256 not in bundle["blobs"] and statement.body.document.sha256 in bundle["blobs"]


async def _withdraw(api: httpx.AsyncClient, registry: Registry, operator: Operator, sha256: str) -> None:
    signed = operator.state(kinds.Withdrawal(sha256, "personal"), issued=registry.clock()).statement
    assert (await post(api, signed)).status_code == 201


def _forged(signed: Statement) -> bytes:
    return signed.leaf.replace(canonical.b64encode(signed.signatures[0]).encode(), canonical.b64encode(bytes(64)).encode())
