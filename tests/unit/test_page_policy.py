"""What a page may do in a browser, directive by directive."""

from __future__ import annotations

import pytest

from treaty_registry.pages.assets import Assets
from treaty_registry.pages.renderer import CONTENT_SECURITY_POLICY, HEADERS, PAGE_REFUSAL_HEADERS, Renderer
from treaty_registry.problems import http_problem
from treaty_registry.serving.cache import ResponseCache

POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    # These three do not follow `default-src`.
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
}


@pytest.mark.threat(271, 272)
def test_the_policy_of_pages_is_whole() -> None:
    assert set(CONTENT_SECURITY_POLICY.split("; ")) == POLICY
    for headers in (dict(HEADERS), PAGE_REFUSAL_HEADERS):
        assert headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert headers["Cross-Origin-Resource-Policy"] == headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Vary"] == "Accept, Accept-Encoding"
    assert (PAGE_REFUSAL_HEADERS["Cache-Control"], PAGE_REFUSAL_HEADERS["X-Content-Type-Options"]) == ("no-store", "nosniff")


@pytest.mark.threat(271)
def test_every_template_escapes_text() -> None:
    evil = "\"'><script>alert(1)</script>&"
    problem = http_problem(400, f"`{evil}` {evil}")
    html = Renderer(evil, Assets(), ResponseCache()).text("problem.html", {"problem": problem}).decode()
    # The scripts of the page itself are files.
    assert "<script>" not in html and "&lt;script&gt;" in html and "\"'>" not in html
