"""The page of search, over the real application: the form, the results, and what it says when there are none."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from importlib import resources
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from http_api import described, publish, say
from registries import Web, publication
from shown_pages import Shown
from signers import ORIGIN, Signer, domain_signer

from treaty_consensus import kinds
from treaty_registry.app import create_app
from treaty_registry.catalogue.facets import VALUES
from treaty_registry.registry import Registry

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
HTMX = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
"""The SHA-256 of dist/htmx.min.js in the npm package htmx.org 2.0.11."""
# Each breaks out of another place of a page, if it is not escaped there.
ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "</title><script>alert(1)</script>",
    "</option></select><script>alert(1)</script>",
    "{{ 7 * 7 }}",
    "javascript:alert(1)",
    "\u202egnp.exe",
)


@pytest.fixture
async def browser(registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    """A client that asks for pages."""
    transport = httpx.ASGITransport(create_app(registry, period=0))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}", headers=HTML) as client:
        yield client


@pytest.fixture
def alice(web: Web) -> Signer:
    """An agent with a domain, whose document can be fetched."""
    agent = domain_signer("alice.example")
    web.serve(agent)
    return agent


async def shown(browser: httpx.AsyncClient, **params: str) -> Shown:
    response = await browser.get("/protocols", params=params)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    return Shown(response.text)


async def test_the_page_of_an_empty_registry_says_how_to_begin(browser: httpx.AsyncClient) -> None:
    page = await shown(browser)
    assert page.text("found") == "No results" and "treaty publish FOLDER" in page.text("empty")


async def test_the_form_has_every_facet_and_keeps_what_was_chosen(browser: httpx.AsyncClient, alice: Signer) -> None:
    await publish(browser, alice, publication(alice))
    page = await shown(browser)
    offered = {
        attributes["name"]: attributes for tag in ("input", "select") for attributes in page.all(tag) if "name" in attributes
    }
    assert offered.keys() == {"q", "sort", "topic", "namespace", *VALUES}
    values = {attributes["value"] for attributes in page.all("option")}
    assert {value for facet in VALUES.values() for value in facet} < values
    assert [attributes["value"] for attributes in page.all("option") if "selected" in attributes] == [""], "the best match"
    labels = {attributes["for"] for attributes in page.all("label")}
    assert labels == {attributes["id"] for name, attributes in offered.items() if name != "q"}
    page = await shown(browser, q="product", topic="commerce", state="active", handler="none", namespace="alice.example")
    inputs = {attributes["name"]: attributes["value"] for attributes in page.all("input") if "name" in attributes}
    assert inputs == {"q": "product", "topic": "commerce", "namespace": "alice.example"}
    assert [attributes["value"] for attributes in page.all("option") if "selected" in attributes] == ["", "active", "none"]
    assert len(page.titles) == 1 and page.text("found") == "1 protocol"
    assert "open" in page.all("details")[0]


async def test_a_chip_drops_one_filter_and_nothing_else(browser: httpx.AsyncClient, alice: Signer) -> None:
    await publish(browser, alice, publication(alice))
    filters = {"q": "product info", "topic": "commerce/product-info", "state": "active", "origin": "negotiated"}
    page = await shown(browser, **filters)
    chips = [link["href"] for link in page.all("a") if link.get("aria-label", "").startswith("Drop the filter")]
    rests = [{name: values[0] for name, values in parse_qs(urlsplit(chip).query).items()} for chip in chips]
    assert rests == [{name: value for name, value in filters.items() if name != left} for left in ("topic", "state", "origin")]


async def test_pages_follow_each_other_and_keep_the_filters(browser: httpx.AsyncClient, alice: Signer) -> None:
    for number in range(23):
        await publish(browser, alice, publication(alice, f"p{number}"))
    page = await shown(browser, q="product", origin="negotiated")
    assert page.text("found") == "The first 20 of at most 23" and len(page.titles) == 20
    (more,) = [link["href"] for link in page.all("a") if link.get("class") == "button"]
    following = Shown((await browser.get(more)).text)
    assert following.text("found") == "3 more, of at most 23" and len(following.titles) == 3
    assert not set(page.titles) & set(following.titles)
    assert "Best first" in page.text("results") and "Newest first" in (await shown(browser)).text("results")


async def test_an_empty_result_says_which_filter_to_drop(browser: httpx.AsyncClient, alice: Signer) -> None:
    await publish(browser, alice, publication(alice))
    page = await shown(browser, q="product", state="consensus", origin="negotiated")
    assert "drop this: state consensus ×" in page.text("empty")
    links = [link["href"] for link in page.all("a") if "Drop" not in link.get("aria-label", "")]
    assert "/protocols?q=product&origin=negotiated" in links
    page = await shown(browser, q="nothing", state="consensus")
    assert "start over" in page.text("empty") and "/protocols?q=nothing" in [link["href"] for link in page.all("a")]
    page = await shown(browser, q="nothing")
    assert "drop this: words nothing" in page.text("empty")


async def test_a_wrong_filter_is_explained_on_a_page(browser: httpx.AsyncClient) -> None:
    response = await browser.get("/protocols", params={"topic": "Not A Topic"})
    assert response.status_code == 400
    assert "lower-case names" in Shown(response.text).text("problem")


SCRIPTS = [
    ("酒店预订协议", "查询产品信息", ("预订", "产品信息", "酒店 产品", "预订 hotel")),
    ("予約プロトコル", "レストランの予約を取る。", ("予約", "レストラン", "プロトコル hotel")),
    ("بروتوكول الحجز", "حجز الغرف والأسعار", ("الحجز", "الغرف", "حَجْز")),
    ("Café réservation", "À Montréal, déjà.", ("cafe", "CAFÉ", "reservation montreal", "café hotel")),
    ("Weather 天气 API", "Ask 预报 now.", ("weather 天气", "天气api", "预报 ask hotel")),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("title", "summary", "queries"), SCRIPTS)
async def test_words_of_any_language_are_found(
    browser: httpx.AsyncClient, alice: Signer, title: str, summary: str, queries: tuple[str, ...]
) -> None:
    await publish(browser, alice, publication(alice, "another"))
    await publish(browser, alice, described(alice, "p", title=title, summary=summary, tags=("hotel",), topic="travel/booking"))
    for query in (*queries, "booking", "travel", "hotel"):
        assert (await shown(browser, q=query)).titles == [title], query


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", ATTACKS)
async def test_foreign_text_stays_text(browser: httpx.AsyncClient, alice: Signer, text: str) -> None:
    plain = await shown(browser, q="one-thing")
    allowed = {(tag, *sorted(attributes)) for tag, attributes in plain.elements}
    await publish(browser, alice, described(alice, "p", title=text, summary=text, topic="a/b"))
    await say(browser, alice, kinds.Status(publication(alice, "p").body.uri, "deprecated"))
    for path, params in (("/protocols", {}), ("/protocols", {"q": text}), ("/protocols", {"q": text, "topic": text}), ("/", {})):
        response = await browser.get(path, params=params)
        page = Shown(response.text)
        sources = [attributes.get("src", "") for attributes in page.all("script")]
        assert all(source.startswith("/static/") for source in sources)
        assert {tag for tag, _ in page.elements} <= {tag for tag, *_ in allowed} | {
            *("article", "code", "h2", "h3", "dl", "dt", "dd", "div", "section", "strong", "span", "ul", "li", "bdi", "p", "a"),
        }
        assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
        assert not [attributes["href"] for attributes in page.all("a") if attributes["href"].startswith("javascript")]
    assert Shown((await browser.get("/protocols")).text).titles == [text]


async def test_a_page_of_long_texts_is_small(browser: httpx.AsyncClient, alice: Signer) -> None:
    topic = "/".join(["t" * 39] * 4)
    for number in range(20):
        name = f"{number:x<64}"
        tags = tuple(f"{number}-{tag}".ljust(64, "x") for tag in range(16))
        statement = described(alice, name, title="𠀀" * 120, summary="𠀀" * 500, tags=tags, topic=topic)
        await publish(browser, alice, statement)
    response = await browser.get("/protocols", headers={**HTML, "Accept-Encoding": "gzip"})
    assert int(response.headers["content-length"]) < 100_000 and len(Shown(response.text).titles) == 20


@pytest.mark.threat(277)
def test_htmx_is_the_published_file() -> None:
    static = resources.files("treaty_registry.pages") / "static"
    assert hashlib.sha256((static / "htmx.js").read_bytes()).hexdigest() == HTMX
    licence = (static / "htmx-licence.txt").read_text(encoding="utf-8")
    assert "htmx 2.0.11" in licence and "Zero-Clause BSD" in licence


async def test_htmx_needs_nothing_that_the_policy_forbids(browser: httpx.AsyncClient) -> None:
    response = await browser.get("/protocols")
    page = Shown(response.text)
    (config,) = [attributes["content"] for attributes in page.all("meta") if attributes.get("name") == "htmx-config"]
    assert '"allowEval":false' in config and '"includeIndicatorStyles":false' in config
    assert "unsafe" not in response.headers["content-security-policy"]
    assert not re.search(r"hx-on|js:|<style|style=|<script>", response.text)
    (form,) = [attributes for attributes in page.all("form") if attributes.get("id") == "search"]
    assert (form["hx-get"], form["hx-select"], form["hx-push-url"]) == ("/protocols", "#results", "true")
    assert any(attributes.get("role") == "status" and attributes.get("id") == "found" for attributes in page.all("p"))
