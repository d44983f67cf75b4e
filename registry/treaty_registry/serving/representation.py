"""Encode a representation (RFC 9110 §3.2) once, and send it any number of times.

It is an ASGI application for GET. It answers `If-None-Match` (RFC 9110 §13.1.2, weak comparison) with a 304. Every
representation has an `ETag` and a `Cache-Control` (`cache_control`).
"""

from __future__ import annotations

import gzip
import re
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from treaty_consensus.canonical import hex_digest

from ..cache_control import REVALIDATE

if TYPE_CHECKING:
    from litestar.types import HTTPResponseBodyEvent, HTTPResponseStartEvent, Receive, Scope, Send

JSON = "application/json"
MARKDOWN = "text/markdown; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
BUNDLE = "application/vnd.treaty.bundle.v1+json"
OCTETS = "application/octet-stream"
HTML = "text/html; charset=utf-8"
SVG = "image/svg+xml"
XML = "application/xml; charset=utf-8"

Header: TypeAlias = tuple[str, str]
RawHeader: TypeAlias = tuple[bytes, bytes]

_OF_CONTENT = (b"content-type", b"content-length", b"x-content-type-options")


class Representation:
    """The bytes and headers of a 200. Immutable; safe to send to any number of requests at once.

    `start`, `content`: its two ASGI events. `tag`: the text of its `ETag`.
    """

    __slots__ = ("_etag", "body", "content", "start", "tag")

    def __init__(
        self,
        body: bytes,
        media_type: str,
        *extra: Header,
        cache_control: str = REVALIDATE,
        tag: str | None = None,
    ) -> None:
        """`extra`: more headers, such as `Content-Disposition`. `tag`: the text of the `ETag`, by default the SHA-256 of the
        body."""
        self.body = body
        self.tag = tag or hex_digest(body)
        self._etag = b'"%b"' % self.tag.encode("ascii")
        about, always = _encoded(media_type, cache_control, extra)
        etag, length = (b"etag", self._etag), (b"content-length", b"%d" % len(body))
        self.start: HTTPResponseStartEvent = {
            "type": "http.response.start",
            "status": 200,
            "headers": [*about, length, etag, *always],
        }
        self.content: HTTPResponseBodyEvent = {"type": "http.response.body", "body": body, "more_body": False}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one GET."""
        await self.answer(next((value for name, value in scope["headers"] if name == b"if-none-match"), None), send)

    async def answer(self, if_none_match: bytes | None, send: Send) -> None:
        """Answer one GET, given the value of its `If-None-Match`."""
        if if_none_match is not None and self._matches(if_none_match):
            # RFC 9110 §15.4.5: a 304 repeats the headers about caching, and none about a content that it does not
            # have.
            shared = [header for header in self.start["headers"] if header[0] not in _OF_CONTENT]
            await send({"type": "http.response.start", "status": 304, "headers": shared})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await send(self.start)
            await send(self.content)

    def _matches(self, header: bytes) -> bool:
        # The usual case: one tag, as it was sent.
        if header == self._etag:
            return True
        return any(tag.strip().removeprefix(b"W/") in (self._etag, b"*") for tag in header.split(b","))


class PackedRepresentation(Representation):
    """A representation that is also there as gzip, for clients that accept it. Both have their own `ETag`."""

    __slots__ = ("packed",)

    def __init__(self, body: bytes, media_type: str, *extra: Header, cache_control: str = REVALIDATE, level: int = 3) -> None:
        """`level`: of the compression. 4 takes half as long again for up to five per cent less: it is for what is packed once."""
        super().__init__(body, media_type, *extra, cache_control=cache_control)
        # Without a time, so equal bodies have equal tags.
        small = gzip.compress(body, compresslevel=level, mtime=0)
        self.packed = Representation(small, media_type, *extra, ("Content-Encoding", "gzip"), cache_control=cache_control)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encodings = b",".join(value for name, value in scope["headers"] if name == b"accept-encoding")
        await Representation.__call__(self.accepted(encodings), scope, receive, send)

    def accepted(self, accept_encoding: bytes) -> Representation:
        """Return the form that a request with this `Accept-Encoding` takes. A refusal such as `gzip;q=0` is honoured."""
        offers = (part.partition(b";") for part in accept_encoding.split(b","))
        accepts = any(name.strip() == b"gzip" and not _REFUSED.search(weight) for name, _, weight in offers)
        return self.packed if accepts else self


_REFUSED = re.compile(rb"q=0(\.0*)?\s*$")


@lru_cache(maxsize=64)
def _encoded(media_type: str, cache_control: str, extra: tuple[Header, ...]) -> tuple[list[RawHeader], list[RawHeader]]:
    """Return the headers about the content, and the headers that a 304 has too. Representations of one kind share them."""
    # nosniff: a browser must not guess that a document or blob is a page.
    about = [(b"content-type", media_type.encode("ascii")), (b"x-content-type-options", b"nosniff")]
    always = [(b"cache-control", cache_control.encode("ascii"))]
    always.extend((name.lower().encode("ascii"), value.encode("ascii")) for name, value in extra)
    return about, always
