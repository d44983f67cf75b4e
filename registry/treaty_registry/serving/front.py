"""What is refused before anything of a request is read, so that nothing behind has to think of it:

- headers of more than 32 KiB together, a path of more than 1,024 bytes, a query of more than 2,048;
- a path that is not printable ASCII once it is decoded, a query with a control character: no resource has one in its name, and
  PostgreSQL takes no NUL;
- in HTTP/1.1 no `Host`, or one that is no host; in any version two (RFC 9112 §3.2);
- CONNECT: this is no proxy.
"""

from __future__ import annotations

import re

from ..problems import Problem, http_problem

MAX_PATH = 1_024
MAX_QUERY = 2_048
MAX_HEADER_BYTES = 32 * 1024
METHODS = "GET, HEAD, OPTIONS, POST, PUT"
"""What some resource or other answers."""

_CONTROL = re.compile(rb"[\x00-\x20\x7f]|%[01][0-9A-Fa-f]|%7[Ff]")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_MAX_KNOWN = 64


class Front:
    """Looks at each request's head. One a process."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()  # hosts that were looked at: what is usual costs one look-up

    def refusal(self, method: str, path: str, query: bytes, hosts: list[bytes], version: str, size: int) -> Problem | None:
        """Why a request is refused, or None. `hosts`: the values of its `Host` headers; `version`: HTTP's; `size`: of all headers
        together, in bytes."""
        if size > MAX_HEADER_BYTES:
            return http_problem(431)
        if len(path) > MAX_PATH or len(query) > MAX_QUERY:
            return http_problem(414)
        if (len(hosts) != 1 or hosts[0] not in self._known) and not self._is_directed(hosts, version):
            return http_problem(400, "A request names one host: `Host: NAME[:PORT]`.")
        if method == "CONNECT":
            return http_problem(405, "This is no proxy.", headers=(("Allow", METHODS),))
        if not (path.startswith("/") and path.isascii() and path.isprintable()) and (method, path) != ("OPTIONS", "*"):
            return http_problem(400, "A path begins with '/' and is printable ASCII.")
        if query and _CONTROL.search(query):
            return http_problem(400, "A query has no control characters.")
        return None

    def _is_directed(self, hosts: list[bytes], version: str) -> bool:
        if not any(hosts) and len(hosts) < 2:  # the server adds an empty one where there is none
            return version != "1.1"
        if len(hosts) > 1 or not _HOST.fullmatch(hosts[0]):
            return False
        if len(self._known) < _MAX_KNOWN:
            self._known.add(hosts[0])
        return True
