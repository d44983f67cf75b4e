"""Everything that a page of a real browser sends, so that a test can search it for a secret."""

from __future__ import annotations

import re
from urllib.parse import quote

from playwright.async_api import Page, Request

from treaty_consensus import canonical

_BASE64 = re.compile(r"[A-Za-z0-9+/]{32,}={0,2}")


class Watch:
    """Everything that a page asks for, and its errors."""

    def __init__(self, page: Page) -> None:
        self.sent: list[str] = []
        self.errors: list[str] = []
        page.on("request", self._note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if "Content Security" in message.text else None)

    def _note(self, request: Request) -> None:
        self.sent.append("\n".join([request.method, request.url, str(request.headers), request.post_data or ""]))

    def says(self, secret: bytes) -> bool:
        """Whether a request has these bytes in a usual spelling, also within base64."""
        texts = [secret.hex(), quote(canonical.b64encode(secret)), canonical.b64encode(secret).rstrip("=")]
        texts += [text.replace("+", "-").replace("/", "_") for text in texts]
        return any(text in sent for text in texts for sent in [*self.sent, *map(_decoded, self.sent)])


def _decoded(sent: str) -> str:
    """What is in the base64 of a request, as hexadecimal digits and as text."""
    decoded = [canonical.b64decode(text, limit=100_000) for text in _BASE64.findall(sent) if len(text) % 4 == 0]
    return "\n".join(data.hex() + data.decode("utf-8", errors="replace") for data in decoded)
