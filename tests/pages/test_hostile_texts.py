"""Hostile texts in every place where a stranger's text stands: none becomes a script, a request or markup."""

from __future__ import annotations

import re
from functools import partial
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from depth import FULL
from hostile_texts import PAYLOADS
from playwright import sync_api
from populated_catalogue import AGENTS, HOSTILE_TOPIC, IN_A_PACKAGE
from visits import browser, visit

from treaty_registry.pages import prose

_VOID = {"meta", "link", "input", "img", "br", "hr", "path", "rect", "line", "circle", "polyline"}
_NEVER = {"style", "iframe", "object", "embed", "base", "video", "audio", "math", "template"}
_SAFE = {"", "https", "http", "mailto"}
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
# Read from the tree that the browser built. A page's own form has `hx-` attributes, which no text may add elsewhere.
FOUND = """() => [...document.querySelectorAll('*')].filter(element =>
    [...element.attributes].some(({name, value}) => /^on|^style$|^srcdoc$/.test(name)
      || /^(data-)?hx-/.test(name) && element.id !== 'search'
      || /^(href|src|action|formaction|xlink:href)$/.test(name)
        && !['http:', 'https:', 'mailto:'].includes(new URL(value, 'https://here.example').protocol))
    || element.localName === 'script' && !element.getAttribute('src')?.startsWith('/static/')
    || /^(style|iframe|object|embed|base|video|audio|math|template)$/.test(element.localName))
  .map(element => element.outerHTML.slice(0, 200)).concat(window.__xss ? ['it ran'] : [])"""
# Each place of a request that a page repeats or explains, with `{}` for the text.
PLACES = (
    "/protocols?q={}",
    "/protocols?topic={}",
    "/protocols?namespace={}",
    "/protocols?state={}",
    "/protocols?q=p&cursor={}",
    "/protocols/{}/p/1.0",
    "/protocols/alice.example/{}/1.0",
    "/protocols/alice.example/p0/{}",
    "/protocols/alice.example/{}",
    "/topics?after={}",
    "/topics/{}",
    "/identities/{}",
    "/statements/{}",
    "/ballots?topic={}",
    f"/ballots?topic={HOSTILE_TOPIC}&did={{}}",
    "/log?before={}",
    "/{}",
)


