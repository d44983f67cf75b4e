"""Pages as a browser gets them: their elements, and the text that people see in a part of them."""

from __future__ import annotations

from html.parser import HTMLParser


class Shown(HTMLParser):
    """The elements of a page, and the text below those that have an id or a class."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag not in ("input", "meta", "link", "img", "br"):
            self._open.append(attributes.get("id") or attributes.get("class") or tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self._open), data))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, inside: str) -> str:
        """All text below the elements with this id, class or name."""
        return " ".join("".join(data for places, data in self.texts if inside in places).split())

    @property
    def titles(self) -> list[str]:
        """The titles of the cards."""
        return [data for places, data in self.texts if "card" in places and "h3" in places and places[-1] == "a"]
