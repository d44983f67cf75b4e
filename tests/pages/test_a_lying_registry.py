"""A registry that lies to the pages in a real browser: its receipts and checkpoints are shown as wrong. And names of keys."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

import httpx
import pytest
from http_api import publish, say
from playwright.async_api import Browser, Page, Route
from registries import TOPIC, ballot, contents, publication
from signers import Signer
from watched_requests import Watch

from treaty_consensus import canonical
from treaty_consensus.log.note import KeyType, SignerKey, sign
from treaty_registry.registry import Registry

BALLOT = f"/ballots?topic={TOPIC}"


def answering(body: str) -> Callable[[Route], Awaitable[None]]:
    async def answer(route: Route) -> None:
        if route.request.method == "POST" or not route.request.is_navigation_request():
            await route.fulfill(body=body)
        else:
            await route.continue_()

    return answer


def lies(receipt: str, registry: Registry) -> Mapping[str, tuple[str, str]]:
    """What is wrong → the receipt, and a part of the reason that a reader sees."""
    clock = f"{registry.origin}/clock"
    line = next(line for line in receipt.splitlines() if line.startswith(f"— {clock} "))
    data = canonical.b64decode(line.split()[2], limit=1_000)
    forged = canonical.b64encode(data[:12] + bytes(64))
    later = canonical.b64encode(data[:11] + bytes([data[11] ^ 1]) + data[12:])
    first = receipt.split("\n")[2]
    head, note = receipt.split("\n\n", 1)
    # A checkpoint of another log, whole and signed, by a key of the same name, too.
    text = note[: note.rindex("\n\n") + 1]
    key = SignerKey(registry.origin, KeyType.ED25519, bytes(32))
    other = SignerKey("other.example", KeyType.ED25519, bytes(32))
    elsewhere = sign(text.replace(registry.origin, other.name, 1), [other]).decode()
    return {
        "a wrong hash": (receipt.replace(first, canonical.b64encode(bytes(32))), "does not lead to the root"),
        "another index": (re.sub(r"index \d+", "index 0", receipt), "The path"),
        "a forged cosignature": (receipt.replace(line, f"— {clock} {forged}"), f"The signature of {clock} does not verify"),
        "another time": (receipt.replace(line, f"— {clock} {later}"), f"The signature of {clock} does not verify"),
        "no cosignature": (receipt.replace(line + "\n", ""), f"not cosigned once by {clock}"),
        "another log": (f"{head}\n\n{elsewhere}", "not signed once by the key"),
        "another key": (f"{head}\n\n{sign(text, [key]).decode()}", "not signed once by the key"),
        "nothing": ("", "This is not a receipt."),
    }


@pytest.mark.deep
@pytest.mark.threat(280)
async def test_a_false_receipt_is_shown_as_wrong_with_its_entry(
    api: httpx.AsyncClient, site: str, browser: Browser, registry: Registry, alice: Signer
) -> None:
    signed = await say(api, alice, ballot(registry, 0))
    await say(api, alice, ballot(registry, 1))
    good = (await api.get(f"/proofs/{signed.id}")).text
    page = await browser.new_page()
    for what, (receipt, reason) in lies(good, registry).items():
        await page.goto(f"{site}/statements/{signed.id}")
        await page.route("**/proofs/*", answering(receipt))
        await page.get_by_role("button", name="Check that this entry is in the log").click()
        assert reason in await page.inner_text(".outcome.bad"), what
        assert await page.locator(".outcome.good").count() == 0, what
        await page.unroute("**/proofs/*")
    await page.get_by_role("button", name="Check that this entry is in the log").click()
    await page.wait_for_selector(".outcome.good")
    await page.locator("[data-outcome] summary").click()
    assert f"The clock {registry.origin}/clock" in await page.inner_text(".steps")


async def _rank_and_import(page: Page, site: str, alice: Signer, name: str = "") -> None:
    await page.goto(f"{site}{BALLOT}")
    await page.locator("[data-do=rank]:visible").first.click()
    await page.fill("[data-part=secret]", canonical.b64encode(alice.private_key.private_bytes_raw()))
    await page.locator("summary", has_text="The DID of a key").click()
    await page.fill("[data-part=did]", alice.did)
    await page.fill("[data-part=key-id]", name)
    await page.get_by_role("button", name="Use this key").click()


@pytest.mark.deep
@pytest.mark.threat(280)
async def test_a_ballot_with_a_lying_receipt_is_no_success(
    api: httpx.AsyncClient, site: str, browser: Browser, registry: Registry, alice: Signer
) -> None:
    signed = await publish(api, alice, publication(alice))
    page = await browser.new_page()
    # Of another statement, so that it is whole and of this log; then one with a forged cosignature.
    other = (await api.get(f"/proofs/{signed.id}")).text
    for receipt in (other, lies(other, registry)["a forged cosignature"][0]):
        await page.route("**/statements", answering(receipt))
        await _rank_and_import(page, site, alice)
        await page.get_by_role("button", name="Sign and send").click()
        text = await page.inner_text("[data-part=outcome] .bad")
        assert "its receipt proves nothing" in text and re.search("[0-9a-f]{64}", text)
        assert await page.locator("[data-part=outcome] .good").count() == 0
        await page.unroute("**/statements")


@pytest.mark.deep
@pytest.mark.threat(280)
async def test_no_ballot_claims_a_false_checkpoint(
    api: httpx.AsyncClient, site: str, browser: Browser, registry: Registry, alice: Signer
) -> None:
    await publish(api, alice, publication(alice))
    before = await contents(registry)
    note = (await api.get("/checkpoint")).text
    page = await browser.new_page()
    for checkpoint in (note.replace("\n", "\n1", 1), note.replace(registry.origin, "other.example"), "", "<script>1</script>"):
        await page.route("**/checkpoint", answering(checkpoint))
        await _rank_and_import(page, site, alice)
        await page.get_by_role("button", name="Sign and send").click()
        assert await page.inner_text("[data-part=outcome] .bad")
        await page.unroute("**/checkpoint")
    assert await contents(registry) == before


@pytest.mark.deep
async def test_a_key_signs_under_the_name_that_the_log_has_for_it(
    api: httpx.AsyncClient, site: str, browser: Browser, registry: Registry, alice: Signer
) -> None:
    await publish(api, alice, publication(alice))
    page = await browser.new_page()
    await _rank_and_import(page, site, alice, f"{alice.did}#another")
    assert f"It signs as {alice.key_id}." in await page.inner_text("[data-part=key] .good")
    assert not await page.inner_text("[data-part=document]")
    await page.get_by_role("button", name="Sign and send").click()
    assert "Your ballot is leaf" in await page.inner_text("[data-part=outcome] > .good")


@pytest.mark.deep
async def test_a_key_takes_no_name_that_the_log_has_for_another(
    api: httpx.AsyncClient, site: str, browser: Browser, registry: Registry, alice: Signer, bob: Signer
) -> None:
    await publish(api, alice, publication(alice))
    before = await contents(registry)
    page = await browser.new_page()
    await page.goto(f"{site}{BALLOT}")
    await page.locator("summary", has_text="The DID of a key").click()
    await page.fill("[data-part=did]", alice.did)
    # Another key under the name of the logged one: said before anything is signed.
    await page.fill("[data-part=key-id]", alice.key_id)
    await page.fill("[data-part=secret]", canonical.b64encode(bob.private_key.private_bytes_raw()))
    await page.get_by_role("button", name="Use this key").click()
    assert f"The log knows {alice.key_id} as another key. Name this one" in await page.inner_text("[data-part=key] .bad")
    assert await page.locator("[data-part=send]").is_disabled()
    # A new key has a free name, and the page says what it would cost.
    await page.get_by_role("button", name="Make a key here").click()
    text = await page.inner_text("[data-part=key] .good")
    assert alice.key_id not in text and re.search(rf"It signs as {re.escape(alice.did)}#key-\d+\.", text)
    assert "the DID begins anew" in await page.inner_text("[data-part=document] .warn")
    assert await contents(registry) == before


@pytest.mark.deep
@pytest.mark.threat(273)
async def test_a_key_in_the_field_of_the_did_is_not_sent(
    api: httpx.AsyncClient, site: str, browser: Browser, alice: Signer
) -> None:
    await publish(api, alice, publication(alice))
    secret = alice.private_key.private_bytes_raw()
    page = await browser.new_page()
    await page.goto(f"{site}{BALLOT}")
    watch = Watch(page)
    await page.locator("summary", has_text="The DID of a key").click()
    for button in ("Use this key", "Make a key here"):
        await page.fill("[data-part=secret]", canonical.b64encode(secret))
        await page.fill("[data-part=did]", canonical.b64encode(secret))
        await page.get_by_role("button", name=button).click()
        assert "not a did:key, did:wba or did:web" in await page.inner_text("[data-part=key] .bad")
    # The form that asks the registry takes nothing but a DID either.
    await page.fill("main form [name=did]", canonical.b64encode(secret))
    await page.get_by_role("button", name="What does it weigh?").click()
    assert await page.evaluate("document.querySelector('main form [name=did]').validity.patternMismatch")
    assert all("/static/" in sent for sent in watch.sent) and not watch.says(secret)