class Strict(HTMLParser):
    """A page whose tags must match; it notes elements and attributes that no text may make."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        if self._open:
            self.wrong.append(f"open: {self._open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.wrong += [f"{tag} {name}" for name in attributes if name.startswith("on") or name == "style"]
        self.wrong += [value for name in ("href", "src", "action") if _scheme(value := attributes.get(name, "/")) not in _SAFE]
        is_foreign = tag == "script" and not attributes.get("src", "").startswith("/static/")
        if is_foreign or tag in _NEVER:
            self.wrong.append(tag)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"</{tag}>")


def _scheme(url: str) -> str:
    """The scheme as a browser reads it: it leaves out controls and white space. "" for a relative reference."""
    match = _SCHEME.match("".join(character for character in url if character > " "))
    return match.group(1).lower() if match else ""


@pytest.fixture(scope="module")
def page(window: sync_api.Browser, hostile: str) -> sync_api.Page:
    """One page, which notes the errors of all that it shows."""
    return window.new_page()


@pytest.fixture
def errors(page: sync_api.Page, hostile: str) -> list[str]:
    """Violations of the policy, dialogs, and requests to other places, from now on."""
    messages: list[str] = []

    def refuse(dialog: sync_api.Dialog) -> None:
        messages.append(dialog.message)
        dialog.dismiss()

    page.on("console", lambda message: messages.append(message.text) if "Content Security" in message.text else None)
    page.on("dialog", refuse)
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((hostile, "data:")) else messages.append(request.url))
    return messages


def _keep_url(urls: list[str], request: sync_api.Request) -> None:
    urls.append(request.url)


@pytest.mark.deep
def test_the_corpus_attacks_a_page_without_protection(window: sync_api.Browser) -> None:
    """At least half of the payloads do harm where a page has neither escaping nor a policy. The others need other places."""
    page = window.new_page()  # one for all: each further one is a process of the browser
    urls: list[str] = []
    page.route("**/*", lambda route: route.abort())
    page.on("request", partial(_keep_url, urls))
    harmful = 0
    payloads = PAYLOADS[:: 1 if FULL else 5]
    for payload in payloads:
        page.goto("about:blank")  # the harm of the payload before ends with its document
        urls.clear()
        page.set_content(f"<main>{payload}</main>", wait_until="domcontentloaded")
        harmful += bool(page.evaluate(FOUND)) or any("attacker" in url for url in urls)
    page.close()
    assert len(PAYLOADS) >= 80 and harmful > len(payloads) // 2


@pytest.mark.deep
@pytest.mark.threat(271)
def test_texts_of_protocols_stay_texts(page: sync_api.Page, hostile: str, errors: list[str]) -> None:
    wrong: list[str] = []
    for number, payload in list(enumerate(PAYLOADS))[:: 1 if FULL else 8]:
        namespace = AGENTS[number % 4].did.removeprefix("did:wba:")
        path = f"/protocols/{namespace}/p{number}/1.0"
        visit(page, hostile + path)
        wrong += [f"{payload!r}: {evaluation}" for evaluation in page.evaluate(FOUND)]
        if number % IN_A_PACKAGE == 0:
            assert page.locator("[id^=operation-]").count() == len(PAYLOADS[number : number + IN_A_PACKAGE])
            assert page.locator(".handler").inner_text() and payload in (page.locator("#operation-o0").text_content() or "")
        if _plain(page.locator("h1").first.text_content() or "") != _plain(payload[:120]):
            wrong.append(f"{payload!r}: the title is {page.locator('h1').first.text_content()!r}")
    assert not wrong and not errors, "\n".join([*wrong, *errors])


@pytest.mark.threat(271)
def test_lists_of_hostile_texts_stay_texts(page: sync_api.Page, hostile: str, errors: list[str]) -> None:
    wrong: list[str] = []
    both = "/protocols/alice.example/p0?from=1.0&to=2.0"
    lists = ("/", "/protocols?limit=100", f"/topics/{HOSTILE_TOPIC}", f"/ballots?topic={HOSTILE_TOPIC}", "/log")
    for path in (*lists, both, "/protocols/alice.example/p0/2.0", *(f"/identities/{agent.did}" for agent in AGENTS)):
        visit(page, hostile + path)
        wrong += [f"{path}: {evaluation}" for evaluation in page.evaluate(FOUND)]
        assert page.locator("main#main").count() == 1, path
    visit(page, hostile + both)
    assert page.locator(".changes li").count() > 20 and page.locator(".diff ins").count() > 20
    visit(page, f"{hostile}/protocols?limit=100")
    texts = {_plain(text) for text in page.locator(".card h3 a").all_text_contents()}
    assert len(texts & {_plain(payload[:120]) for payload in PAYLOADS}) >= 90
    assert not wrong and not errors, "\n".join([*wrong, *errors])


@pytest.mark.deep
@pytest.mark.threat(271)
def test_texts_that_are_searched_in_the_documentation_stay_texts(page: sync_api.Page, hostile: str, errors: list[str]) -> None:
    visit(page, f"{hostile}/docs/search.html?q=checkpoint")
    page.locator("#search-results li").nth(3).wait_for()
    usual, wrong = page.evaluate(FOUND), list[str]()  # the scripts of the search itself
    for payload in PAYLOADS[:: len(PAYLOADS) // 12]:
        visit(page, f"{hostile}/docs/search.html?q={quote(payload, safe='')}")
        page.wait_for_load_state("networkidle")  # the index is read, and what it found stands on the page
        wrong += [f"{payload!r}: {evaluation}" for evaluation in page.evaluate(FOUND) if evaluation not in usual]
    assert usual and not wrong and not errors, "\n".join([*wrong, *errors])


@pytest.mark.deep
@pytest.mark.threat(271)
@pytest.mark.parametrize("place", PLACES)
def test_texts_of_requests_stay_texts(page: sync_api.Page, hostile: str, errors: list[str], place: str) -> None:
    wrong: list[str] = []
    with browser(hostile) as client:
        for payload in PAYLOADS:
            path = place.format(quote(payload, safe=""))
            answer = client.get(path)
            assert answer.status_code < 500, (path, answer.text)
            assert "script-src 'self'" in answer.headers["content-security-policy"], path
            wrong += [f"{payload!r}: {evaluation}" for evaluation in Strict(answer.text).wrong]
    for payload in PAYLOADS[:: len(PAYLOADS) // 8]:
        visit(page, hostile + place.format(quote(payload, safe="")))
        wrong += [f"{payload!r}: {evaluation}" for evaluation in page.evaluate(FOUND)]
    assert not wrong and not errors, "\n".join([*wrong, *errors])


@pytest.mark.threat(271)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_markdown_becomes_nothing_else(payload: str) -> None:
    for document in (payload, f"- {payload}", f"> {payload}", f"**{payload}**", f"[{payload}](https://a.example)"):
        assert not Strict(str(prose.render(document.encode()).html)).wrong


def _plain(text: str) -> str:
    return " ".join(text.split())
