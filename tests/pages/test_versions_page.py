"""The page of all versions: what changed between two of them. And the pages of hashes and names."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from protocol_pages import ARGUMENTS, BROWSER, GREET, MANIFEST, ROLES, attach, page, publish_text, try_to_attach
from registries import Web, publication
from signers import ORIGIN, Signer, domain_signer

from treaty_consensus import canonical, kinds
from treaty_registry.app import create_app
from treaty_registry.catalogue.comparison import MAX_LINES, MAX_ROWS, compare
from treaty_registry.registry import Registry

PATH = "/protocols/alice.example/greeting"
FORMLESS: dict[str, Any] = {"operations": {"greet": GREET}, "roles": ROLES}


@pytest.fixture
async def api(registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    """The registry over HTTP."""
    transport = httpx.ASGITransport(create_app(registry, period=0))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}") as client:
        yield client


@pytest.fixture
def alice(web: Web) -> Signer:
    signer = domain_signer("alice.example")
    web.serve(signer)
    return signer


async def test_two_versions_are_compared_line_by_line_and_word_by_word(api: httpx.AsyncClient, alice: Signer) -> None:
    await publish_text(api, alice, "# Greeting\n\nAsk once.\n\nEnd.\n")
    await publish_text(api, alice, "# Greeting\n\nAsk twice.\n\nEnd.\nMore <b>.\n", version="1.1")
    view = await page(api, f"{PATH}?from=1.0&to=1.1")
    assert (view.all("del")[0].text, view.all("ins")[0].text) == ("once", "twice")
    assert [element.text for element in view.all("ins")] == ["twice", "More <b>."]
    assert "+2 −1 lines" in view.section("document")
    back = await page(api, f"{PATH}?from=1.1&to=1.0")
    assert [element.text for element in back.all("del")] == ["twice", "More <b>."]


async def test_operations_are_compared_as_facts(api: httpx.AsyncClient, alice: Signer) -> None:
    roles = {
        "guest": {"peer": "host", "calls": ["greet", "wave"], "invokes": []},
        "host": {"peer": "guest", "calls": [], "invokes": ["greet", "wave"]},
    }
    arguments = {
        **ARGUMENTS,
        "properties": {"name": {"type": "integer"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    changed = {
        "greet": {**GREET, "arguments": arguments, "errors": {"404": "None."}, "timeout": 20, "idempotent": False},
        "wave": {"kind": "event", "arguments": {"type": "object"}},
    }
    await attach(api, alice, await publish_text(api, alice, "# 1\n"), FORMLESS)
    await attach(api, alice, await publish_text(api, alice, "# 2\n", version="2.0"), {"operations": changed, "roles": roles})
    section = (await page(api, f"{PATH}?from=1.0&to=2.0")).section("operations")
    for fact in (
        "may no longer be repeated",
        "timeout: 10 s → 20 s",
        "error 403 removed",
        "new error 404: None.",
        "arguments: new required member age (integer)",
        "arguments: member mood removed",
        "arguments: name: string → integer",
        "wave added",
    ):
        assert fact in section, fact
    assert "wave removed" in (await page(api, f"{PATH}?from=2.0&to=1.0")).section("operations")


async def test_a_breaking_handler_is_refused_under_a_compatible_number(api: httpx.AsyncClient, alice: Signer, web: Web) -> None:
    first, second = [await publish_text(api, alice, f"# {version}\n", version=version) for version in ("1.0", "1.1")]
    await attach(api, alice, first, FORMLESS)
    narrow = {**ARGUMENTS, "properties": {**ARGUMENTS["properties"], "name": {"type": "string", "maxLength": 3}}}
    breaking = {"operations": {"greet": {**GREET, "arguments": narrow}}, "roles": ROLES}
    before = (await api.get("/checkpoint")).text
    answer, _ = await try_to_attach(api, alice, second, breaking)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "publish.breaking")
    assert "breaks its callers of greet" in problem["detail"] and '{"name": "aaaa"' in problem["detail"]
    assert 'version "2.0"' in problem["fix"]
    assert (await api.get("/checkpoint")).text == before
    record = (await api.get(f"{PATH}/1.1", headers={"Accept": "application/json"})).json()
    assert record["handlers"] == [] and "compatibility" not in record
    # In the other order too: then it is the earlier version whose handler is refused.
    late = [await publish_text(api, alice, f"# {version}\n", version=version, name="late") for version in ("1.0", "1.1")]
    await attach(api, alice, late[1], breaking)
    answer, _ = await try_to_attach(api, alice, late[0], FORMLESS)
    assert answer.json()["code"] == "publish.breaking"
    stranger = domain_signer("bob.example")
    # A stranger's handler says nothing of the version, in either place.
    web.serve(stranger)
    await attach(api, stranger, second, breaking)
    await attach(api, alice, await publish_text(api, alice, "# 2.0\n", version="2.0"), breaking)


async def test_the_verdict_on_the_version_before_is_data_and_words(api: httpx.AsyncClient, alice: Signer) -> None:
    first, second = [await publish_text(api, alice, f"# {version}\n", version=version) for version in ("1.0", "1.1")]
    wider = {**ARGUMENTS, "properties": {**ARGUMENTS["properties"], "title": {"type": "string"}}}
    await attach(api, alice, second, {**MANIFEST, "operations": {"greet": {**GREET, "arguments": wider}}})
    assert "compatibility" not in (await api.get(f"{PATH}/1.1.json")).json()
    await attach(api, alice, first, MANIFEST)
    verdict = (await api.get(f"{PATH}/1.1.json")).json()["compatibility"]
    backward, forward = verdict["backward"], verdict["forward"]
    assert verdict["before"] == first.body.uri
    assert backward == {"caller": "1.0", "provider": "1.1", "verdict": "compatible", "calls": 1, "reasons": []}
    [reason] = forward["reasons"]
    assert (reason["operation"], reason["part"], reason["value"]) == ("greet", "arguments", '{"name": "a", "title": ""}')
    history = (await page(api, f"{PATH}/1.1")).section("history")
    assert "An agent of 1.0 can call an agent of 1.1." in history
    assert "An agent of 1.1 cannot use all of an agent of 1.0." in history and reason["value"] in history
    assert reason["value"] in (await page(api, f"{PATH}?from=1.0&to=1.1")).section("compatible")
    assert "compatibility" not in (await api.get(f"{PATH}/1.0.json")).json(), "nothing is before it"
    # Its code is not run here.
    coded = {"operations": {"greet": {**GREET, "arguments": wider}}, "roles": ROLES}
    await attach(api, alice, second, coded, release="1.1.post1")
    assert (await api.get(f"{PATH}/1.1.json")).json()["compatibility"]["backward"]["verdict"] == "undecided"


async def test_equal_documents_and_missing_handlers_are_said(api: httpx.AsyncClient, alice: Signer) -> None:
    await attach(api, alice, await publish_text(api, alice, "# 1\n"), MANIFEST)
    await publish_text(api, alice, "# 1\n", version="1.1")
    view = await page(api, f"{PATH}?from=1.0&to=1.1")
    assert "the same document, byte for byte" in view.section("document")
    assert "The operations cannot be compared." in view.section("operations")
    await attach(api, alice, await publish_text(api, alice, "# 1\r\n", version="1.2"), MANIFEST)
    view = await page(api, f"{PATH}?from=1.0&to=1.2")
    assert "only in the ends of their lines" in view.section("document")
    assert "All operations are the same" in view.section("operations")


async def test_the_form_proposes_the_newest_change(api: httpx.AsyncClient, alice: Signer) -> None:
    await publish_text(api, alice, "# 1\n")
    assert not (await page(api, PATH)).all("form", class_="compare")
    for version in ("1.1", "1.2"):
        await publish_text(api, alice, f"# {version}\n", version=version)
    view = await page(api, PATH)
    assert [option.text for option in view.all("option") if "selected" in option.attributes] == ["1.1", "1.2"]
    view = await page(api, f"{PATH}?from=1.0&to=1.2")
    assert [option.text for option in view.all("option") if "selected" in option.attributes] == ["1.0", "1.2"]
    assert "A newer version is published" in (await page(api, f"{PATH}/1.0")).all("p", class_="notice")[0].text
    assert not (await page(api, f"{PATH}/1.2")).all("p", class_="notice")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("query", "status"),
    [("from=1.0&to=9", 404), ("from=9&to=1.0", 404), ("from=01&to=1.0", 400), ("from=%3Cscript%3E&to=1.0", 400)],
)
async def test_versions_that_do_not_exist_are_refused(api: httpx.AsyncClient, alice: Signer, query: str, status: int) -> None:
    await publish_text(api, alice, "# 1\n")
    await page(api, f"{PATH}?{query}", status)
    await page(api, f"{PATH}?from={'1' * 65}&to=1.0", 400)
    assert (await api.get(f"{PATH}?from=1.0&to=9")).json()["name"] == "greeting", "the list as data takes no notice of them"


async def test_pages_of_different_queries_are_kept_apart(api: httpx.AsyncClient, alice: Signer) -> None:
    await publish_text(api, alice, "# 1\n")
    await publish_text(api, alice, "# 2\n", version="1.1")
    await page(api, f"{PATH}?from=1.0&to=1.1")
    await page(api, f"{PATH}?from=1.0%26to%3D1.1&to=1.1", 400)
    assert not (await page(api, f"{PATH}?from=1.0")).all("ins")


def test_hostile_documents_are_compared_within_bounds() -> None:
    draw = random.Random(5)
    hostile = [
        (b"a\n" * 100_000, b"b\na\n" * 50_000),
        (b"x " * 100_000, b"y " * 100_000),
        (
            "\n".join(draw.choice("abc") for _ in range(5_000)).encode(),
            "\n".join(draw.choice("abc") for _ in range(5_000)).encode(),
        ),
        ("\n".join(f"{n} " * 150 for n in range(1_500)).encode(), "\n".join(f"{n} " * 149 + "x" for n in range(1_500)).encode()),
        (b"\xff\xfe\n", b"\x00\n"),
        (b"", b"\n"),
    ]
    for old, new in hostile:
        differences = compare(old, new)
        assert len(differences.rows) <= MAX_ROWS
        assert differences.is_cut == (
            old.count(b"\n") >= MAX_LINES or new.count(b"\n") >= MAX_LINES or len(differences.rows) == MAX_ROWS
        )


def test_every_row_can_be_read_back() -> None:
    draw = random.Random(7)
    for _ in range(200):
        old, new = [[draw.choice(["a b c", "a b", "c", "", "a x c"]) for _ in range(draw.randrange(1, 12))] for _ in range(2)]
        differences = compare("\n".join([*old, ""]).encode(), "\n".join([*new, ""]).encode())
        for row in differences.rows:
            if row.old:
                assert "".join(piece.text for piece in row.before) == old[row.old - 1]
            if row.new:
                assert "".join(piece.text for piece in row.after) == new[row.new - 1]
        gone = {row.old for row in differences.rows if row.kind in ("removed", "changed")}
        come = {row.new for row in differences.rows if row.kind in ("added", "changed")}
        lines = [line for number, line in enumerate(old, 1) if number not in gone]
        assert lines == [line for number, line in enumerate(new, 1) if number not in come]


async def test_a_hash_leads_to_all_its_protocols(api: httpx.AsyncClient, alice: Signer) -> None:
    publication = await publish_text(api, alice, "# 1\n", title="<i>One</i>")
    await publish_text(api, alice, "# 1\n", version="1.1")
    view = await page(api, f"/hashes/{publication.body.document.sha256}")
    assert {f"{PATH}/1.0", f"{PATH}/1.1"} <= set(view.links())
    assert "2 protocols have this document" in view.all("h1")[0].text
    assert not view.all("i")
    await page(api, f"/hashes/{'0' * 64}", 404)
    await page(api, "/hashes/x", 400)
    assert (await api.get(f"/hashes/{publication.body.document.sha256}")).headers["content-type"] == "application/json"


async def test_a_name_is_resolved_with_the_strength_of_its_claim(api: httpx.AsyncClient, alice: Signer) -> None:
    plain = publication(alice)
    aliases = ("https://alice.example/spec", "https://elsewhere.example/spec")
    body = kinds.Publish(plain.body.uri, plain.body.topic, plain.body.document, plain.body.card, "standard", aliases)
    signed = alice.statement(body)
    for data in plain.blobs.values():
        headers = {"Treaty-Statement": canonical.b64encode(signed.leaf), "Content-Type": "application/octet-stream"}
        await api.put(f"/blobs/sha256/{canonical.hex_digest(data)}", content=data, headers=headers)
    assert (await api.post("/statements", content=signed.leaf, headers={"Content-Type": "application/json"})).status_code == 201
    for name, states in (
        (plain.body.uri, ["verified"]),
        (aliases[0], ["verified"]),
        (aliases[1], ["only a claim"]),
        ('"><script>alert(1)</script>', []),
    ):
        response = await api.get("/resolve", params={"uri": name}, headers=BROWSER)
        assert response.status_code == 200
        view = await page(api, str(response.url).removeprefix(f"https://{ORIGIN}"))
        assert [element.text for element in view.all("span", class_="state")] == states, name
        assert view.all("input", type="text")[0].attributes["value"] == name
    history = (await page(api, "/protocols/alice.example/product-info/1.0")).section("history")
    assert "https://alice.example/spec verified: the publisher's own domain" in history
    assert "https://elsewhere.example/spec a claim" in history
