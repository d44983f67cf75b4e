"""Tell whether a domain owns a name that begins with its labels in reverse, as UCP and MCP write names.

UCP, "Authority Binding", derives the authority from a host: `example.com` owns `com.example` and `com.example.pay`, and not
`com.examplecorp.pay`. MCP writes `com.example/NAME`. The public suffix list is not consulted, as UCP says: a name below a suffix
that several parties share belongs to each of them.
"""

from __future__ import annotations

import re

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# At least two labels, and the last is no number: an IP address is no domain.
_DOMAIN = re.compile(rf"(?:{_LABEL}\.)+(?!\d+$){_LABEL}")
# Without user, and with ASCII hosts alone. What a lenient parser would repair is refused, so all parsers read the same host.
_HTTPS = re.compile(r"https://([A-Za-z0-9.-]{1,254})(?::[0-9]{1,5})?(?:[/?#][!-\[\]-~]*)?")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})+")
_MAX_HOST = 253


def https_host(url: str) -> str | None:
    """Return the host of an https URL in lower case, without a trailing dot; None for another text, and for an address or a
    single label."""
    match = _HTTPS.fullmatch(url)
    host = match[1].lower().removesuffix(".") if match else ""
    return host if len(host) <= _MAX_HOST and _DOMAIN.fullmatch(host) else None


def owns(host: str, name: str) -> bool:
    """Tell whether the domain `host` owns `name`: its labels in reverse are the name, or a prefix of it that ends at a dot.

    A name may have a path after a slash (MCP), which does not count.
    """
    labels = name.partition("/")[0].lower()
    if not _DOMAIN.fullmatch(host) or not _NAME.fullmatch(labels):
        return False
    prefix = ".".join(reversed(host.split(".")))
    return labels == prefix or labels.startswith(f"{prefix}.")


def is_schema_of(url: str, name: str) -> bool:
    """Tell whether the schema of `name` may be at this URL: UCP's derivation algorithm, steps 1 to 4."""
    host = https_host(url)
    return host is not None and owns(host, name)
