"""The whole story in a browser: search, protocol, topic, ballot, decision, and its proof, which the browser itself checks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
from http_api import serving
from playwright.async_api import Browser, Page, expect
from populated_catalogue import AGENTS, ALICE, BOB, Draft
from ports import free_port
from registries import TOPIC, Web, publication
from signers import Signer, domain_signer, signed
from watched_requests import Watch

from treaty_consensus import canonical, kinds, statement
from treaty_io.identity import Identity
from treaty_registry.registry import Registry

MADE = (publication(ALICE, "product-info"), publication(BOB, "catalogue-query"))
WINNER, LOSER = MADE[0].body.document.sha256, MADE[1].body.document.sha256


@dataclass(frozen=True)
class Look:
    """A person, and how that person looks at the pages."""

    person: Signer
    width: int
    theme: Literal["light", "dark"]
    by_keyboard: bool


def _person(domain: str) -> Signer:
    """The agent of a person, which reports by a key that is not the one the page makes."""
    agent = domain_signer(domain)
    return replace(agent, key_id=f"{agent.did}#reports")


LOOKS = (
    Look(_person("erin.example"), 360, "light", by_keyboard=True),
    Look(_person("frank.example"), 1440, "dark", by_keyboard=False),
    Look(_person("grace.example"), 360, "dark", by_keyboard=False),
    Look(_person("heidi.example"), 1440, "light", by_keyboard=True),
)


@pytest.mark.deep
async def test_from_a_search_to_a_verified_proof(registry: Registry, web: Web, browser: Browser, tmp_path: Path) -> None:
    """Four people vote one after another, and an epoch closes after each. In the end their choice is the consensus."""
    people = [look.person for look in LOOKS]
    web.serve(*AGENTS, *people)
    draft = Draft()
    for offer, agent in zip(MADE, AGENTS, strict=False):
        draft.publish(agent, offer)
    await draft.log(registry)
    await _report(registry, people, 0)
    assert await registry.decide()
    async with serving(registry, free_port(), period=0) as site:
        for epoch, look in enumerate(LOOKS, 1):
            context = await browser.new_context(
                viewport={"width": look.width, "height": 900}, color_scheme=look.theme, has_touch=look.width == 360
            )
            page = await context.new_page()
            watch = Watch(page)
            await _find_the_ballot(page, site)
            secret = await _vote(page, look, web, epoch, tmp_path)
            (leaf,) = (await registry.leaves([registry.head.size - 1])).values()
            await _report(registry, people, epoch)
            assert await registry.decide()
            await _check_the_decision(page, look, epoch, is_consensus=epoch >= 3)
            # The watch sees the signature within the base64 of a request, so it would see the key.
            assert watch.says(statement.parse(leaf).signatures[0])
            assert not watch.says(secret) and not watch.errors
            # htmx keeps the address of a search; a key is kept nowhere.
            evaluation = await page.evaluate("[...Object.keys(localStorage), ...Object.keys(sessionStorage), document.cookie]")
            assert set(evaluation) <= {"htmx-current-path-for-history", ""}
            await context.close()


async def _report(registry: Registry, people: list[Signer], epoch: int) -> None:
    """Log that each pair of agents agreed on each protocol in this epoch."""
    note, draft = registry.head.note.decode(), Draft()
    agents = [*AGENTS, *people]
    for offer in MADE:
        for first, second in _pairs(agents):
            nid = canonical.hex_digest(f"{epoch} {offer.body.uri} {first.did} {second.did}".encode())
            body = kinds.Report(TOPIC, nid, offer.body.document.sha256, "agreed", epoch, note)
            draft.statements.append(signed(body, first, second))
    await draft.log(registry)


def _pairs(agents: list[Signer]) -> Iterator[tuple[Signer, Signer]]:
    yield from ((first, second) for place, first in enumerate(agents) for second in agents[place + 1 :])


async def _find_the_ballot(page: Page, site: str) -> None:
    await page.goto(site)
    await page.locator("main").get_by_role("searchbox").fill("product")
    await page.keyboard.press("Enter")
    await page.locator(".card h3 a", has_text="product-info").first.click()
    await expect(page).to_have_url(f"{site}/protocols/alice.example/product-info/1.0")
    await page.locator("main").get_by_role("link", name=TOPIC).first.click()
    await expect(page.locator("h1")).to_have_text(TOPIC)
    await page.get_by_role("link", name="Vote in this topic").click()
    await expect(page.locator("[data-choice]").first).to_be_visible()


async def _vote(page: Page, look: Look, web: Web, epoch: int, folder: Path) -> bytes:
    """Make a key on the page and a ballot, send it, and return the secret key."""
    did = look.person.did
    await page.get_by_text("The DID of a key", exact=True).click()
    await page.locator("[data-part=did]").fill(did)
    await page.get_by_role("button", name="Make a key here").click()
    await expect(page.locator("[data-part=weight]")).to_contain_text(f"{did} weighs 1, as of epoch {epoch - 1}.")
    _add_key(web, did, await page.locator("[data-part=document] pre").inner_text())
    async with page.expect_download() as loading:
        await page.get_by_role("button", name="Download it").click()
    path = folder / f"{epoch}.json"
    await (await loading.value).save_as(path)
    path.chmod(0o600)
    await _rank(page, by_keyboard=look.by_keyboard)
    order = "[...document.querySelectorAll('[data-part=ranked] [data-choice]')].map((item) => item.dataset.choice)"
    assert await page.evaluate(order) == [WINNER, LOSER, kinds.NONE]
    await page.get_by_role("button", name="Sign and send").click()
    outcome = page.locator("[data-part=outcome]")
    await expect(outcome).to_contain_text(f"It counts when epoch {epoch} closes.")
    await expect(outcome).to_contain_text("Your browser checked it.")
    return Identity.load(path).private_key.private_bytes_raw()


def _add_key(web: Web, did: str, text: str) -> None:
    """Serve the document that the page shows, beside the key of the agent."""
    data, document = json.loads(web.documents[did]), json.loads(text)
    for name in ("verificationMethod", "authentication"):
        document[name] += data[name]
    web.documents[did] = json.dumps(document).encode()


async def _rank(page: Page, *, by_keyboard: bool) -> None:
    """Rank the loser first, then move the winner over it."""
    for choice in (LOSER, WINNER):
        await page.locator(f'[data-choice="{choice}"] [data-do=rank]').click()
    handle, first = page.locator(f'[data-choice="{WINNER}"] .handle'), page.locator(f'[data-choice="{LOSER}"]')
    if by_keyboard:
        await handle.focus()
        await page.keyboard.press("ArrowUp")
        return
    await handle.scroll_into_view_if_needed()
    start, end = await handle.bounding_box(), await first.bounding_box()
    assert start and end
    await page.mouse.move(start["x"] + 5, start["y"] + 5)
    await page.mouse.down()
    await page.mouse.move(start["x"] + 5, end["y"] + 5, steps=8)
    await page.mouse.up()


async def _check_the_decision(page: Page, look: Look, epoch: int, *, is_consensus: bool) -> None:
    await page.get_by_role("link", name="The topic", exact=True).click()
    await expect(page.locator("h1")).to_have_text(TOPIC)
    if is_consensus:
        await expect(page.locator(".answer")).to_contain_text("Speak product-info 1.0")
    await page.get_by_text("The voters as a table").click()
    voter = page.get_by_role("row").filter(has=page.get_by_role("link", name=look.person.did))
    await expect(voter).to_contain_text("product-info 1.0")
    await expect(voter).to_contain_text("ballot")
    await page.locator("#verify ~ dl").get_by_role("link", name="leaf").click()
    await expect(page.locator("h1")).to_contain_text("the result of a topic")
    await expect(page.locator("main")).to_contain_text(str(epoch))
    await page.get_by_role("button", name="Check that this entry is in the log").click()
    await expect(page.locator(".outcome.good")).to_contain_text("Your browser checked it.")
