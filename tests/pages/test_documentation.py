"""The registry serves the documentation from an archive: right types, packed, revalidated, and no path leads
out of it. A browser shows its tables."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from docs.site.archive import pack
from docs.site.staging import ROOT
from playwright.async_api import Browser, Route
from signers import ORIGIN

from treaty_registry.app import create_app
from treaty_registry.pages.renderer import CONTENT_SECURITY_POLICY
from treaty_registry.registry import Registry

FILES = {
    "index.html": "<!doctype html><title>Treaty</title>" + "the concept " * 100,
    "glossary.html": "<!doctype html><title>Glossary 词汇</title>",
    "guides/index.html": "<!doctype html><title>Guides</title>",
    "_static/docs.css": "body {}",
    "_static/docs.js": "fold();",
    "_images/overview.svg": "<svg/>",
    "_downloads/agents.py": "print(1)",
    "searchindex.js": "Search.setIndex({})",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An archive of a small site."""
    for name, text in FILES.items():
        path = tmp_path / "html" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "secret.txt").write_text("outside")
    pack(tmp_path / "html", tmp_path / "site.zip")
    return tmp_path / "site.zip"


@pytest.fixture
async def api(registry: Registry, site: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A registry that carries it."""
    transport = httpx.ASGITransport(create_app(registry, site=site))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}") as client:
        yield client


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("path", "name", "media_type"),
    [
        ("/docs/", "index.html", "text/html; charset=utf-8"),
        ("/docs/index.html", "index.html", "text/html; charset=utf-8"),
        ("/docs/glossary.html", "glossary.html", "text/html; charset=utf-8"),
        ("/docs/guides/", "guides/index.html", "text/html; charset=utf-8"),
        ("/docs/_static/docs.css", "_static/docs.css", "text/css; charset=utf-8"),
        ("/docs/_static/docs.js", "_static/docs.js", "text/javascript; charset=utf-8"),
        ("/docs/_images/overview.svg", "_images/overview.svg", "image/svg+xml"),
        ("/docs/_downloads/agents.py", "_downloads/agents.py", "text/plain; charset=utf-8"),
    ],
)
async def test_a_file_has_its_type_and_its_bytes(api: httpx.AsyncClient, path: str, name: str, media_type: str) -> None:
    for _ in range(2):  # the second answer comes from memory
        answer = await api.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
        assert answer.text == FILES[name]
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy


async def test_a_file_is_packed_and_revalidated(api: httpx.AsyncClient) -> None:
    async with api.stream("GET", "/docs/", headers={"Accept-Encoding": "gzip"}) as answer:
        packed = b"".join([part async for part in answer.aiter_raw()])
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed).decode() == FILES["index.html"]
    plain = await api.get("/docs/", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["etag"] != answer.headers["etag"]
    again = await api.get("/docs/", headers={"Accept-Encoding": "gzip", "If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(("path", "to"), [("/docs", "/docs/"), ("/docs/guides", "/docs/guides/")])
async def test_a_folder_leads_to_its_first_page(api: httpx.AsyncClient, path: str, to: str) -> None:
    answer = await api.get(path)
    assert (answer.status_code, answer.headers["location"]) == (308, to)


@pytest.mark.sample(4)
@pytest.mark.threat(275)
@pytest.mark.parametrize(
    "path",
    [
        "/docs/absent.html",
        "/docs/../secret.txt",
        "/docs/%2e%2e/secret.txt",
        "/docs/..%2fsecret.txt",
        "/docs/guides/../../secret.txt",
        "/docs//secret.txt",
        "/docs//etc/passwd",
        "/docs/%5c..%5csecret.txt",
        "/docs/glossary.html/",
        "/docs/site.zip",
    ],
)
async def test_no_path_leads_out_of_the_site(registry: Registry, site: Path, path: str) -> None:
    """The path is sent as it is: a client would resolve its dots."""
    sent: list[dict[str, object]] = []
    scope = {
        "type": "http",
        "method": "GET",
        "http_version": "1.1",
        "scheme": "https",
        "path": httpx.URL(f"https://{ORIGIN}").copy_with(raw_path=path.encode()).path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", ORIGIN.encode()), (b"accept", b"text/html")],
        "client": ("192.0.2.1", 1),
        "server": (ORIGIN, 443),
    }

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: dict[str, object]) -> None:
        sent.append(event)

    await create_app(registry, site=site)(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 404
    assert b"outside" not in b"".join(bytes(event.get("body", b"")) for event in sent)  # type: ignore[call-overload]


async def test_a_registry_without_the_site_says_how_it_is_built(registry: Registry, tmp_path: Path) -> None:
    transport = httpx.ASGITransport(create_app(registry, site=tmp_path / "absent.zip"))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}") as api:
        for path in ("/docs", "/docs/", "/docs/glossary.html"):
            page = await api.get(path, headers={"Accept": "text/html"})
            assert page.status_code == 404
            assert "<code>make site</code>" in page.text or "make site" in page.text
            assert (await api.get(path)).json()["code"] == "http.not-found"


async def test_a_built_archive_may_change_while_it_is_served(api: httpx.AsyncClient, site: Path) -> None:
    site.write_bytes(b"broken")  # noqa: ASYNC240 (a test)
    assert (await api.get("/docs/glossary.html")).text == FILES["glossary.html"]


LISTED = """<!DOCTYPE html><html lang="en" data-content_root="../"><title>x</title><script src="/docs/docs.js" defer></script>
<details class="contents"></details><div data-list="../lists/x.json"><a href="../lists/x.json">x.json</a></div>"""


async def test_a_table_for_programs_is_shown_and_filtered(browser: Browser) -> None:
    rows = [
        {"number": number, "threat": f"<b>a `step`</b> {number}", "tests": [f"vectors/{number}.json"]} for number in range(20)
    ]
    script = (ROOT / "docs/site/treaty/static/docs.js").read_text(encoding="utf-8")
    bodies = {"/docs/a/x.html": LISTED, "/docs/docs.js": script, "/docs/lists/x.json": json.dumps(rows)}

    async def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path
        kind = {"html": "text/html", "js": "text/javascript", "json": "application/json"}[path.rpartition(".")[2]]
        headers = {"content-type": kind, "content-security-policy": CONTENT_SECURITY_POLICY}
        await route.fulfill(status=200 if path in bodies else 404, headers=headers, body=bodies.get(path, ""))

    page = await browser.new_page()
    await page.route("**/*", answer)
    await page.goto("https://registry.example/docs/a/x.html")
    shown = page.locator("tbody tr:visible")
    await page.locator("tbody tr").nth(19).wait_for()
    assert await page.locator("th").all_text_contents() == ["number", "threat", "tests"]
    assert await shown.first.locator("td").nth(1).inner_text() == "<b>a step</b> 0"
    assert await page.locator("tbody a").first.get_attribute("href") == "../vectors/0.json"
    await page.get_by_label("Filter the rows").fill("STEP 17")
    assert await shown.count() == 1 and await shown.locator("td").first.inner_text() == "17"
    await page.get_by_label("Filter the rows").fill("")
    assert await shown.count() == 20
