"""What holds for the answer of every page: its size, its policy, its caching, and its links."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx
import pytest
from page_table import BROWSER, Row, paths
from pages_read import Page

from treaty_registry.pages.renderer import CONTENT_SECURITY_POLICY

MAX_PAGE = 100_000  # bytes, compressed, with everything that a page loads
MAX_CRAWLED = 1_500
DOCS = Path(__file__).parents[2] / "docs"
_LOADED = re.compile(r'<(?:link rel="(?:stylesheet|icon)" href|script src|img src)="([^"]+)"')
_TEXT = re.compile(r'href="(/[^"]*)"')


@pytest.fixture
def client(populated: str) -> httpx.Client:
    """A browser that keeps nothing."""
    return httpx.Client(base_url=populated, headers={**BROWSER, "Accept-Encoding": "gzip"}, timeout=60)


@pytest.fixture
def rows(populated: str) -> list[tuple[str, Row]]:
    """All pages."""
    return paths(populated)


def test_every_page_is_small_with_all_that_it_loads(client: httpx.Client, rows: list[tuple[str, Row]]) -> None:
    sizes: dict[str, int] = {}
    for path, _ in rows:
        html = client.get(path).text
        loaded = set(_LOADED.findall(html))
        assert len(loaded) >= 3 and all(file.startswith("/static/") for file in loaded), path
        assert "url(" not in "".join(client.get(file).text for file in loaded if file.endswith(".css")), (
            "a style sheet loads more"
        )
        # As it is sent: a script that is small may be sent as it is.
        sizes[path] = sum(_sent(client, file) for file in (path, *loaded))
    assert not {path: size for path, size in sizes.items() if size > MAX_PAGE}


def _sent(client: httpx.Client, path: str) -> int:
    with client.stream("GET", path) as answer:
        return sum(len(part) for part in answer.iter_raw())


def test_every_page_has_the_policy_and_is_whole(client: httpx.Client, rows: list[tuple[str, Row]]) -> None:
    for path, row in rows:
        answer = client.get(path)
        headers = answer.headers
        assert (answer.status_code, headers["content-type"]) == (row.status, "text/html; charset=utf-8"), path
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert (headers["referrer-policy"], headers["x-content-type-options"]) == ("no-referrer", "nosniff"), path
        assert {name.strip() for name in headers["vary"].split(",")} == {"Accept", "Accept-Encoding"}, path
        assert headers["cache-control"] == ("no-cache" if row.status == 200 else "no-store"), path
        assert not re.search(r"<style|style=|<script>| on[a-z]+=", answer.text), path
        page = Page(answer.text)
        assert page.handlers == [] and all(script.startswith("/static/") for script in page.scripts)
        ids = re.findall(r' id="([^"]+)"', answer.text)
        assert len(ids) == len(set(ids)), path
    assert "unsafe" not in CONTENT_SECURITY_POLICY and "default-src 'none'" in CONTENT_SECURITY_POLICY


def test_a_page_that_did_not_change_is_not_sent_again(client: httpx.Client, rows: list[tuple[str, Row]]) -> None:
    for path, row in rows:
        if row.status != 200:
            continue
        first = client.get(path)
        again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), path
        assert again.headers["etag"] == first.headers["etag"] and "content-type" not in again.headers
        assert {"vary", "cache-control", "content-security-policy"} <= again.headers.keys()
        assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_head_has_the_headers_of_get(client: httpx.Client, rows: list[tuple[str, Row]]) -> None:
    for path, row in rows:
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (row.status, b""), path
        kept = {"content-type", "content-length", "etag", "vary", "cache-control", "content-security-policy", "content-encoding"}
        assert {name: head.headers.get(name) for name in kept} == {name: got.headers.get(name) for name in kept}, path


def test_each_encoding_has_its_own_tag_and_none_is_forced(client: httpx.Client, rows: list[tuple[str, Row]]) -> None:
    for path, row in rows:
        if row.status != 200:
            continue
        packed = client.get(path, headers={"Accept-Encoding": "gzip"})
        for refused in ("gzip;q=0", "identity", "br", "gzip;q=0.0, br"):
            plain = client.get(path, headers={"Accept-Encoding": refused})
            assert "content-encoding" not in plain.headers, (path, refused)
            assert plain.text == packed.text and plain.headers["etag"] != packed.headers["etag"]
        assert packed.headers["content-encoding"] == "gzip"
        assert int(packed.headers["content-length"]) < len(gzip.compress(plain.content, 1)) + 200


def test_a_program_gets_json_at_the_same_place(client: httpx.Client, rows: list[tuple[str, Row]]) -> None:
    for path, row in rows:
        if not row.json or (path.startswith("/ballots") and "did=" not in path):
            continue
        answer = client.get(path, headers={"Accept": "application/json"})
        expected = {200: "application/json", 404: "application/problem+json", 400: "application/problem+json"}
        assert answer.headers["content-type"] == expected[row.status], path
        assert answer.status_code == row.status


def test_files_that_pages_load_are_kept_for_ever(client: httpx.Client) -> None:
    for file in set(_LOADED.findall(client.get("/protocols").text)):
        answer = client.get(file)
        assert "immutable" in answer.headers["cache-control"] and answer.headers["x-content-type-options"] == "nosniff"
        stem, _, suffix = file.rpartition(".")
        assert client.get(f"{stem[:-1]}{'0' if stem[-1] != '0' else '1'}.{suffix}").status_code == 404


def test_every_link_of_every_page_leads_somewhere(client: httpx.Client, rows: list[tuple[str, Row]]) -> None:
    known: dict[str, str] = {}
    queue = [(path, path) for path, row in rows if row.status == 200]
    broken: list[str] = []
    while queue:
        path, from_ = queue.pop(0)
        if path in known or len(known) >= MAX_CRAWLED:
            continue
        answer = client.get(path, follow_redirects=False)
        known[path] = answer.headers.get("content-type", "")
        if answer.status_code not in (200, 301, 302, 307, 308):
            broken.append(f"{from_} -> {path}: {answer.status_code}")
        if not known[path].startswith("text/html"):
            continue
        for link in sorted({urljoin(path, found.replace("&amp;", "&")) for found in _TEXT.findall(answer.text)}):
            target = urlsplit(link)
            if target.path.startswith("/docs/"):
                broken += [] if _is_written(target.path) else [f"{path} -> {link}: no such document"]
            elif not target.netloc:
                queue.append((urldefrag(link).url, path))
    assert len(known) > len(rows)
    assert not broken, "\n".join(broken[:40])


def _is_written(path: str) -> bool:
    """Whether the site has this page: it is built from `docs`, and a registry in a test carries no built one."""
    name = path.removeprefix("/docs/")
    return not name or (DOCS / name).with_suffix(".md").is_file() or (DOCS / "site" / name).with_suffix(".md").is_file()
