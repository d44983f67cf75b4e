"""The page of a ballot without a browser: what it says of weights and epochs, its choices, and hostile texts."""

from __future__ import annotations

import httpx
import pytest
from http_api import described, problem, publish, say
from registries import TOPIC, ballot, publication
from shown_entries import HTML, Page, page
from signers import Signer

from treaty_consensus import kinds
from treaty_registry.registry import Registry

BALLOT = f"/ballots?topic={TOPIC}"
EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}"


def choices(page: Page) -> list[str | None]:
    return [attributes["data-choice"] for tag, attributes in page.tags if tag == "li" and "data-choice" in attributes]


async def test_the_choices_are_the_candidates_and_none(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    statements = [publication(alice, name) for name in ("one", "two")]
    for one in statements:
        await publish(api, alice, one)
    view = await page(api, BALLOT)
    assert choices(view) == [kinds.NONE, *(one.body.document.sha256 for one in statements)]
    (voting,) = [attributes for _, attributes in view.tags if "data-voting" in attributes]
    assert voting["data-log"] == registry.origin and voting["data-key"] == str(registry.log_key) and "hidden" in voting
    assert f"treaty vote {TOPIC} {statements[0].body.uri} none" in view.text
    assert "It counts when epoch 0 closes" in view.text


async def test_the_page_says_what_a_did_weighs(api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    path = f"{BALLOT}&did={alice.did}"
    assert "No epoch has closed yet" in (await page(api, path)).text
    await say(api, alice, ballot(registry, 0, statement.body.document.sha256))
    assert "It has voted 1 time in this topic." in (await page(api, path)).text
    assert "a did:key costs nothing" in (await page(api, f"{BALLOT}&did={registry.operator}")).text
    assert "It has not voted in this topic yet." in (await page(api, f"{BALLOT}&did={bob.did}")).text


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("topic=A", 400, "topic.name"),
        ("topic=not/there", 404, "topic.unknown"),
        (f"topic={TOPIC}&did=alice", 400, "did.syntax"),
        (f"topic={TOPIC}&did=%3Cscript%3E", 400, "did.syntax"),
        ("", 400, "http.request"),
    ],
)
async def test_a_wrong_question_is_a_page_about_that(
    api: httpx.AsyncClient, alice: Signer, query: str, status: int, code: str
) -> None:
    await publish(api, alice, publication(alice))
    response = await api.get(f"/ballots?{query}", headers=HTML)
    assert response.status_code == status and code in response.text
    assert response.headers["content-type"].startswith("text/html") and "<script>" not in response.text


async def test_the_json_needs_a_did(api: httpx.AsyncClient, alice: Signer) -> None:
    await publish(api, alice, publication(alice))
    problem(await api.get(BALLOT), 400, "http.request")
    assert (await api.get(f"{BALLOT}&did={alice.did}")).json() == {"seq": 0, "epoch": 0}


async def test_a_hostile_title_is_text(api: httpx.AsyncClient, alice: Signer) -> None:
    await publish(api, alice, described(alice, "evil", title=EVIL, summary=EVIL, topic=TOPIC))
    view = await page(api, BALLOT)
    assert EVIL in view.text and len(choices(view)) == 2
    assert not [tag for tag, attributes in view.tags if tag == "img" and attributes.get("src") == "x"]
