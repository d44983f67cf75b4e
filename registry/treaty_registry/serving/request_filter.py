"""Refuse invalid requests by their head, so that later code can rely on these rules:

- Headers have at most 32 KiB together, a path at most 1,024 bytes, a query at most 2,048 bytes.
- A decoded path is printable ASCII, and a query has no control characters. No resource has such a name, and PostgreSQL accepts
  no NUL.
- An HTTP/1.1 request has exactly one `Host`, in other versions at most one, and its value is a valid host (RFC 9112 §3.2).
- CONNECT is refused, because this is not a proxy.
"""

from __future__ import annotations

import re

from ..problems import Problem, http_problem
from .request_head import MAX_HEADER_BYTES, RequestHead

MAX_PATH = 1_024
# A protocol's URI has 512 characters, and at most 1,536 when all of them are percent-encoded.
MAX_QUERY = 2_048
METHODS = "GET, HEAD, OPTIONS, POST, PUT"
"""The methods that at least one resource answers."""

_CONTROL = re.compile(rb"[\x00-\x20\x7f]|%[01][0-9A-Fa-f]|%7[Ff]")


def refusal(method: str, path: str, query: bytes, head: RequestHead, version: str) -> Problem | None:
    """Return the reason to refuse a request, or None. `version`: of HTTP."""
    # Caps first: the checks below read the whole text.
    if head.size > MAX_HEADER_BYTES:
        return http_problem(431)
    if len(path) > MAX_PATH or len(query) > MAX_QUERY:
        return http_problem(414)
    # RFC 9112 §3.2 asks for a 400. Two hosts could be routed differently by a proxy and here. The server adds an empty host when
    # a request has none.
    if not head.names_host and (version == "1.1" or head.hosts not in ((), (b"",))):
        return http_problem(400, "A request names one host: `Host: NAME[:PORT]`.")
    if method == "CONNECT":
        return http_problem(405, "This is not a proxy.", headers=(("Allow", METHODS),))
    # No resource has such a name, and a NUL would be an error of PostgreSQL.
    if not (path.startswith("/") and path.isascii() and path.isprintable()) and (method, path) != ("OPTIONS", "*"):
        return http_problem(400, "A path begins with '/' and is printable ASCII.")
    if query and _CONTROL.search(query):
        return http_problem(400, "A query has no control characters.")
    return None
