"""Proofs and ballots in a real browser: what it checks, what it signs, and that a key never leaves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from http_api import publish, say
from playwright.async_api import Browser, Route
from registries import TOPIC, ballot, contents, publication
from signers import Signer
from watched_requests import Watch

from treaty_consensus import canonical, kinds, statement
from treaty_consensus.log.proof import Receipt
from treaty_io.identity import Identity
from treaty_registry.registry import Registry

BALLOT = f"/ballots?topic={TOPIC}"


def _answering(body: str) -> Callable[[Route], Awaitable[None]]:
    async def answer(route: Route) -> None:
        await route.fulfill(body=body)

    return answer


@pytest.mark.deep
async def test_an_entry_is_proved_in_the_browser(
    api: httpx.AsyncClient, site: str, browser: Browser, registry: Registry, alice: Signer
) -> None:
    signed = await say(api, alice, ballot(registry, 0))
    for number in range(1, 6):
        await say(api, alice, ballot(registry, number))
    page = await browser.new_page()
    watch = Watch(page)
    await page.goto(f"{site}/statements/{signed.id}")
    await page.get_by_role("button", name="Check that this entry is in the log").click()
    assert "Your browser checked it." in await page.inner_text(".outcome.good")
    proof = Receipt.parse((await api.get(f"/proofs/{signed.id}")).content)
    await page.locator("[data-outcome] summary").click()
    steps = await page.locator(".steps").inner_text()
    assert all(one.hex() in steps for one in proof.hashes)
    assert await page.locator("svg.path").get_attribute("role") == "img"
    assert not watch.errors


@pytest.mark.deep
async def test_a_wrong_receipt_or_statement_is_refused_in_the_browser(
    api: httpx.AsyncClient, site: str, browser: Browser, registry: Registry, alice: Signer
) -> None:
    signed, other = await say(api, alice, ballot(registry, 0)), await say(api, alice, ballot(registry, 1))
    good = (await api.get(f"/proofs/{signed.id}")).text
    first = good.split("\n")[2]
    wrong = {
        "/proofs/": good.replace(first, canonical.b64encode(bytes(32))),
        "/statements/": other.leaf.decode(),
    }
    for part, body in wrong.items():
        page = await browser.new_page()
        await page.goto(f"{site}/statements/{signed.id}")
        await page.route(f"**{part}*", _answering(body))
        await page.get_by_role("button", name="Check that this entry is in the log").click()
        assert await page.inner_text(".outcome.bad")
        assert await page.locator(".outcome.good").count() == 0


@pytest.mark.threat(273)
async def test_a_ballot_is_ordered_by_keyboard_signed_sent_and_proved(
    api: httpx.AsyncClient, site: str, browser: Browser, registry: Registry, alice: Signer, tmp_path: Path
) -> None:
    statements = [publication(alice, name) for name in ("one", "two", "three")]
    for one in statements:
        await publish(api, alice, one)
    hashes = [one.body.document.sha256 for one in statements]
    page = await browser.new_page()
    watch = Watch(page)
    await page.goto(f"{site}{BALLOT}&did={alice.did}")
    assert "It has not voted in this topic yet." in await page.inner_text("main")
    for digest in hashes:
        await page.locator(f'[data-choice="{digest}"] [data-do=rank]').click()
    # one, two, three, none: move three to the top by arrow keys, tie one with it, and put two below none.
    handle = page.locator(f'[data-choice="{hashes[2]}"] .handle')
    await handle.focus()
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("ArrowUp")
    assert "place 1 of 4" in await page.inner_text("[data-part=live]")
    assert await handle.evaluate("element => element === document.activeElement")
    await page.locator(f'[data-choice="{hashes[0]}"] [data-do=tie]').click()
    await page.locator(f'[data-choice="{hashes[1]}"] [data-do=down]').click()
    path = tmp_path / "identity.json"
    Identity(alice.did, alice.key_id, alice.private_key).save(path)
    await page.set_input_files("[data-part=file]", path)
    await page.get_by_role("button", name="Use this key").click()
    assert alice.key_id in await page.inner_text("[data-part=key] .good")
    await page.get_by_role("button", name="Sign and send").click()
    assert "Your ballot is leaf" in await page.inner_text("[data-part=outcome] > .good")
    assert "Your browser checked it." in await page.inner_text("[data-part=outcome]")
    (leaf,) = (await registry.leaves([registry.head.size - 1])).values()
    logged = statement.parse(leaf)
    assert isinstance(logged.body, kinds.Ballot) and logged.by == (alice.key_id,)
    assert logged.body.tiers == ((hashes[2], hashes[0]), (kinds.NONE,), (hashes[1],))
    statement.verify(logged, {alice.key_id: alice.public_key})
    # The command below makes the same ballot, and so does the page when it is opened again.
    uris = {one.body.document.sha256: one.body.uri for one in statements}
    command = f"treaty vote {TOPIC} {uris[hashes[2]]},{uris[hashes[0]]} none {uris[hashes[1]]}"
    assert command in await page.inner_text("[data-command]")
    again = await browser.new_page()
    await again.goto(f"{site}{BALLOT}&did={alice.did}")
    assert command in await again.inner_text("[data-command]")
    order = "[...document.querySelectorAll('[data-part=ranked] [data-choice]')].map((item) => item.dataset.choice)"
    assert await again.evaluate(order) == [hashes[2], hashes[0], kinds.NONE, hashes[1]]
    assert await again.locator("[data-part=ranked] [data-tied]").count() == 1
    # The watch sees what is sent in base64: the signature is in the request, and the key is not.
    assert watch.says(logged.signatures[0])
    assert not watch.says(alice.private_key.private_bytes_raw()) and not watch.errors
    assert await page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0


@pytest.mark.deep
async def test_choices_are_dragged(api: httpx.AsyncClient, site: str, browser: Browser, alice: Signer) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    page = await browser.new_page()
    await page.goto(f"{site}{BALLOT}")
    await page.locator("[data-do=rank]:visible").click()
    order = "[...document.querySelectorAll('[data-part=ranked] [data-choice]')].map((item) => item.dataset.choice)"
    assert await page.evaluate(order) == [statement.body.document.sha256, kinds.NONE]
    handle, last = page.locator("[data-part=ranked] .handle").first, page.locator('[data-choice="none"]')
    await handle.scroll_into_view_if_needed()
    start, end = await handle.bounding_box(), await last.bounding_box()
    assert start and end
    await page.mouse.move(start["x"] + 5, start["y"] + 5)
    await page.mouse.down()
    await page.mouse.move(start["x"] + 5, end["y"] + end["height"] + 5, steps=8)
    await page.mouse.up()
    assert await page.evaluate(order) == [kinds.NONE, statement.body.document.sha256]


@pytest.mark.deep
async def test_a_refusal_of_the_log_is_shown_in_place(
    api: httpx.AsyncClient, site: str, browser: Browser, registry: Registry, alice: Signer, tmp_path: Path
) -> None:
    await publish(api, alice, publication(alice))
    before = await contents(registry)
    page = await browser.new_page()
    watch = Watch(page)
    await page.goto(f"{site}{BALLOT}")
    assert await page.locator("[data-part=send]").is_disabled()
    await page.get_by_role("button", name="Make a key here").click()
    await page.wait_for_selector("[data-part=weight] .warn")
    assert "has no vote" in await page.inner_text("[data-part=weight]")
    await page.get_by_role("button", name="Sign and send").click()
    refusal = await page.inner_text("[data-part=outcome] .bad")
    assert "electorate.no-principal" in refusal and "What to do:" in refusal
    assert await contents(registry) == before
    async with page.expect_download() as loading:
        await page.get_by_role("button", name="Download it").click()
    download = await loading.value
    path = tmp_path / "identity.json"
    await download.save_as(path)
    path.chmod(0o600)
    identity = Identity.load(path)
    assert identity.did in await page.inner_text("[data-part=key]")
    assert not watch.says(identity.private_key.private_bytes_raw()) and not watch.errors


@pytest.mark.deep
async def test_a_wrong_key_is_refused_in_place(api: httpx.AsyncClient, site: str, browser: Browser, alice: Signer) -> None:
    await publish(api, alice, publication(alice))
    page = await browser.new_page()
    await page.goto(f"{site}{BALLOT}")
    for text in ("", "nonsense", "{}", "AAAA"):
        await page.fill("[data-part=secret]", text)
        await page.get_by_role("button", name="Use this key").click()
        assert await page.inner_text("[data-part=key] .bad")
        assert await page.locator("[data-part=send]").is_disabled()


@pytest.mark.deep
async def test_pages_work_without_scripts(
    api: httpx.AsyncClient, site: str, browser: Browser, registry: Registry, alice: Signer
) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    context = await browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 800})
    page = await context.new_page()
    await page.goto(f"{site}{BALLOT}")
    assert f"treaty vote {TOPIC} {statement.body.uri} none" in await page.inner_text("main")
    assert await page.locator("[data-voting]").is_hidden()
    await page.fill("main [name=did]", alice.did)
    await page.get_by_role("button", name="What does it weigh?").click()
    assert "No epoch has closed yet" in await page.inner_text("main")
    await page.goto(f"{site}/log")
    await page.get_by_role("link", name="A version of a protocol is published.").click()
    assert f"treaty verify {statement.body.uri}" in await page.inner_text("main")
    assert await page.get_by_role("button", name="Check that this entry").count() == 0
