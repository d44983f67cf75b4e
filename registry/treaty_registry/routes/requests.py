"""Read the parts of a request strictly and with limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, urlencode

from litestar import Request
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from treaty_consensus.canonical import parse_decimal
from treaty_consensus.errors import Malformed, TooLarge

from ..codes import HttpCode
from ..networks import TrustedProxies
from ..serving.negotiation import Form, preferred_form, prefers_html, split_form

if TYPE_CHECKING:
    from litestar.types import Receive

BODY_SECONDS = 30
"""Seconds for a body to arrive, because it holds memory until then."""

HttpRequest: TypeAlias = Request[Any, Any, State]


async def read_body(request: HttpRequest, limit: int) -> bytes:
    """Return the body, as `receive_body` does."""
    return await receive_body(request.receive, request.headers.get("content-length", "0"), limit)


async def receive_body(receive: Receive, announced: str, limit: int) -> bytes:
    """Return the body, which has at most `limit` bytes and must arrive within `BODY_SECONDS`.

    `announced`: the value of `Content-Length`, "0" without one.

    Raises `TooLarge` as soon as it is known to be larger, `Malformed` when it breaks off, and a 408 when it is late.
    """
    try:
        # An announced length over the limit is refused before any byte is read.
        parse_decimal(announced, limit=limit)
    except Malformed as error:
        raise _too_large(limit) from error
    received = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":  # also when a chunked body is not encoded in chunks
                    raise Malformed(HttpCode.REQUEST, "The body of the request broke off, or is not encoded as its head says.")
                received += message.get("body", b"")
                more = message.get("more_body", False)
                # Again while bytes arrive: a chunked body announces no length.
                if len(received) > limit:
                    raise _too_large(limit)
    except TimeoutError as error:
        raise HTTPException(status_code=408) from error
    return bytes(received)


def media_type(request: HttpRequest) -> str:
    """Return the media type of the body, without parameters."""
    return essence(request.headers.get("content-type", ""))


def essence(content_type: str) -> str:
    """Return the media type in a `Content-Type`, without parameters."""
    return content_type.partition(";")[0].strip().lower()


def source(request: HttpRequest, proxies: TrustedProxies) -> str | None:
    """Return the IP address that a request comes from, if known: the other end's, or the one that a trusted proxy names."""
    peer = request.client.host if request.client else None
    return proxies.client(peer, request.headers.getall("x-forwarded-for", []))


def target(path: str, **query: str | int | None) -> str:
    """Return the cache key of an answer: the path, and the query parameters that were given, as the route has read them.

    So other spellings of a query, and parameters that the route does not read, share one key.
    """
    parameters = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(parameters, safe='/:', quote_via=quote)}" if parameters else path


def negotiated(request: HttpRequest, path: str, *forms: Form) -> tuple[str, Form]:
    """Return `path` without its suffix, and the form among `forms` that the suffix or else `Accept` selects. Raises a 406."""
    stem, form = split_form(path)
    form = form or preferred_form(request.headers.get("accept", "").encode("latin-1"), forms)
    if form not in forms:
        raise HTTPException(status_code=406)
    return stem, form


def is_for_people(request: HttpRequest) -> bool:
    """Return whether a request prefers a page to JSON."""
    return prefers_html(request.headers.get("accept", "").encode("latin-1"))


def number(text: str | None, *, default: int, least: int, most: int, name: str) -> int:
    """Return a number from a query. Raises `Malformed`."""
    if text is None:
        return default
    try:
        value = parse_decimal(text, limit=most)
    except Malformed as error:
        raise _out_of_range(name, least, most) from error
    if value < least:
        raise _out_of_range(name, least, most)
    return value


def _out_of_range(name: str, least: int, most: int) -> Malformed:
    return Malformed(HttpCode.REQUEST, f"`{name}` is a number from {least} to {most}.")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(HttpCode.TOO_LARGE, f"A body here has at most {limit} bytes.")
