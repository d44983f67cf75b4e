"""A real browser walks every page: at two widths, light and dark, by keyboard, without JavaScript, and with less motion.

Each page is opened once with scripts and once without, because opening it costs more than looking at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import pytest
from depth import FULL
from page_table import Row, kinds, paths
from playwright.sync_api import Browser, ConsoleMessage, Page, Request
from visits import visit

WIDTHS = (1440, 360)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
LOOKS = list(product(WIDTHS, THEMES)) if FULL else list(zip(WIDTHS, THEMES, strict=True))
"""axe reads a page for half a second, once for each of these."""
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
SCROLLED = "document.documentElement.scrollWidth"
FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
SAID = "main :is(h1, h2, h3, dt, dd, th, li)"


@dataclass
class Walk:
    """Faults that the walk found, by their kind, each with the path of its page."""

    faults: dict[str, list[str]] = field(default_factory=dict)
    pages: int = 0

    def note(self, kind: str, path: str, *details: object) -> None:
        self.faults.setdefault(kind, []).extend(f"{path}: {one}" for one in details)

    def assert_none(self, kind: str) -> None:
        assert self.pages > (50 if FULL else 6)
        assert not self.faults.get(kind), "\n".join(self.faults[kind])


@dataclass
class Window:
    """A window, with the errors of the page that it shows, and that page's requests to other places."""

    page: Page
    errors: list[str] = field(default_factory=list)
    _url: str = ""

    def __post_init__(self) -> None:
        self.page.on("console", self._say)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._ask)

    def show(self, url: str, path: str, row: Row) -> None:
        self._url = url
        self.errors.clear()
        assert visit(self.page, url + path).status == row.status, path

    def texts(self) -> set[str]:
        return {" ".join(text.split()) for text in self.page.locator(SAID).all_inner_texts()}

    def _say(self, message: ConsoleMessage) -> None:
        # A page about a refusal has the status of the refusal, which the browser notes.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.errors.append(message.text)

    def _ask(self, request: Request) -> None:
        if not request.url.startswith((self._url, "data:", "blob:")):
            self.errors.append(f"it asks for {request.url}")


@pytest.fixture(scope="module")
def walk(window: Browser, populated: str, empty: str, axe: str) -> Walk:
    """All pages of a registry, and those of an empty one."""
    walk = Walk()
    scripted = Window(window.new_page(reduced_motion="reduce"))
    plain = Window(window.new_page(java_script_enabled=False, viewport={"width": 360, "height": 900}))
    for url in (populated, empty) if FULL else (populated,):
        for path, row in kinds(paths(url, empty=url == empty))[:: 1 if FULL else 2]:
            walk.pages += 1
            name = path if url == populated else f"{path} (empty)"
            scripted.show(url, path, row)
            texts = scripted.texts()
            _look(scripted, axe, walk, name)
            _tab_through(scripted.page, walk, name)
            walk.note("error", name, *scripted.errors)
            plain.show(url, path, row)
            _read_plain(plain, texts, walk, name)
    return walk


def _look(window: Window, axe: str, walk: Walk, name: str) -> None:
    page = window.page
    page.evaluate(axe)
    for width, theme in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        page.evaluate(FRAME)  # scripts that watch sizes run before a frame is drawn
        look = f"{name} at {width}, {theme}"
        if (wide := page.evaluate(SCROLLED)) > width:
            walk.note("width", look, f"{wide} pixels wide")
        walk.note("axe", look, *map(_told, page.evaluate(AXE, RULES)["violations"]))
    walk.note("motion", name, *page.evaluate(MOVING))


def _told(violation: Mapping[str, Any]) -> str:
    return f"{violation['id']}: " + "; ".join(node["html"][:160] for node in violation["nodes"][:3])


def _tab_through(page: Page, walk: Walk, name: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.evaluate(WATCH)
    for _ in range(int(page.evaluate(f"({REACHABLE})().length")) + 20):
        page.keyboard.press("Tab")
    walk.note("unreached", name, *page.evaluate(MISSED))
    walk.note("unseen focus", name, *page.evaluate("window.invisible"))


def _read_plain(window: Window, texts: set[str], walk: Walk, name: str) -> None:
    if not window.page.locator("h1").first.is_visible():
        walk.note("plain", name, "no heading")
    if (wide := window.page.evaluate(SCROLLED)) > 360:
        walk.note("plain", name, f"{wide} pixels wide")
    # Scripts fill the form of a ballot and find words of the documentation. Every other text stands in the page itself.
    if not name.startswith(("/ballots", "/docs/search")) and (missing := texts - window.texts()):
        walk.note("plain", name, f"only with JavaScript: {sorted(missing)[:5]}")


def test_axe_finds_what_is_wrong(window: Browser, axe: str) -> None:
    page = window.new_page()
    page.set_content('<img src="data:,"><p style="color:#ccc;background:#fff">pale</p><button></button>')
    page.evaluate(axe)
    violations = {violation["id"] for violation in page.evaluate(AXE, RULES)["violations"]}
    assert {"image-alt", "color-contrast", "button-name", "html-has-lang"} <= violations
    page.close()


def test_axe_finds_nothing_on_any_page(walk: Walk) -> None:
    walk.assert_none("axe")


def test_no_page_is_wider_than_its_window(walk: Walk) -> None:
    walk.assert_none("width")


def test_no_page_has_an_error_or_asks_others(walk: Walk) -> None:
    walk.assert_none("error")


def test_every_control_is_reached_by_keyboard(walk: Walk) -> None:
    walk.assert_none("unreached")


def test_the_focus_is_seen_on_every_control(walk: Walk) -> None:
    walk.assert_none("unseen focus")


def test_every_page_shows_its_content_without_javascript(walk: Walk) -> None:
    walk.assert_none("plain")


def test_nothing_moves_for_those_who_want_less_motion(walk: Walk) -> None:
    walk.assert_none("motion")
