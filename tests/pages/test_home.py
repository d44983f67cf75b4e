"""The first page, over the real application: numbers, and what changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import combinations

import httpx
import pytest
from http_api import publish, say
from registries import TOPIC, Web, ballot, log, publication
from shown_pages import Shown
from signers import NOW, ORIGIN, Signer, domain_signer

from treaty_consensus import canonical, kinds
from treaty_registry.app import create_app
from treaty_registry.pages.filters import day
from treaty_registry.registry import Registry

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
async def browser(registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    """A client that asks for pages."""
    transport = httpx.ASGITransport(create_app(registry, period=0))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}", headers=HTML) as client:
        yield client


@pytest.fixture
def agents(web: Web) -> tuple[Signer, ...]:
    """Three agents with domains."""
    agents = tuple(domain_signer(f"{name}.example") for name in ("alice", "bob", "carol"))
    web.serve(*agents)
    return agents


async def changes(browser: httpx.AsyncClient) -> Shown:
    response = await browser.get("/")
    assert response.status_code == 200
    return Shown(response.text)


async def test_an_empty_registry_says_what_will_be_here(browser: httpx.AsyncClient) -> None:
    page = await changes(browser)
    for text in ("No consensus changed lately.", "No protocol yet.", "Nothing was taken back lately."):
        assert text in page.text("columns changes")


async def test_publications_and_warnings_are_news(browser: httpx.AsyncClient, agents: tuple[Signer, ...]) -> None:
    alice = agents[0]
    for name in ("kept", "left"):
        await publish(browser, alice, publication(alice, name))
    await say(browser, alice, kinds.Status(publication(alice, "left").body.uri, "revoked"))
    page = await changes(browser)
    assert "left 1.0 revoked" in page.text("columns changes") and "kept 1.0" in page.text("columns changes")
    await say(browser, alice, kinds.Status(publication(alice, "kept").body.uri, "active"))
    assert "kept 1.0 active" not in (await changes(browser)).text("columns changes")


async def test_a_changed_consensus_is_news_and_a_kept_one_is_not(
    browser: httpx.AsyncClient, registry: Registry, agents: tuple[Signer, ...]
) -> None:
    alice, bob, carol = agents
    statement = publication(alice)
    await publish(browser, alice, statement)
    document = statement.body.document.sha256
    for epoch in range(5):
        for number, pair in enumerate(((alice, bob), (bob, carol), (alice, carol))):
            nid = canonical.hex_digest(b"%d %d" % (epoch, number))
            await log(registry, kinds.Report(TOPIC, nid, document, "agreed", epoch, registry.head.note.decode()), *pair)
        for agent in agents:
            await say(browser, agent, ballot(registry, epoch, document))
        assert await registry.decide()
    page = await changes(browser)
    text = page.text("columns changes")
    assert text.count(f"product-info 1.0 consensus in {TOPIC}, epoch") == 1
    assert "elected protocols1" in page.text("numbers").replace(" 1", "1")
    assert "by 3 of 3 voters" in page.text("topics")
    assert "could speak at once100.0 %" in page.text("numbers").replace(" 100", "100")
    reach = (await browser.get("/log", headers={"Accept": "application/json"})).json()["reach"]
    assert [at["epoch"] for at in reach] == [4, 3, 2, 1, 0]
    assert [at["able"] == at["pairs"] for at in reach] == [True, True, True, False, False]
    assert reach[-1]["able"] == "0", "nothing was elected then"


async def test_the_numbers_are_those_that_the_log_says(browser: httpx.AsyncClient) -> None:
    page = await changes(browser)
    live = {attributes["data-live"] for attributes in page.all("dd") if "data-live" in attributes}
    log_ = (await browser.get("/log", headers={"Accept": "application/json"})).json()
    assert live == {"size", "epoch"} <= log_.keys()


async def test_news_has_one_row_for_a_publisher_and_says_when(browser: httpx.AsyncClient, agents: tuple[Signer, ...]) -> None:
    alice, bob, _ = agents
    await publish(browser, bob, publication(bob, "only"))
    for version in range(8):
        await publish(browser, alice, publication(alice, "many", f"1.{version}"))
    text = (await changes(browser)).text("columns changes")
    names = "alice.example/many 1.7", "alice.example/many 1.6", "bob.example/only 1.0"
    assert [text.count(name) for name in names] == [1, 0, 1]
    assert text.count(f"in {TOPIC}, {day(NOW)}") == 2


async def test_elected_topics_come_before_all_others_by_their_use(
    browser: httpx.AsyncClient, registry: Registry, web: Web, agents: tuple[Signer, ...]
) -> None:
    fourth = domain_signer("dora.example")
    web.serve(fourth)
    for number in range(14):
        await publish(browser, agents[0], publication(agents[0], f"open-{number}", topic=f"a/t{number:02}"))
    circles = {"y/few": list(agents), "z/many": [*agents, fourth]}
    for topic in circles:
        await publish(browser, agents[1], publication(agents[1], topic[2:], topic=topic))
    for epoch in range(3):
        for topic, members in circles.items():
            document = publication(agents[1], topic[2:], topic=topic).body.document.sha256
            for number, pair in enumerate(combinations(members, 2)):
                nid = canonical.hex_digest(f"{topic} {epoch} {number}".encode())
                await log(registry, kinds.Report(topic, nid, document, "agreed", epoch, registry.head.note.decode()), *pair)
        assert await registry.decide()
    page = await changes(browser)
    topics = [attributes["href"] for attributes in page.all("a") if attributes.get("href", "").startswith("/topics/")][:12]
    assert topics[:3] == ["/topics/z/many", "/topics/y/few", "/topics/a/t00"]
    assert "6 pairs proved its use" in page.text("topics") and "3 pairs proved its use" in page.text("topics")
