"""The whole story in a browser: search, protocol, topic, decision, and its proof, which the browser itself checks."""

from __future__ import annotations

from playwright.sync_api import Browser, expect
from populated_catalogue import ALICE
from registries import TOPIC


def test_from_a_search_to_a_verified_proof(window: Browser, populated: str) -> None:
    page = window.new_page(viewport={"width": 360, "height": 800})
    page.goto(populated)
    page.locator("main").get_by_role("searchbox").fill("product")
    page.keyboard.press("Enter")
    page.locator(".card h3 a", has_text="Product information").last.click()
    expect(page).to_have_url(f"{populated}/protocols/alice.example/product-info/1.0")
    page.locator("main").get_by_role("link", name=TOPIC).first.click()
    expect(page.locator("h1")).to_have_text(TOPIC)
    expect(page.locator(".answer").first).to_contain_text("consensus")
    page.goto(f"{populated}/ballots?topic={TOPIC}&did={ALICE.did}")
    expect(page.locator("[data-choice]").first).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="leaf").first.click()
    page.get_by_role("button", name="Check that this entry is in the log").click()
    expect(page.locator(".outcome.good")).to_contain_text("Your browser checked it.")
    page.close()
