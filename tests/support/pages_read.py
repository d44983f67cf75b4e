"""Read pages as a browser gets them, and hold small elections for them to show."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html.parser import HTMLParser

import httpx
from registries import TOPIC, log
from signers import ORIGIN, Signer

from treaty_consensus import canonical, kinds
from treaty_registry.app import create_app
from treaty_registry.registry import Registry

_ACCEPT = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"
_VOID = {"meta", "link", "input", "img", "br", "hr"}


@asynccontextmanager
async def browsing(registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    """A browser, for which everything is of the newest head."""
    transport = httpx.ASGITransport(create_app(registry, period=0))  # type: ignore[arg-type]  # the two spell ASGI's types differently
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}", headers={"Accept": _ACCEPT}) as client:
        yield client


class Page(HTMLParser):
    """A page: its text on one line, its links, its tables, its charts and its scripts. It refuses tags that do not match."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.links: dict[str, str] = {}
        self.targets: list[str] = []
        self.charts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.handlers: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self._words: list[str] = []
        self._cell: list[str] | None = None
        self._link: tuple[str, list[str]] | None = None
        self.feed(source)
        assert not self._open, self._open

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self._words)).replace(" .", ".").replace(" :", ":")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.handlers += [name for name in values if name.startswith("on") or name == "style"]
        if tag not in _VOID:
            self._open.append(tag)
        match tag:
            case "script":
                self.scripts.append(values.get("src", ""))
            case "svg":
                assert values["role"] == "img"
                self.charts.append(values["aria-label"])
            case "table":
                self.tables.append([])
            case "tr":
                self.tables[-1].append([])
            case "td" | "th":
                self._cell = []
            case "a":
                self._link = values["href"], []
                self.targets.append(values["href"])
        if tag in ("p", "li", "td", "th", "dd", "dt", "h1", "h2", "h3", "div", "summary"):
            self._words.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag
        if tag in ("td", "th") and self._cell is not None:
            self.tables[-1][-1].append(" ".join("".join(self._cell).split()))
            self._cell = None
        if tag == "a" and self._link is not None:
            self.links[" ".join("".join(self._link[1]).split())] = self._link[0]
            self._link = None

    def handle_data(self, data: str) -> None:
        if self._open[-1:] in (["script"], ["text"]):
            return
        self._words.append(data)
        if self._cell is not None:
            self._cell.append(data)
        if self._link is not None:
            self._link[1].append(data)


async def read(browser: httpx.AsyncClient, path: str, status: int = 200) -> Page:
    """Ask for a page and read it. It runs no script but those of the registry."""
    response = await browser.get(path)
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in response.headers["content-security-policy"]
    page = Page(response.text)
    assert all(script.startswith("/static/") for script in page.scripts), page.scripts
    assert page.handlers == []
    return page


async def everybody_reports(registry: Registry, agents: Sequence[Signer], document: str, epoch: int, topic: str = TOPIC) -> None:
    """Log a report of each pair of agents."""
    for number, first in enumerate(agents):
        for second in agents[number + 1 :]:
            nid = canonical.hex_digest(f"{topic} {document} {epoch} {first.did} {second.did}".encode())
            body = kinds.Report(topic, nid, document, "agreed", epoch, registry.head.note.decode())
            await log(registry, body, first, second)
