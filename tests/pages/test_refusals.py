"""A browser gets each refusal as a page, a program as JSON, and both say the same."""

from __future__ import annotations

import httpx
import pytest
from page_table import BROWSER

from treaty_registry.pages.renderer import CONTENT_SECURITY_POLICY
from treaty_registry.registry import Registry

REFUSED = {
    "an unknown path": ("/nothing-here", 404),
    "an unknown protocol": ("/protocols/alice.example/nothing/1.0", 404),
    "no topic": ("/topics/No%20Topic", 400),
    "a long query": (f"/protocols?q={'x' * 9_000}", 414),
    "a NUL": ("/topics/a%00b", 400),
    "markup in the path": ("/topics/%3Cscript%3Ealert(1)%3C%2Fscript%3E", 400),
    "a wrong number": ("/log?before=x", 400),
}


@pytest.mark.sample(3)
@pytest.mark.threat(271)
@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_is_a_page_for_a_browser(api: httpx.AsyncClient, registry: Registry, name: str) -> None:
    path, status = REFUSED[name]
    size = registry.head.size
    plain, page = await api.get(path), await api.get(path, headers=BROWSER)
    assert (plain.status_code, plain.headers["content-type"]) == (status, "application/problem+json")
    assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert plain.json()["code"] in page.text and "<script>alert" not in page.text
    assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    for answer in (plain, page):
        assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == ("no-store", "nosniff")
    head = await api.head(path, headers=BROWSER)
    assert (head.status_code, head.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert registry.head.size == size


async def test_the_header_of_a_refusal_stays_with_its_page(api: httpx.AsyncClient) -> None:
    page = await api.get("/statements", headers=BROWSER)
    assert page.status_code == 405 and "POST" in page.headers["allow"] and "405" in page.text


async def test_a_program_that_sends_gets_json_whatever_it_accepts(api: httpx.AsyncClient, registry: Registry) -> None:
    size = registry.head.size
    answer = await api.post("/statements", content=b"{", headers={**BROWSER, "Content-Type": "application/json"})
    assert answer.headers["content-type"] == "application/problem+json" and answer.status_code == 400
    assert registry.head.size == size
