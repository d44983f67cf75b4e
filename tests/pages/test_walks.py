"""A real browser walks every page: at two widths, light and dark, by keyboard, without JavaScript, and with less motion."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from page_table import Row, paths
from playwright.sync_api import Browser, ConsoleMessage, Page, Request

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
AXE = "rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})"
# What Tab must reach, and of that what it did not. A part of a closed `details` and a choice of a group are not on the way.
WATCH = """() => {
  window.reached = new Set(); window.invisible = [];
  document.addEventListener('focusin', event => {
    const style = getComputedStyle(event.target);
    window.reached.add(event.target);
    if ((style.outlineStyle === 'none' || parseFloat(style.outlineWidth) === 0) && style.boxShadow === 'none')
      window.invisible.push(event.target.outerHTML.slice(0, 200));
  });
}"""
REACHABLE = """() => [...document.querySelectorAll(
    'a[href], button:enabled, input:enabled, select:enabled, textarea:enabled, summary, [tabindex="0"]')]
  .filter(element => element.checkVisibility({visibilityProperty: true}))
  .filter(element => element.type !== 'radio' && element.tabIndex >= 0)"""
MISSED = f"""() => ({REACHABLE})()
  .filter(element => !window.reached.has(element)).map(element => element.outerHTML.slice(0, 200))"""
MOVING = """() => [...document.querySelectorAll('*')].filter(element => {
    const style = getComputedStyle(element);
    const longest = text => Math.max(...text.split(',').map(parseFloat));
    return Math.max(longest(style.transitionDuration), longest(style.animationDuration)) > 0.01
      || style.scrollBehavior === 'smooth';
  }).map(element => element.outerHTML.slice(0, 200))"""


class Watch:
    """The errors of a page, and its requests to other places."""

    def __init__(self, page: Page, url: str) -> None:
        self.errors: list[str] = []
        self._url = url
        page.on("console", self._say)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._ask)

    def _say(self, message: ConsoleMessage) -> None:
        # A page about a refusal has the status of the refusal, which the browser notes.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.errors.append(message.text)

    def _ask(self, request: Request) -> None:
        if not request.url.startswith((self._url, "data:", "blob:")):
            self.errors.append(f"it asks for {request.url}")


def show(page: Page, url: str, path: str, row: Row) -> None:
    answer = page.goto(url + path)
    assert answer is not None and answer.status == row.status, path


def test_axe_finds_what_is_wrong(window: Browser, axe: str) -> None:
    page = window.new_page()
    page.set_content('<img src="data:,"><p style="color:#ccc;background:#fff">pale</p><button></button>')
    page.evaluate(axe)
    found = {violation["id"] for violation in page.evaluate(AXE, RULES)["violations"]}
    assert {"image-alt", "color-contrast", "button-name", "html-has-lang"} <= found
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_every_page_fits_and_is_accessible(
    window: Browser, populated: str, empty: str, axe: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    context = window.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    wrong: list[str] = []
    for url in (populated, empty):
        for path, row in paths(url, empty=url == empty):
            page = context.new_page()
            watch = Watch(page, url)
            show(page, url, path, row)
            wrong += [f"{path}: {error}" for error in watch.errors]
            found = page.evaluate("document.documentElement.scrollWidth")
            if found > width:
                wrong.append(f"{path}: {found} pixels wide")
            page.evaluate(axe)
            wrong += [f"{path}: {_told(violation)}" for violation in page.evaluate(AXE, RULES)["violations"]]
            page.close()
    context.close()
    assert not wrong, "\n".join(wrong)


def _told(violation: dict[str, Any]) -> str:
    return f"{violation['id']}: " + "; ".join(node["html"][:160] for node in violation["nodes"][:3])


def test_every_control_is_reached_by_keyboard_and_shows_it(window: Browser, populated: str) -> None:
    wrong: list[str] = []
    for path, row in paths(populated):
        page = window.new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
        show(page, populated, path, row)
        page.evaluate(WATCH)
        for _ in range(int(page.evaluate(f"({REACHABLE})().length")) + 20):
            page.keyboard.press("Tab")
        wrong += [f"{path}: not reached: {missed}" for missed in page.evaluate(MISSED)]
        wrong += [f"{path}: focus is not seen: {html}" for html in page.evaluate("window.invisible")]
        page.close()
    assert not wrong, "\n".join(wrong)


def test_every_page_shows_its_content_without_javascript(window: Browser, populated: str) -> None:
    wrong: list[str] = []
    for path, row in paths(populated):
        said: list[set[str]] = []
        for is_on in (True, False):
            context = window.new_context(java_script_enabled=is_on, viewport={"width": 360, "height": 900})
            page = context.new_page()
            show(page, populated, path, row)
            assert page.locator("h1").first.is_visible(), path
            if page.evaluate("document.documentElement.scrollWidth") > 360:
                wrong.append(f"{path}: too wide without JavaScript")
            said.append(
                {" ".join(text.split()) for text in page.locator("main :is(h1, h2, h3, dt, dd, th, li)").all_inner_texts()}
            )
            context.close()
        # The ballot page is a form that scripts fill. Every other text stands in the page itself.
        if not path.startswith("/ballots") and (missing := said[0] - said[1]):
            wrong.append(f"{path}: only with JavaScript: {sorted(missing)[:5]}")
    assert not wrong, "\n".join(wrong)


def test_nothing_moves_for_those_who_want_less_motion(window: Browser, populated: str) -> None:
    context = window.new_context(reduced_motion="reduce")
    wrong: list[str] = []
    for path, row in paths(populated):
        page = context.new_page()
        show(page, populated, path, row)
        wrong += [f"{path}: {moving}" for moving in page.evaluate(MOVING)]
        page.close()
    context.close()
    assert not wrong, "\n".join(wrong)
