"""Pages as a test reads them: fetched as a browser does, with their text, links and elements."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class Page(HTMLParser):
    """The text, the links and the elements of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


async def page(api: httpx.AsyncClient, path: str) -> Page:
    response = await api.get(path, headers=HTML)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8" and "Accept" in response.headers["vary"]
    assert "style=" not in response.text and "<script>" not in response.text
    return Page(response.text)
