"""Pages as a browser reads them, and protocols with everything that a page of a protocol shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx
from http_api import post, publish, put
from registries import Publication, blob, publication
from signers import Signer

from treaty_consensus import canonical, kinds
from treaty_consensus.handler import DECLARATIVE, HandlerMetadata, build_wheel
from treaty_consensus.statement import Statement

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
# A reader sees a gap after these.
_APART = frozenset({"td", "th", "dt", "dd", "li", "p", "div", "h1", "h2", "h3", "h4", "span", "figcaption"})
_VOID = frozenset({"meta", "link", "input", "img", "br", "hr", "wbr"})


@dataclass
class Element:
    """An element: its tag, its attributes, and all text in it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Shown(HTMLParser):
    """A parsed page: its elements in the order of their ends."""

    elements: list[Element] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        if tag in _VOID:
            self.elements.append(element)
        else:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1].tag == tag, f"</{tag}> ends {self.open[-1].tag if self.open else 'nothing'}"
        self.elements.append(self.open.pop())
        if tag in _APART:
            self.handle_data(" ")

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """The elements of a tag with these attributes; `class_` is one of its classes."""
        class_name = attributes.pop("class_", None)
        return [
            element
            for element in self.elements
            if element.tag == tag
            and attributes.items() <= element.attributes.items()
            and (class_name is None or class_name in element.attributes.get("class", "").split())
        ]

    def section(self, name: str) -> str:
        """The text of a section, by the id of its heading."""
        (section_element,) = [element for element in self.elements if element.attributes.get("aria-labelledby") == name]
        return " ".join(section_element.text.split())

    def codes(self) -> list[str]:
        """The texts that a reader copies."""
        return [element.text for element in self.all("code")]

    def links(self) -> list[str]:
        return [element.attributes["href"] for element in self.all("a") if "href" in element.attributes]

    def check(self) -> None:
        """No script or style of the page's own, no handler of events, unique ids, and links to places that exist."""
        assert not self.open
        for element in self.elements:
            assert not [name for name in element.attributes if name.startswith("on") or name == "style"], element
            assert element.tag not in ("style", "iframe", "object", "embed", "base")
            if element.tag == "script":
                assert element.attributes["src"].startswith("/static/") and not element.text
            for name in ("href", "src", "action"):
                target = element.attributes.get(name, "/")
                assert target.startswith(("/", "#", "https://", "http://", "mailto:")) and not target.startswith("//"), target
        ids = [element.attributes["id"] for element in self.elements if "id" in element.attributes]
        assert len(ids) == len(set(ids))
        assert {link[1:] for link in self.links() if link.startswith("#")} <= set(ids)


async def page(api: httpx.AsyncClient, path: str, status: int = 200) -> Shown:
    """The page at a path, checked as far as every page must be right."""
    response = await api.get(path, headers=BROWSER)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page = Shown()
    page.feed(response.text)
    page.close()
    page.check()
    return page


ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "description": "Greets somebody.",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 100, "description": "Who is greeted."},
        "mood": {"enum": ["glad", "sad"]},
    },
    "required": ["name"],
    "additionalProperties": False,
}
GREET: dict[str, Any] = {
    "arguments": ARGUMENTS,
    "result": {"type": "string", "maxLength": 500},
    "errors": {"403": "The host does not greet this guest."},
    "idempotent": True,
    "timeout": 10,
}
FORMS: dict[str, Any] = {
    "request": {"id": "$id", "type": "request", "name": "$arguments.name", "mood": "$arguments.mood"},
    "response": {"id": "$id", "type": "response", "greeting": "$result"},
    "error": {"id": "$id", "type": "error", "code": "$code", "message": "$message"},
}
ROLES: dict[str, Any] = {
    "guest": {"peer": "host", "calls": ["greet"], "invokes": []},
    "host": {"peer": "guest", "calls": [], "invokes": ["greet"]},
}
MANIFEST: dict[str, Any] = {"operations": {"greet": GREET}, "roles": ROLES, "messages": {"greet": FORMS}}


def vector(title: str = "Ada is greeted", name: str = "Ada", answer: str = "Hello, Ada!") -> bytes:
    """A session of the host: one call, one answer."""
    received = {"received": {"data": {"json": {"id": "1", "type": "request", "name": name}}}}
    invoked = {"invoke": {"call": "1", "operation": "greet", "arguments": {"name": name}}}
    sent = {"send": {"data": {"json": {"id": "1", "type": "response", "greeting": answer}}}}
    steps = [{"event": received, "effects": [invoked]}, {"event": {"result": {"call": "1", "value": answer}}, "effects": [sent]}]
    return json.dumps({"title": title, "role": "host", "steps": steps}).encode()


async def attach(
    api: httpx.AsyncClient,
    agent: Signer,
    publication: Publication,
    manifest: Mapping[str, Any] = MANIFEST,
    *,
    vectors: Mapping[str, bytes] | None = None,
    sources: Mapping[str, bytes] | None = None,
    bundle: bytes = b"{}",
    release: str = "",
) -> Statement:
    """Attach a handler with this manifest to a publication. Without `messages` it has `sources`. `release`: its version, by
    default that of the protocol."""
    response, signed = await try_to_attach(
        api, agent, publication, manifest, vectors=vectors, sources=sources, bundle=bundle, release=release
    )
    assert response.status_code == 201, response.text
    return signed


async def try_to_attach(
    api: httpx.AsyncClient,
    agent: Signer,
    publication: Publication,
    manifest: Mapping[str, Any],
    *,
    vectors: Mapping[str, bytes] | None = None,
    sources: Mapping[str, bytes] | None = None,
    bundle: bytes = b"{}",
    release: str = "",
) -> tuple[httpx.Response, Statement]:
    """Send what `attach` sends. Return the answer and the statement."""
    files = {f"vectors/{name}": data for name, data in (vectors or {"host-hit.json": vector()}).items()}
    code = {} if "messages" in manifest else {"__init__.py": b"handler = None\n", **(sources or {})}
    entry_point = DECLARATIVE if "messages" in manifest else "treaty_handler_greeting:handler"
    about = HandlerMetadata(
        name="greeting",
        version=release or publication.body.uri.rpartition("/")[2],
        summary="Greet.",
        licence="Apache-2.0",
        entry_point=entry_point,
        protocol_uri=publication.body.uri,
        protocol_hash=publication.body.document.sha256,
        manifest=manifest,
    )
    filename, wheel = build_wheel({**code, **files}, about)
    body = kinds.Handler(publication.body.uri, publication.body.document.sha256, filename, blob(wheel), entry_point, blob(bundle))
    signed = agent.statement(body)
    for data in (wheel, bundle):
        assert (await put(api, data, signed)).status_code in (201, 204)
    return await post(api, signed), signed


async def publish_text(
    api: httpx.AsyncClient, agent: Signer, document: str, *, version: str = "1.0", name: str = "greeting", **card: Any
) -> Publication:
    """Publish a document under `https://ORIGIN/protocols/NAMESPACE/NAME/VERSION`, with a card of its own."""
    plain = publication(agent, name, version, topic="social/greeting")
    described = canonical.dumps({"title": "Greeting", "summary": "Say hello.", **card})
    data = document.encode()
    body = kinds.Publish(plain.body.uri, "social/greeting", blob(data), blob(described), "negotiated")
    made = Publication(body, data, described)
    await publish(api, agent, made)
    return made
