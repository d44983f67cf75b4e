"""Remove secrets, personal data and control characters from texts that go to the log.

Own lines are written without them. Texts of exceptions may still quote a request, a DID or the URL of a database, so every text
of a line passes `redacted`. A control character could move the cursor of the operator's terminal, or forge a line.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from treaty_consensus.printable import escaped

MAX_TEXT = 16 * 1024
"""Characters of one text in a line. A traceback keeps its end, which names the error."""

_SECRETS = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)", re.S), "[private key]"),
    (re.compile(r"PRIVATE\+KEY\+\S+"), "[private key]"),
    # The user and the password in a URL, to the last `@`. In that of a database an operator may have left a slash unescaped.
    (re.compile(r"(?i)(postgres(?:ql)?://)\S*@"), r"\1"),
    (re.compile(r"(?<=://)[^/\s'\"]+@"), ""),
    (re.compile(r"(?i)\b((?:authorization|cookie)['\"]?\s*[=:]\s*)[^\n]+"), r"\1[secret]"),
    (re.compile(r"(?i)\b(bearer|basic|digest|dsse)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 [token]"),
    # Within a name too, such as PGPASSWORD, AWS_SECRET_ACCESS_KEY and X-Amz-Signature. The tail has a bound, against long words.
    (
        re.compile(
            r"(?i)((?:password|passwd|secret|token|(?:api|access|private)[_-]?key|signature|credential)[\w-]{0,32}['\"]?\s*[=:]\s*)"
            r"(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s,;&)]+)"
        ),
        r"\1[secret]",
    ),
    # A secret of Standard Webhooks.
    (re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]+"), "[secret]"),
    # Three base64url parts: a JSON Web Token.
    (re.compile(r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*"), "[token]"),
    # Percent-encoded in a query.
    (re.compile(r"\bdid(?::|%3[Aa])[a-z0-9]+(?::|%3[Aa])[A-Za-z0-9._:%#/?&=-]+"), "[DID]"),
)
_ADDRESS = re.compile(r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)(?![\w])")

_MAX_SHOWN = 64
_addresses: set[str] = set()
"""The addresses of this registry's own nodes. They are no person's, and a line without them helps no operator."""

_WORD = re.compile(r"[0-9A-Za-z-]{1,128}")
"""One word, such as an id or a method. Each pattern above needs a space or another character, so none finds anything in it."""


def redacted(text: str) -> str:
    """Return a text without private keys, tokens, passwords, DIDs and IP addresses.

    Other control characters than line ends are escaped.
    """
    # Nearly all texts of a request's line. The patterns take a tenth of all the work for a statement.
    if _WORD.fullmatch(text):
        return text
    # The cap first, because the patterns read the whole text.
    text = text[-MAX_TEXT:]
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    # Last, because an escape would end a word for the patterns.
    return "\n".join(map(escaped, _ADDRESS.sub(_without_address, text).split("\n")))


def show_address(url: str) -> None:
    """Let lines have the address in the URL of one of this registry's own nodes, from the operator's settings."""
    with suppress(ValueError):
        host = urlsplit(url).hostname
        if host and len(_addresses) < _MAX_SHOWN:
            _addresses.add(str(ipaddress.ip_address(host)))


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
    matched = match[0]
    # A sentence may go on behind it: `::1.`, `192.0.2.7:`.
    for text in (matched, matched.rstrip("."), matched.rstrip(".:")):
        with suppress(ValueError):  # a time of day, or a version
            return matched if str(ipaddress.ip_address(text)) in _addresses else "[address]"
    return matched
