"""The form of the URL of a registry, a mirror or a witness."""

from __future__ import annotations

from urllib.parse import urlsplit

from treaty_consensus.errors import Malformed

from .codes import ClientRegistryCode

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def parse_base_url(text: str) -> str:
    """Check a registry's URL and return it without a slash at its end. Raises `Malformed` (`registry.url`)."""
    try:
        parts = urlsplit(text)
        # Read for its check only: `urlsplit` finds a bad port when it is asked for.
        _ = parts.port
    except ValueError as error:
        raise _bad_url(text) from error
    # http only on this machine, because that traffic crosses no network.
    local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    plain = parts.username is None and not parts.query and not parts.fragment and parts.hostname and text.isprintable()
    if not plain or not (parts.scheme == "https" or local) or len(text) > 512:
        raise _bad_url(text)
    return text.rstrip("/")


def _bad_url(text: str) -> Malformed:
    return Malformed(
        ClientRegistryCode.URL,
        f"Not the URL of a registry: {text[:120]!r}.",
        fix="Use https://HOST, or http:// with localhost, 127.0.0.1 or [::1].",
    )
