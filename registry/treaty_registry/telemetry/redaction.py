"""Remove secrets and personal data from texts that go to the log.

Own lines are written without them. Texts of exceptions may still quote a request, a DID or the URL of a database, so every text
of a line passes `redacted`.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from typing import Any

MAX_TEXT = 16 * 1024
"""Characters of one text in a line. A traceback keeps its end, which names the error."""

_SECRETS = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)", re.S), "[private key]"),
    (re.compile(r"PRIVATE\+KEY\+\S+"), "[private key]"),
    # The user and the password in a URL, such as that of a database.
    (re.compile(r"(?<=://)[^/@\s'\"]+@"), ""),
    (re.compile(r"(?i)\b(bearer|basic|digest|dsse)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 [token]"),
    (
        re.compile(r"(?i)\b(password|passwd|secret|token|authorization|cookie|api[_-]?key)(['\"]?\s*[=:]\s*)[^\s,;&)]+"),
        r"\1\2[secret]",
    ),
    # Three base64url parts: a JSON Web Token.
    (re.compile(r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*"), "[token]"),
    (re.compile(r"\bdid:[a-z0-9]+:[A-Za-z0-9._:%#/?&=-]+"), "[DID]"),
)
_ADDRESS = re.compile(r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)(?![\w])")


def redacted(text: str) -> str:
    """Return a text without private keys, tokens, passwords, DIDs and IP addresses."""
    # The cap first, because the patterns read the whole text.
    text = text[-MAX_TEXT:]
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return _ADDRESS.sub(_without_address, text)


def redact(value: Any) -> Any:
    """Return a value of a line, each text of it redacted."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, dict):
        return {redacted(str(key)): redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item) for item in value]
    return redacted(repr(value))


def _without_address(match: re.Match[str]) -> str:
    found = match[0]
    # A sentence may go on behind it: `::1.`, `192.0.2.7:`.
    for text in (found, found.rstrip("."), found.rstrip(".:")):
        with suppress(ValueError):  # a time of day, or a version
            ipaddress.ip_address(text)
            return "[address]"
    return found
