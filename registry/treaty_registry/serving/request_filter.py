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

MAX_PATH = 1_024
# A protocol's URI has 512 characters, and at most 1,536 when all of them are percent-encoded.
MAX_QUERY = 2_048
MAX_HEADER_BYTES = 32 * 1024
METHODS = "GET, HEAD, OPTIONS, POST, PUT"
"""The methods that at least one resource answers."""

_CONTROL = re.compile(rb"[\x00-\x20\x7f]|%[01][0-9A-Fa-f]|%7[Ff]")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_MAX_KNOWN = 64  # hosts; clients choose them, so their number is bounded


class RequestFilter:
    """Checks the head of each request. One per process."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()  # valid hosts that were seen, so that a usual host costs one look-up

    def refusal(self, method: str, path: str, query: bytes, hosts: list[bytes], version: str, size: int) -> Problem | None:
        """Return the reason to refuse a request, or None.

        `hosts`: the values of its `Host` headers. `version`: of HTTP. `size`: bytes of all headers together.
        """
        # Caps first: the checks below read the whole text.
        if size > MAX_HEADER_BYTES:
            return http_problem(431)
        if len(path) > MAX_PATH or len(query) > MAX_QUERY:
            return http_problem(414)
        # RFC 9112 §3.2 asks for a 400. Two hosts could be routed differently by a proxy and here.
        if (len(hosts) != 1 or hosts[0] not in self._known) and not self._is_directed(hosts, version):
            return http_problem(400, "A request names one host: `Host: NAME[:PORT]`.")
        if method == "CONNECT":
            return http_problem(405, "This is not a proxy.", headers=(("Allow", METHODS),))
        # No resource has such a name, and a NUL would be an error of PostgreSQL.
        if not (path.startswith("/") and path.isascii() and path.isprintable()) and (method, path) != ("OPTIONS", "*"):
            return http_problem(400, "A path begins with '/' and is printable ASCII.")
        if query and _CONTROL.search(query):
            return http_problem(400, "A query has no control characters.")
        return None

    def _is_directed(self, hosts: list[bytes], version: str) -> bool:
        if not any(hosts) and len(hosts) < 2:  # the server adds an empty host when a request has none
            return version != "1.1"
        if len(hosts) > 1 or not _HOST.fullmatch(hosts[0]):
            return False
        # A full set stays as it is: later hosts only cost a match.
        if len(self._known) < _MAX_KNOWN:
            self._known.add(hosts[0])
        return True
