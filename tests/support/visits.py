"""Ask as a person does: when a registry says that it cannot answer now, ask again after the time that it names.

Its database waits three seconds for a connection, which a machine with other work may exceed. A registry that stays unavailable
fails the test, because there are few tries.
"""

from __future__ import annotations

import time

import httpx
from page_table import BROWSER
from playwright.sync_api import Page, Response

_TRIES = 5


def visit(page: Page, url: str) -> Response:
    """Open a page, and return its answer."""
    tries = 1
    while True:
        answer = page.goto(url)
        assert answer is not None, url
        pause = _pause(answer.status, answer.headers.get("retry-after"))
        if not pause or tries == _TRIES:
            return answer
        time.sleep(pause)
        tries += 1


class _Patient(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(_TRIES):
            answer = super().handle_request(request)
            if not (pause := _pause(answer.status_code, answer.headers.get("retry-after"))):
                break
            answer.read()  # a kept connection has no rest of an answer in it
            time.sleep(pause)
        return answer


def browser(url: str, encoding: str = "gzip") -> httpx.Client:
    """Return a browser without scripts, which keeps nothing."""
    headers = {**BROWSER, "Accept-Encoding": encoding}
    return httpx.Client(base_url=url, headers=headers, timeout=60, transport=_Patient())


def _pause(status: int, retry_after: str | None) -> float:
    return float(retry_after) if status == 503 and retry_after else 0
