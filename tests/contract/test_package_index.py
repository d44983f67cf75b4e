"""`/index`: each namespace as a package index (PEP 503, 592, 658, 691, 700, 714, 740, 792), and one wheel under one file name."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from claims import bundle_by
from http_api import ENTRY_POINT, attach, post, problem, publish, put, say
from registries import Publication, Web, blob, publication, settings_for
from signers import ORIGIN, Signer, domain_signer, key_signer
from simulated_registry import echo_wheel

from treaty_consensus import canonical, kinds
from treaty_consensus.errors import Malformed
from treaty_consensus.statement import Statement
from treaty_registry.app import create_app
from treaty_registry.keys import Operator
from treaty_registry.log.wheel_names import WheelNames
from treaty_registry.registry import Registry
from treaty_registry.storage.own_wheels import OwnWheels

JSON_V1, HTML_V1 = "application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.v1+html"
AS_JSON = {"Accept": JSON_V1}
SIMPLE = "/index/alice.example/simple/"
ECHO = f"{SIMPLE}treaty-handler-echo/"


class Links(HTMLParser):
    """The links of a page with their attributes, and its meta elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[dict[str, str | None]] = []
        self.meta: dict[str | None, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = dict(attrs)
        if tag == "a":
            self.links.append(fields)
        elif tag == "meta":
            self.meta[fields.get("name")] = fields.get("content")


async def upload(api: httpx.AsyncClient, agent: Signer, made: Publication, release: str, bundle: bytes = b"{}") -> Statement:
    """Upload a wheel, and return the statement about it."""
    filename, wheel = echo_wheel(made.body.uri, made.body.document.sha256, release)
    body = kinds.Handler(made.body.uri, made.body.document.sha256, filename, blob(wheel), ENTRY_POINT, blob(bundle))
    signed = agent.statement(body)
    for data in (wheel, bundle):
        assert (await put(api, data, signed)).status_code in (201, 204)
    return signed


async def try_attach(
    api: httpx.AsyncClient, agent: Signer, made: Publication, release: str, bundle: bytes = b"{}"
) -> httpx.Response:
    """Send a wheel, and return the answer to its statement."""
    return await post(api, await upload(api, agent, made, release, bundle))


async def handler(api: httpx.AsyncClient, agent: Signer, made: Publication, release: str = "1") -> kinds.Handler:
    body = (await attach(api, agent, made, release)).body
    assert isinstance(body, kinds.Handler)
    return body


async def listed(api: httpx.AsyncClient, path: str = ECHO) -> dict[str, Any]:
    answer = await api.get(path, headers=AS_JSON)
    assert answer.status_code == 200 and answer.headers["content-type"] == JSON_V1, answer.text
    value: dict[str, Any] = answer.json()
    assert value["meta"] == {"api-version": "1.4"}
    return value


@pytest.fixture
async def made(api: httpx.AsyncClient, alice: Signer) -> Publication:
    """A protocol of alice.example."""
    protocol = publication(alice, "echo")
    await publish(api, alice, protocol)
    return protocol


async def test_a_project_has_its_files_in_both_forms(api: httpx.AsyncClient, alice: Signer, made: Publication) -> None:
    assert (await listed(api, SIMPLE))["projects"] == []
    body = await handler(api, alice, made, "1.0")
    await handler(api, alice, made, "1.10")
    assert (await listed(api, SIMPLE))["projects"] == [{"name": "treaty-handler-echo"}]
    project = await listed(api)
    assert (project["name"], project["versions"]) == ("treaty-handler-echo", ["1.0", "1.10"])
    assert project["project-status"] == {"status": "active"}
    file = project["files"][0]
    url = f"/index/alice.example/files/{body.wheel.sha256}/{body.filename}"
    metadata = await api.get(f"{url}.metadata")
    assert file == {
        "filename": "treaty_handler_echo-1.0-py3-none-any.whl",
        "url": url,
        "hashes": {"sha256": body.wheel.sha256},
        "size": body.wheel.size,
        "upload-time": "2026-09-21T14:13:20Z",  # of the log's clock at the leaf
        "requires-python": ">=3.11",
        "core-metadata": {"sha256": hashlib.sha256(metadata.content).hexdigest()},
    }
    wheel = await api.get(url)
    assert hashlib.sha256(wheel.content).hexdigest() == body.wheel.sha256
    assert wheel.headers["cache-control"] == metadata.headers["cache-control"] == "public, max-age=31536000, immutable"
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        assert archive.read("treaty_handler_echo-1.0.dist-info/METADATA") == metadata.content
    page = Links((await api.get(ECHO)).text)
    assert page.meta["pypi:repository-version"] == "1.4" and page.meta["pypi:project-status"] == "active"
    assert page.links[0] == {
        "href": f"{url}#sha256={body.wheel.sha256}",
        "data-requires-python": ">=3.11",
        "data-core-metadata": f"sha256={file['core-metadata']['sha256']}",
        "data-dist-info-metadata": f"sha256={file['core-metadata']['sha256']}",
    }
    assert [link["href"] for link in Links((await api.get(SIMPLE)).text).links] == [ECHO]
    for unknown in (f"{url}x", url.replace(body.wheel.sha256, "0" * 64), f"{SIMPLE}treaty-handler-ech/", f"{SIMPLE}pip"):
        problem(await api.get(unknown), 404, "protocol.unknown")
    problem(await api.get(url.replace(body.wheel.sha256, "0" * 63)), 400, "canonical.text")


async def test_the_form_follows_accept(api: httpx.AsyncClient) -> None:
    html = "text/html; charset=utf-8"
    forms = {
        "": html,
        "*/*": html,
        JSON_V1: JSON_V1,
        "application/vnd.pypi.simple.latest+json": JSON_V1,
        f"{JSON_V1}, {HTML_V1}; q=0.1, text/html; q=0.01": JSON_V1,
        f"{JSON_V1};q=0.2, {HTML_V1};q=0.9, text/html;q=0.01": HTML_V1,
        f"text/html;q=0.5, {JSON_V1};q=0.1": html,
    }
    for accept, expected in forms.items():
        request = api.build_request("GET", SIMPLE, headers={"Accept": accept} if accept else {})
        if not accept:
            del request.headers["accept"]
        answer = await api.send(request)
        assert (answer.status_code, answer.headers["content-type"], answer.headers["vary"]) == (200, expected, "Accept")
        assert "max-age" in answer.headers["cache-control"]
        assert (await api.get(SIMPLE, headers={"Accept": accept, "If-None-Match": answer.headers["etag"]})).status_code == 304
        other = {"Accept": HTML_V1 if expected == JSON_V1 else JSON_V1, "If-None-Match": answer.headers["etag"]}
        assert (await api.get(SIMPLE, headers=other)).status_code == 200, "the other form has another tag"
    problem(await api.get(SIMPLE, headers={"Accept": "application/vnd.pypi.simple.v2+json"}), 406, "http.media-type")


async def test_states_show_as_installers_know_them(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, made: Publication, operator: Operator
) -> None:
    first, second, third = [await handler(api, alice, made, version) for version in ("1", "2", "3")]

    async def state(name: str, of: kinds.Handler | None) -> None:
        await say(api, alice, kinds.Status(made.body.uri, name, wheel=of and of.wheel.sha256))  # type: ignore[arg-type]

    async def shown() -> dict[str, str | None]:
        return {file["filename"].split("-")[1]: file.get("yanked") for file in (await listed(api))["files"]}

    await state("yanked", second)
    assert await shown() == {"1": None, "2": "Its publisher took this handler back.", "3": None}
    await state("active", second)
    await state("revoked", first)
    assert await shown() == {"2": None, "3": None}, "no installer takes what is harmful"
    assert (await listed(api))["versions"] == ["2", "3"]
    await state("deprecated", third)
    assert (await listed(api))["project-status"] == {"status": "deprecated"}
    await state("yanked", None)
    assert all(reason and made.body.uri in reason for reason in (await shown()).values())
    page = Links((await api.get(ECHO)).text)
    assert all(made.body.uri in (link["data-yanked"] or "") for link in page.links) and len(page.links) == 2
    await state("active", None)
    for body in (second, third):
        signed = operator.state(kinds.Withdrawal(body.wheel.sha256, "illegal"), issued=registry.clock()).statement
        assert (await post(api, signed)).status_code == 201
    project = await listed(api)
    assert project["files"] == project["versions"] == []
    assert project["project-status"] == {"status": "quarantined", "reason": "Its files were withdrawn."}
    for ending in ("", ".metadata"):
        path = f"/index/alice.example/files/{third.wheel.sha256}/{third.filename}{ending}"
        problem(await api.get(path), 410, "blob.withdrawn")


async def test_provenance_is_the_bundle_in_the_form_of_pep_740(api: httpx.AsyncClient, alice: Signer, made: Publication) -> None:
    bundle = json.loads(bundle_by("https://accounts.google.com"))
    assert (await try_attach(api, alice, made, "1", canonical.dumps(bundle))).status_code == 201
    entry = {"logIndex": "7", "canonicalizedBody": "e30="}
    bundle["verificationMaterial"]["tlogEntries"] = [entry]
    bundle["dsseEnvelope"] = {"payload": "e30=", "payloadType": "application/vnd.in-toto+json", "signatures": [{"sig": "c2ln"}]}
    assert (await try_attach(api, alice, made, "2", canonical.dumps(bundle))).status_code == 201
    plain, whole = (await listed(api))["files"]
    answer = await api.get(whole["provenance"])
    assert answer.headers["content-type"] == "application/vnd.pypi.integrity.v1+json"
    certificate = bundle["verificationMaterial"]["certificate"]["rawBytes"]
    material = {"certificate": certificate, "transparency_entries": [entry], "rfc3161_timestamps": []}
    attestation = {"version": 1, "verification_material": material, "envelope": {"statement": "e30=", "signature": "c2ln"}}
    publisher = {"did": alice.did, "kind": "DID"}
    assert answer.json() == {"version": 1, "attestation_bundles": [{"publisher": publisher, "attestations": [attestation]}]}
    problem(await api.get(plain["provenance"]), 400, "handler.package: no attestation")


@pytest.mark.threat(470)
async def test_an_index_has_the_files_of_its_own_namespace_alone(
    api: httpx.AsyncClient, alice: Signer, bob: Signer, made: Publication
) -> None:
    theirs, key = await handler(api, bob, made), key_signer("a key")
    own = publication(key, "echo")
    await publish(api, key, own)
    await handler(api, key, own)
    problem(await api.get(ECHO, headers=AS_JSON), 404, "protocol.unknown")
    problem(await api.get(f"/index/alice.example/files/{theirs.wheel.sha256}/{theirs.filename}"), 404, "protocol.unknown")
    assert (await listed(api, "/index/bob.example/simple/treaty-handler-echo/"))["files"][0]["hashes"][
        "sha256"
    ] == theirs.wheel.sha256
    (file,) = (await listed(api, f"/index/{key.did.replace(':', '%3A')}/simple/treaty-handler-echo"))["files"]
    assert (await api.get(file["url"])).status_code == 200
    problem(await api.get("/index/not a name/simple/"), 400, "did.syntax")
    problem(await api.get("/index/treaty/simple/treaty-agents/"), 404, "protocol.unknown")


@pytest.mark.threat(471)
async def test_a_file_name_has_one_content(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, web: Web, made: Publication
) -> None:
    other, same_domain = publication(alice, "echo", version="2.0"), domain_signer("alice.example", "web")
    web.serve(same_domain)
    await publish(api, alice, other)
    await publish(api, same_domain, publication(same_domain, "another"))
    kept = await handler(api, alice, made, "1.0")
    for agent, next_version in ((alice, "1.0.post1"), (same_domain, "1.0.post1"), (alice, "1.0.post2")):
        size, rows = registry.head.size, await registry.pool.fetchval("select count(*) from handlers")
        refused = problem(await try_attach(api, agent, other, "1.0"), 409, "publish.version-exists: 1.0-py3-none-any.whl")
        assert f'version = "{next_version}"' in refused["fix"], "the next version that is free"
        assert (size, rows) == (registry.head.size, await registry.pool.fetchval("select count(*) from handlers"))
        if agent is same_domain:
            await handler(api, alice, other, "1.0.post1")
    assert (await listed(api))["files"][0]["hashes"]["sha256"] == kept.wheel.sha256
    assert (await try_attach(api, same_domain, made, "1.0")).status_code == 201, "the same wheel again is no other content"


@pytest.mark.threat(471)
async def test_of_uploads_at_once_one_has_the_name(api: httpx.AsyncClient, alice: Signer, made: Publication) -> None:
    others = [made, *[publication(alice, "echo", version=f"{number}.0") for number in range(2, 5)]]
    for other in others[1:]:
        await publish(api, alice, other)
    signed = [await upload(api, alice, other, "9") for other in others]
    # Of one request they are judged in one commit.
    together = b"\n".join(each.leaf for each in signed[:2])
    answer = await api.post("/statements", content=together, headers={"Content-Type": "application/x-ndjson"})
    assert [json.loads(line)["status"] for line in answer.text.splitlines()] == [201, 409]
    answers = await asyncio.gather(*(post(api, each) for each in signed))
    assert [answer.status_code for answer in answers] == [200, 409, 409, 409]
    assert len((await listed(api))["files"]) == 1


async def test_a_log_that_has_two_shows_the_first(
    api: httpx.AsyncClient, alice: Signer, made: Publication, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = publication(alice, "echo", version="2.0")
    await publish(api, alice, other)
    first = await handler(api, alice, made)
    with monkeypatch.context() as former:
        former.setattr(WheelNames, "check", lambda *_: None)  # as 0.1.0 did
        second = await handler(api, alice, other)
    (file,) = (await listed(api))["files"]
    assert file["hashes"]["sha256"] == first.wheel.sha256 != second.wheel.sha256 and first.filename == second.filename
    third = publication(alice, "echo", version="3.0")
    await publish(api, alice, third)
    problem(await try_attach(api, alice, third, "1"), 409, "publish.version-exists")


async def test_the_registrys_own_index_has_the_wheels_of_its_operator(tmp_path: Path, database: str, web: Web) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for fault in ({}, {"not_a_wheel.whl": b"x"}, {"treaty_x-1-py3-none-any.whl": b"x"}):
        for name, data in fault.items():
            (folder / name).write_bytes(data)
        with pytest.raises(Malformed, match="wheel"):
            OwnWheels.read(folder)
        for name in fault:
            (folder / name).unlink()
    filename, wheel = echo_wheel(f"https://{ORIGIN}/protocols/alice.example/echo/1.0", "0" * 64)
    (folder / filename).write_bytes(wheel)
    settings = replace(settings_for(tmp_path / "registry", database), wheels=OwnWheels.read(folder))
    async with Registry.open(settings, resolve=web.resolve) as registry:
        transport = httpx.ASGITransport(create_app(registry))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}") as api:
            assert (await listed(api, "/index/treaty/simple/"))["projects"] == [{"name": "treaty-handler-echo"}]
            (file,) = (await listed(api, "/index/treaty/simple/Treaty.Handler_echo/"))["files"]
            assert (file["filename"], file["size"]) == (filename, len(wheel))
            (folder / filename).unlink()  # it was read at the start
            assert (await api.get(file["url"])).content == wheel
            metadata = (await api.get(f"{file['url']}.metadata")).content
            assert (
                hashlib.sha256(metadata).hexdigest() == file["core-metadata"]["sha256"]
                and b"Name: treaty-handler-echo" in metadata
            )
            problem(await api.get(f"{file['url']}.provenance"), 404, "protocol.unknown")
            problem(await api.get("/index/treaty/simple/other/"), 404, "protocol.unknown")
