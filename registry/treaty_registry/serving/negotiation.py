"""Choose the form of a resource by the `Accept` header (RFC 9110 §12.5.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from litestar.datastructures.headers import Accept

from .representation import BUNDLE, JSON

Form = Literal["json", "md", "bundle", "html"]

_OFFERS: dict[str, Form] = {JSON: "json", "text/markdown": "md", BUNDLE: "bundle", "text/html": "html"}


# Parsing costs more than the rest of a cached answer. Clients choose the header, so the memory is bounded.
@lru_cache(maxsize=512)
def preferred_form(accept: bytes, forms: tuple[Form, ...] = ("json", "md", "bundle")) -> Form | None:
    """Return the form among `forms` that the value of an `Accept` header prefers.

    Without a header (`b""`) it is the first form. None when no form is acceptable.
    """
    if not accept:
        return forms[0]
    # A browser asks for HTML. Of a resource without a page it gets the JSON.
    offers = {media_type: form if form in forms else "json" for media_type, form in _OFFERS.items() if form in (*forms, "html")}
    match = Accept(accept.decode("latin-1")).best_match([*offers])
    return None if match is None else offers[match]


def prefers_html(accept: bytes) -> bool:
    """Return whether the value of an `Accept` header prefers a page to JSON, as that of a browser does."""
    return b"text/html" in accept and preferred_form(accept, ("json", "html")) == "html"


def page_of(target: str) -> str:
    """Return the cache key of the page at a target. No target begins in this way."""
    return f"html {target}"


def split_form(path: str) -> tuple[str, Form | None]:
    """Split a path into the path without its suffix, and the form of the suffix. No topic and no version ends in such
    a suffix."""
    stem, _, suffix = path.rpartition(".")
    match suffix:
        case "json" | "md" | "bundle":
            return stem, suffix
    return path, None
