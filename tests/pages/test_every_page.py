"""What holds for the answer of every page: its size, its policy, its caching, and its links."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import httpx
import pytest
from depth import FULL
from page_table import Row, paths
from visits import browser

from treaty_registry.pages.renderer import CONTENT_SECURITY_POLICY

MAX_PAGE = 100_000  # bytes, compressed, with everything that a page loads
MAX_CRAWLED = 3_000


class Tags(HTMLParser):
    """The links of a page, the files that it loads, its ids, and each part that a strict policy forbids."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: set[str] = set()
        self.ids: list[str] = []
        self.forbidden: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if tag == "a" and "href" in attributes else []
        # A browser takes one picture of a `<picture>`, and a lazy one only when a reader scrolls to it.
        if tag != "source" and attributes.get("loading") != "lazy":
            self.loaded |= {value for name in ("src", "srcset", "poster", "data") if (value := attributes.get(name))}
        self.loaded |= {attributes["href"]} if tag == "link" and attributes.get("rel") != "alternate" else set()
        self.forbidden += [f"{tag} {name}" for name in attributes if name.startswith("on") or name == "style"]
        if tag in ("style", "iframe", "object", "embed", "base") or (tag == "script" and "src" not in attributes):
            self.forbidden.append(tag)


@pytest.fixture
def client(populated: str) -> httpx.Client:
    """A browser that keeps nothing."""
    return browser(populated)


@pytest.fixture
def rows(populated: str) -> list[tuple[str, Row]]:
    """All pages."""
    return paths(populated)


def test_every_page_is_small_with_all_that_it_loads(
    client: httpx.Client, rows: list[tuple[str, Row]], documentation: Path
) -> None:
    written = [f"/docs/{name}" for name in zipfile.ZipFile(documentation).namelist() if name.endswith(".html")] if FULL else []
    assert len(written) > 50 or not FULL
    known: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for path in {*written, *(path for path, _ in rows)}:
        loaded = {urljoin(path, file) for file in Tags(client.get(path).text).loaded}
        assert len(loaded) >= 3 and all(file.startswith(("/static/", "/docs/")) for file in loaded), (path, loaded)
        known |= {file: _sent(client, file) for file in loaded - known.keys()}
        sizes[path] = _sent(client, path) + sum(known[file] for file in loaded)
    styles = [client.get(file).text for file in known if file.endswith(".css")]
    assert styles and "url(" not in "".join(styles), "a style sheet loads more"
    assert not {path: size for path, size in sizes.items() if size > MAX_PAGE}


def _sent(client: httpx.Client, path: str) -> int:
    """The bytes as they are sent: a script that is small may be sent as it is."""
    with client.stream("GET", path) as answer:
        return sum(len(part) for part in answer.iter_raw())


@pytest.mark.threat(271, 272)
def test_every_page_has_the_policy_and_is_whole(client: httpx.Client, rows: list[tuple[str, Row]]) -> None:
    for path, row in rows:
        answer = client.get(path)
        headers = answer.headers
        assert (answer.status_code, headers["content-type"]) == (row.status, "text/html; charset=utf-8"), path
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert (headers["referrer-policy"], headers["x-content-type-options"]) == ("no-referrer", "nosniff"), path
        assert {name.strip() for name in headers["vary"].split(",")} == {"Accept", "Accept-Encoding"}, path
        assert headers["cache-control"] == ("no-cache" if row.status == 200 else "no-store"), path
        tags = Tags(answer.text)
        assert tags.forbidden == [], path
        assert len(tags.ids) == len(set(tags.ids)), path
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
        names = {"content-type", "content-length", "etag", "vary", "cache-control", "content-security-policy", "content-encoding"}
        assert {name: head.headers.get(name) for name in names} == {name: got.headers.get(name) for name in names}, path


@pytest.mark.threat(278)
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


@pytest.mark.threat(278)
def test_a_program_gets_json_at_the_same_place(client: httpx.Client, rows: list[tuple[str, Row]]) -> None:
    for path, row in rows:
        if not row.json or (path.startswith("/ballots") and "did=" not in path):
            continue
        answer = client.get(path, headers={"Accept": "application/json"})
        expected = {200: "application/json", 404: "application/problem+json", 400: "application/problem+json"}
        assert answer.headers["content-type"] == expected[row.status], path
        assert answer.status_code == row.status


def test_files_that_pages_load_are_kept_for_ever(client: httpx.Client) -> None:
    for file in Tags(client.get("/protocols").text).loaded:
        answer = client.get(file)
        assert "immutable" in answer.headers["cache-control"] and answer.headers["x-content-type-options"] == "nosniff"
        stem, _, suffix = file.rpartition(".")
        assert client.get(f"{stem[:-1]}{'0' if stem[-1] != '0' else '1'}.{suffix}").status_code == 404


@pytest.mark.deep
def test_every_link_of_every_page_leads_somewhere(client: httpx.Client, rows: list[tuple[str, Row]]) -> None:
    """Also the links that those pages have, the documentation's too, and the part of a page that a link names."""
    answers: dict[str, Tags | None] = {}
    links_of: list[tuple[str, str]] = []
    broken: list[str] = []
    queue = [(path, "the table") for path, row in rows if row.status == 200]
    while queue:
        path, source = queue.pop()
        if path in answers:
            continue
        answer = client.get(path, follow_redirects=True)
        is_page = answer.headers.get("content-type", "").startswith("text/html")
        answers[path] = tags = Tags(answer.text) if is_page else None
        if answer.status_code != 200:
            broken.append(f"{source} -> {path}: {answer.status_code}")
        links = [*_internal(answer.url.raw_path.decode(), tags)] if tags else []
        links_of += [(link, path) for link in links]
        queue += [(urldefrag(link).url, path) for link in links]
        assert len(answers) < MAX_CRAWLED
    for link, source in links_of:
        target, fragment = urldefrag(link)
        if fragment and (tags := answers[target]) and unquote(fragment) not in tags.ids:
            broken.append(f"{source} -> {link}: no such part")
    assert sum(path.startswith("/docs/") for path in answers) > 50 < len(answers)
    assert not broken, "\n".join(sorted(set(broken))[:40])


def _internal(path: str, tags: Tags) -> Iterator[str]:
    """The links of a page to its own server."""
    for link in {urljoin(path, found) for found in tags.links}:
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            yield link
