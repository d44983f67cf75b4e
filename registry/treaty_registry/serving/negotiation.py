"""Choose the form of a resource by the `Accept` header (RFC 9110 §12.5.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from litestar.datastructures.headers import Accept

from .representation import BUNDLE, JSON

Form = Literal["json", "md", "bundle"]

# A browser asks for HTML; it gets the JSON.
_OFFERS: dict[str, Form] = {JSON: "json", "text/markdown": "md", BUNDLE: "bundle", "text/html": "json"}


# Parsing costs more than the rest of a cached answer. Clients choose the header, so the memory is bounded.
@lru_cache(maxsize=512)
def preferred_form(accept: bytes, forms: tuple[Form, ...] = ("json", "md", "bundle")) -> Form | None:
    """Return the form among `forms` that the value of an `Accept` header prefers.

    Without a header (`b""`) it is the first form. None when no form is acceptable.
    """
    if not accept:
        return forms[0]
    offered = [media_type for media_type, form in _OFFERS.items() if form in forms]
    match = Accept(accept.decode("latin-1")).best_match(offered)
    return None if match is None else _OFFERS[match]


def split_form(path: str) -> tuple[str, Form | None]:
    """Split a path into the path without its suffix, and the form of the suffix. No topic and no version ends in such
    a suffix."""
    stem, _, suffix = path.rpartition(".")
    match suffix:
        case "json" | "md" | "bundle":
            return stem, suffix
    return path, None
