"""Measure, name and trace each HTTP request. This is the outermost ASGI application of a witness. In a registry, only the answers
that the cache has ready are sent in front of it (`serving.fast_path`).

The framework's own plugins see only the requests that reach its routes. Most are answered before that, from the cache.

Metrics, lines and spans name groups of routes. Paths are not named: one may hold a DID, and they have no bound.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import structlog

from treaty_anp.trace_context import TraceContext
from treaty_io import tracing
from treaty_io.repeats import Repeats

from .measures import ANSWERED
from .request import REQUEST_ID, RequestContext, enter_request, request_id

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send


_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_refusals = Repeats(60)
"""Refused requests, by group, method and status. A stranger can send any number of them."""
_log = structlog.get_logger(__name__)


class Observed:
    """An ASGI application around another one. Every answer names its request in `X-Request-ID`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        kind: str = scope["type"]
        if kind != "http":
            await self._app(scope, receive, send)
            return
        ANSWERED.under_way += 1
        try:
            await self.answer(scope, receive, send, time.perf_counter())
        finally:
            ANSWERED.under_way -= 1

    async def answer(self, scope: Scope, receive: Receive, send: Send, begun: float) -> None:
        """Answer an HTTP request that is counted as under way. `begun`: seconds of `perf_counter` at its arrival."""
        sent = traceparent = None
        for name, value in scope["headers"]:
            if name == REQUEST_ID:
                sent = value
            elif name == b"traceparent":
                traceparent = value
        identity = (REQUEST_ID, request_id(sent))
        context = RequestContext(identity[1].decode("ascii"))
        enter_request(context)
        group, method = route_group(scope["path"]), method_label(scope["method"])  # type: ignore[typeddict-item]  # only HTTP scopes get here
        status = 0

        # No coroutine of its own: there are two messages an answer.
        def answer(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # A copy: the heads of cached answers are shared.
                message = {"type": "http.response.start", "status": status, "headers": [*message["headers"], identity]}
            return send(message)

        try:
            if tracing.is_on():
                parent = tracing.received((traceparent or b"").decode("latin-1"))
                with tracing.span(f"{method} {group}", "server", parent=parent, treaty_group=group) as span:
                    context.trace_id = tracing.trace_id()
                    try:
                        await self._app(scope, receive, answer)
                    finally:
                        span.set(
                            http_request_method=method, http_response_status__code=status, treaty_statements=context.statements
                        )
                        if status >= 500:
                            span.fail(str(status))
            else:
                context.trace_id = _trace_id(traceparent)
                await self._app(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - begun
            # 499, as nginx says it: the client went away before its answer.
            status = status or 499
            ANSWERED.count(group, method, status, seconds)
            if method not in _READS or status >= 500:
                _tell(context, group, method, status, seconds)


def _trace_id(traceparent: bytes | None) -> str:
    context = TraceContext.parse(traceparent.decode("latin-1")) if traceparent else None
    return context.trace_id if context else ""


def _tell(context: RequestContext, group: str, method: str, status: int, seconds: float) -> None:
    fields: dict[str, object] = {"group": group, "method": method, "status": status, "seconds": round(seconds, 6)}
    if status >= 400:
        more = _refusals.admit(f"{group} {method} {status}")
        if more is None:
            return
        fields |= more
    if context.logged:
        fields |= {"statements": context.statements, "logged": context.logged}
    tell = _log.error if status >= 500 and status != 503 else _log.info
    tell("request", **fields)


OTHER = "other"
"""Paths that nothing serves, and routes without a group."""

_GROUPS: Mapping[str, str] = {
    "": "pages",
    "api": "sigstore",
    "ballots": "topics",
    "blobs": "blobs",
    "checkpoint": "log",
    "docs": "pages",
    "feeds": "feeds",
    "grants": "topics",
    "hashes": "names",
    "health": "health",
    "identities": "identities",
    "index": "packages",
    "log": "log",
    "nodes": "nodes",
    "proofs": "proofs",
    "protocols": "protocols",
    "replay": "pages",
    "resolve": "names",
    "schema": "pages",
    "sigstore": "sigstore",
    "speakers": "standing",
    "standing": "standing",
    "statements": "statements",
    "static": "pages",
    "testimony": "identities",
    "tile": "tiles",
    "topics": "topics",
    "trust-config.json": "sigstore",
    "validations": "identities",
    "votes": "topics",
    "vouches": "topics",
    # Of a witness, which may keep copies of logs.
    "add-checkpoint": "witness",
    "add-entries": "witness",
    "add-statement": "witness",
    "mirror": "copies",
}
GROUPS = frozenset(_GROUPS.values()) | {OTHER}
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT"})


# Clients choose the path, so the memory is bounded: the server reads at most 64 KiB of a head.
@lru_cache(maxsize=256)
def route_group(path: str) -> str:
    """Return the group of a path. An answer's form, as in `/topics.json`, is not part of it."""
    end = path.find("/", 1)
    first = path[1:] if end < 0 else path[1:end]
    return _GROUPS.get(first) or _GROUPS.get(first.partition(".")[0], OTHER)


def method_label(method: str) -> str:
    """Return the method, or `other` for one that no route answers. A client may send any text."""
    return method if method in _METHODS else OTHER
