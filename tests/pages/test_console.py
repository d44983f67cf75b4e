"""The console of a protocol without code: its vectors play the other side, in a real browser that sends nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page
from protocol_pages import attach, page, publish_text
from signers import Signer
from watched_requests import Watch

EXAMPLES = Path(__file__).parents[2] / "examples"
PATH = "/protocols/alice.example/greeting/1.0"
EVIL = "\"><script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"


async def appointments(api: httpx.AsyncClient, agent: Signer) -> None:
    """Publish the protocol of `examples/appointment` under the name of the tests."""
    folder = EXAMPLES / "appointment"
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["$schema"]
    vectors = {file.name: file.read_bytes() for file in (folder / "vectors").glob("*.json")}
    await attach(api, agent, await publish_text(api, agent, "# Appointment\n"), {**manifest, "interface": 2}, vectors=vectors)


async def said(page: Page) -> list[str]:
    """The lines of the session."""
    return [" ".join(line.split()) for line in await page.locator("[data-part=said] > li").all_inner_texts()]


async def test_the_vectors_answer_a_customer_who_uses_the_keyboard(
    api: httpx.AsyncClient, site: str, browser: Browser, alice: Signer, axe: str
) -> None:
    await appointments(api, alice)
    shown = await browser.new_page(viewport={"width": 360, "height": 800}, color_scheme="dark")
    watch = Watch(shown)
    await shown.goto(f"{site}{PATH}")
    loaded = len(watch.sent)
    assert await shown.locator("#console-role").input_value() == "customer" and await said(shown) == []
    assert json.loads(await shown.input_value("#console-json")) == {"id": "1", "type": "find", "day": "2030-05-02"}
    assert await shown.inner_text("[data-part=verdict]") == "It fits the form of find: request."
    await shown.get_by_label("day").focus()
    await shown.keyboard.press("Enter")
    lines = await said(shown)
    assert lines[0] == 'customer {"day":"2030-05-02","id":"1","type":"find"}' and lines[1].startswith("Recorded in ")
    assert 'office {"id":"1","type":"slot","start":"2030-05-02T09:00","minutes":30}' in lines
    assert 'Your call yields {"minutes":30,"start":"2030-05-02T09:00"}.' in lines and lines[-1] == "Your call has all items."
    # A value that breaks the schema: the interpreter of the other side refuses it, whatever the vectors say.
    await shown.get_by_label("day").fill("tomorrow")
    assert (await shown.inner_text("[data-part=verdict]")).startswith(
        "It does not fit. The arguments of find break the schema at $.day:"
    )
    await shown.get_by_role("button", name="Send").press("Enter")
    assert (await said(shown))[-1].startswith("Your call fails with 400: The arguments of find break the schema")
    # Values that no vector has: the nearest recorded answer, and the page says so.
    await shown.get_by_label("Its form").select_option(label="book: request")
    await shown.get_by_label("name", exact=False).last.fill("Grace")
    await shown.get_by_role("button", name="Send").press("Enter")
    assert [line for line in await said(shown) if line.startswith("No vector has these values. In ")]
    # The JSON itself is sent.
    await shown.fill("#console-json", '{"type": "nonsense"}')
    await shown.get_by_role("button", name="Send").press("Enter")
    assert (await said(shown))[-1] == "office sends no answer. Ignored a message without an id."
    assert not [asked for asked in watch.sent[loaded:] if "/static/mark-" not in asked] and not watch.errors
    assert await shown.evaluate("document.documentElement.scrollWidth") <= 360
    await shown.evaluate(axe)
    assert (
        await shown.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map(one => one.id))"
        )
        == []
    )


@pytest.mark.deep
async def test_an_office_answers_the_customers_of_the_vectors(
    api: httpx.AsyncClient, site: str, browser: Browser, alice: Signer
) -> None:
    await appointments(api, alice)
    shown = await browser.new_page()
    watch = Watch(shown)
    await shown.goto(f"{site}{PATH}")
    await shown.get_by_label("You are").select_option("office")
    lines = await said(shown)
    assert lines[0].startswith("customer {") and lines[1].startswith("Your agent calls your function ")
    for _ in range(120):
        if await shown.locator("#console-kind option").count():
            operation, kind = (await shown.locator("#console-kind option:checked").inner_text()).split(": ")
            assert await shown.inner_text("[data-part=verdict]") == f"It fits the form of {operation}: {kind}."
            wanted = {"find": f"{operation}: end"}.get(operation)
            if wanted:
                await shown.get_by_label("Its form").select_option(label=wanted)
            await shown.get_by_role("button", name="Send").click()
        elif await shown.locator("[data-part=next]").is_visible():
            await shown.locator("[data-part=next]").click()
        else:
            break
    lines = await said(shown)
    assert await shown.locator("[data-part=silent]").is_visible()
    assert 'The call of customer returns "B1".' in lines and "customer has all items." in lines
    # The interpreter refuses by itself what has no fitting arguments, as it does in an agent.
    assert "It does not fit, and your agent answers that by itself." in lines
    assert not watch.errors


async def test_the_vectors_are_readable_as_a_conversation_without_scripts(api: httpx.AsyncClient, alice: Signer) -> None:
    await appointments(api, alice)
    shown = await page(api, PATH)
    told = shown.section("try")
    assert "An office books a slot, and cancels the booking" in told
    asked, answered = '"type":"book","start":"2030-05-02T09:00","name":"Ada"}', 'office {"booking":"B1","id":"1","type":"booked"}'
    assert asked in told and answered in told and told.index(asked) < told.index(answered)
    assert "customer Its call fails with 502" in told, "a note says what a message alone does not"
    assert next(element for element in shown.all("div") if "data-console" in element.attributes).attributes["hidden"] == ""
    assert {script.attributes["src"].split("-")[0] for script in shown.all("script")} >= {
        "/static/declarative",
        "/static/partner",
        "/static/console",
    }


@pytest.mark.deep
@pytest.mark.threat(271)
async def test_hostile_vectors_are_text_in_the_console(
    api: httpx.AsyncClient, site: str, browser: Browser, alice: Signer
) -> None:
    operation: dict[str, Any] = {
        "arguments": {"type": "object", "properties": {EVIL: {"type": "string", "pattern": "^(a+)+$"}}},
        "result": {"type": "string"}, "errors": {}, "idempotent": True, "timeout": 10,
    }  # fmt: skip
    forms = {
        "request": {"id": "$id", "type": "ask", EVIL[:64]: EVIL, "arguments": "$arguments"},
        "response": {"id": "$id", "type": "ok", "result": "$result"},
        "error": {"id": "$id", "type": "no", "code": "$code", "message": "$message"},
    }
    roles = {
        "guest": {"peer": "host", "calls": ["greet"], "invokes": []},
        "host": {"peer": "guest", "calls": [], "invokes": ["greet"]},
    }
    asked = {"id": EVIL, "type": "ask", EVIL[:64]: EVIL, "arguments": {EVIL: "a" * 500 + "!"}}
    steps = [
        {"event": {"received": {"data": {"json": asked}}}, "effects": [{"audit": {"text": EVIL}}]},
        {"event": {"received": {"data": {"base64": "/w=="}}}, "effects": []},
        {
            "event": {"result": {"call": "1", "value": EVIL}},
            "effects": [{"send": {"data": {"json": {"id": EVIL, "type": "ok", "result": EVIL}}}}],
        },
    ]
    vector = json.dumps({"title": EVIL, "role": "host", "steps": steps}).encode()
    manifest = {"interface": 2, "operations": {"greet": operation}, "roles": roles, "messages": {"greet": forms}}
    await attach(api, alice, await publish_text(api, alice, "# Greeting\n"), manifest, vectors={"a.json": vector})
    shown = await browser.new_page()
    watch = Watch(shown)
    await shown.goto(f"{site}{PATH}")
    for role in ("guest", "host"):
        await shown.get_by_label("You are").select_option(role)
        if role == "guest":
            await shown.get_by_role("button", name="Send").click()
        assert await said(shown)
    assert await shown.title() != "run" and await shown.locator("main img").count() == 0 and not watch.errors
