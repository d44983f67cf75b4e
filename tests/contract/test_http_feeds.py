"""`/feeds`: the newest events as Atom, of the log and of a subject; escaped, bounded and cached."""

from __future__ import annotations

from urllib.parse import quote
from xml.etree import ElementTree

import httpx
import pytest
from http_api import publish, say
from registries import TOPIC, grant, publication
from signers import Signer

from treaty_consensus.events import LogEvent, Subject
from treaty_registry.registry import Registry
from treaty_registry.serving.feeds import ENTRIES, WINDOW, Feeds, atom

A = "{http://www.w3.org/2005/Atom}"


async def read(api: httpx.AsyncClient, path: str) -> ElementTree.Element:
    answer = await api.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("application/atom+xml")
    return ElementTree.fromstring(answer.content)


def titles(feed: ElementTree.Element) -> list[str | None]:
    return [entry.findtext(f"{A}title") for entry in feed.findall(f"{A}entry")]


async def test_the_log_and_each_subject_have_a_feed(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer
) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    await say(api, bob, grant(bob))
    feed = await read(api, "/feeds/log")
    assert titles(feed)[0] == "grant" and "publish" in titles(feed) and titles(feed)[-1] == "genesis"
    for kind, name in (("topic", TOPIC), ("did", alice.did), ("protocol", statement.body.uri), ("namespace", "alice.example")):
        feed = await read(api, f"/feeds/{kind}?name={quote(name)}")
        assert "publish" in titles(feed) and "grant" not in titles(feed)
        entry = feed.findall(f"{A}entry")[0]
        link = entry.find(f"{A}link")
        assert link is not None
        assert (await api.get(link.attrib["href"])).status_code == 200
        for required in ("id", "title", "updated"):  # RFC 4287 §4.1.1, §4.1.2
            assert feed.findtext(f"{A}{required}") and entry.findtext(f"{A}{required}")
    assert titles(await read(api, "/feeds/topic?name=nothing")) == []
    assert titles(await read(api, "/feeds/constitution?name=parameters")) == ["parameters"]


async def test_a_feed_is_cached_until_the_log_grows(api: httpx.AsyncClient, registry: Registry, bob: Signer) -> None:
    tag = (await api.get("/feeds/log")).headers["ETag"]
    assert (await api.get("/feeds/log", headers={"If-None-Match": tag})).status_code == 304
    await say(api, bob, grant(bob))
    answer = await api.get("/feeds/log", headers={"If-None-Match": tag})
    assert answer.status_code == 200 and answer.headers["ETag"] != tag


async def test_a_feed_has_the_newest_entries_only(api: httpx.AsyncClient, registry: Registry, bob: Signer) -> None:
    for number in range(ENTRIES + 5):
        await say(api, bob, grant(bob, number))
    feed = await read(api, f"/feeds/did?name={quote(bob.did)}")
    assert len(titles(feed)) == ENTRIES
    newest = feed.findall(f"{A}entry")[0].findtext(f"{A}id")
    assert newest == f"https://{registry.origin}/log/{registry.head.size - 1}"
    # Another reader of the same log starts with the window, and goes on from there.
    feeds = Feeds(registry)
    first = await feeds.feed("/feeds/log", None)
    assert first == await feeds.feed("/feeds/log", None)
    assert WINDOW > ENTRIES


@pytest.mark.parametrize("text", ["<script>&\"'", "]]>", "\x00\x08\ufffe", "\u202e"])
def test_foreign_text_stays_text(text: str) -> None:
    event = LogEvent(0, "publish", "ab", text, frozenset(), (text,), 2**60)
    encoded = atom("registry.example", "/feeds/log", Subject("topic", text), [event])
    feed = ElementTree.fromstring(encoded)
    content = feed.findtext(f"{A}entry/{A}content")
    assert content is not None and len(content) == len(text)
    assert [child.tag for child in feed.iter() if child.tag.endswith("script")] == []
    assert feed.findtext(f"{A}updated") == "9999-12-31T23:59:59Z"


async def test_what_has_no_feed(api: httpx.AsyncClient) -> None:
    assert (await api.get("/feeds/weather?name=a")).status_code == 400
    assert (await api.get("/feeds/topic")).status_code == 400
    assert (await api.get(f"/feeds/topic?name={'a' * 600}")).status_code == 400


async def test_pages_name_their_feeds(api: httpx.AsyncClient, alice: Signer) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    page = await api.get(f"/topics/{TOPIC}", headers={"Accept": "text/html"})
    assert 'href="/feeds/log"' in page.text
    assert 'href="/feeds/topic?name=commerce/product-info"' in page.text
