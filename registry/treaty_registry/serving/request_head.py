"""Read the headers of a request in one pass, and remember them: a client sends the same ones with most of its requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ..telemetry.request import REQUEST_ID
from .negotiation import prefers_html

MAX_HEADER_BYTES = 32 * 1024
_HOST = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The headers that decide about an answer. `size`: bytes of all headers. `length`: the announced one of the body, or empty.

    `names_host`: there is one `Host`, and it is valid. `is_usual`: a GET with these headers is answered by any cached answer to
    its target. `prefers_page`: to JSON, as a browser does.
    """

    size: int
    hosts: tuple[bytes, ...]
    names_host: bool
    accept: bytes
    encodings: bytes
    if_none_match: bytes | None
    length: bytes
    is_usual: bool
    prefers_page: bool


# Clients choose their headers. The server reads at most 64 KiB of them, so this holds 8 MiB at most.
@lru_cache(maxsize=128)
def read_head(headers: tuple[tuple[bytes, bytes], ...]) -> RequestHead:
    """Return the head with these headers, whose names are in lower case."""
    accept, encodings, if_none_match, length, size, hosts, is_named = b"", b"", None, b"", 0, list[bytes](), False
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"accept":
            accept = b"%b,%b" % (accept, value) if accept else value
        elif name == b"if-none-match":
            if_none_match = value
        elif name == b"accept-encoding":
            encodings = value
        elif name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            length = value
        elif name == REQUEST_ID:
            is_named = True
    names_host = len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None
    is_usual = names_host and if_none_match is None and not is_named and size <= MAX_HEADER_BYTES
    prefers_page = prefers_html(accept)
    return RequestHead(size, tuple(hosts), names_host, accept, encodings, if_none_match, length, is_usual, prefers_page)
