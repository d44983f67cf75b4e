"""Refuse invalid requests (`request_filter`) and answer cached ones at once. This is the outermost ASGI application.

A route of the framework costs twice as much as raw ASGI, and most requests are for a few resources that rarely change. So a usual
GET is looked up in the cache first, before anything is done that only other requests need. The resources that agents fetch most
are made here without a route. All other requests, and queries that are not cached, go to the framework. HEAD is answered like GET
without the body. OPTIONS lists the methods of a path in `Allow`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, cast

from litestar.enums import HttpMethod

from treaty_consensus.errors import Unavailable
from treaty_io import tracing
from treaty_io.admission.rounds import Rounds
from treaty_io.network.addresses import site_network

from ..cache_control import NO_STORE
from ..networks import sender
from ..problems import JSON_HEADERS, Problem, problem_of
from ..telemetry.measures import ANSWERED
from ..telemetry.middleware import Observed, route_group
from ..telemetry.request import REQUEST_ID, request_id
from .bodies import MAX_BODY, BodyRoom
from .negotiation import Form, page_of, preferred_form, split_form
from .representation import PackedRepresentation, Representation
from .request_filter import METHODS, refusal
from .request_head import RequestHead, read_head
from .views import Views

if TYPE_CHECKING:
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

_ALLOW = b"allow"
_PROTOCOL_FORMS: tuple[Form, ...] = ("json", "md", "bundle", "html")
_READS = frozenset({"GET", "HEAD"})
_TOPIC_FORMS: tuple[Form, ...] = ("json", "bundle", "html")


Refusal: TypeAlias = tuple[bytes, Mapping[str, str]]
"""The body and the headers of a refusal."""


class DirectAnswer(NamedTuple):
    """A whole answer: its status, its headers without `Content-Length`, and its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class DirectRoute(Protocol):
    """A route that needs nothing of the framework."""

    async def __call__(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive, source: str | None) -> DirectAnswer:
        """Return the answer to a request from the IP address `source`. An exception is answered as the framework answers it."""


class PageSource(Protocol):
    """Makes the pages that browsers ask for most."""

    async def protocol(self, path: str) -> Representation:
        """Return the page of the version at `path`."""

    async def topic(self, topic: str) -> Representation:
        """Return the page of a topic."""

    def problem(self, problem: Problem) -> Refusal:
        """Return the page of a refusal. It must cost little, because anybody can ask for refusals."""


class FastPath:
    """An ASGI application in front of another one, and of the middleware that observes requests (`telemetry.middleware`)."""

    def __init__(self, app: ASGIApp, views: Views, pages: PageSource, posts: Mapping[str, DirectRoute] | None = None) -> None:
        """`posts`: the routes that answer POST at these very paths. Another spelling of a path goes to `app`."""
        self._app = app
        self._posts = posts or {}
        self._pages = pages
        self._views = views
        self._memory = views.memory
        self._bodies = BodyRoom()
        self._rounds = Rounds()
        self._proxies = views.registry.proxies
        self._observed = Observed(self._answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. A lifespan scope goes to the inner application."""
        kind: str = scope["type"]
        if kind != "http":
            await self._app(scope, receive, send)
            return
        peer = scope["client"]
        network = site_network(peer[0]) if peer and not self._proxies.networks else self._network(scope)
        begun, turn = time.perf_counter(), self._rounds.take(network)
        ANSWERED.under_way += 1
        try:
            # Before any work for the request: with pipelining, each connection can bring one into every iteration.
            if not turn:
                await self._rounds.wait(network)
            view = self._ready(scope)
            if view is None:
                await self._observed.answer(scope, receive, send, begun)
                return
            # It is named and counted as there. It needs no context of a request, because nothing is called that reads one.
            headers = [*view.start["headers"], (REQUEST_ID, request_id(None))]
            try:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send(view.content)
            finally:
                ANSWERED.count(route_group(scope["path"]), "GET", 200, time.perf_counter() - begun)
        finally:
            ANSWERED.under_way -= 1

    def _ready(self, scope: Scope) -> Representation | None:
        """Return the answer to a usual GET that is cached; None for every other request.

        The cache has valid targets only, so a target that is found is not checked again.
        """
        head = read_head(tuple(scope["headers"]))
        # An outdated cache is renewed by the longer way: a writer must read its own writes.
        if not head.is_usual or scope["method"] != "GET" or not self._views.is_current or tracing.is_on():  # type: ignore[typeddict-item]
            return None
        target = _target(scope, head) if head.prefers_page or scope["query_string"] else scope["path"]
        view = self._memory.ready(target)
        return view.accepted(head.encodings) if isinstance(view, PackedRepresentation) else view

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose turn has come."""
        head = read_head(tuple(scope["headers"]))
        path, query = scope["path"], scope["query_string"]
        method: str = scope["method"]  # type: ignore[typeddict-item]  # only HTTP scopes get here
        # Before the cache, so that later code can rely on the form of path, query and host.
        problem = refusal(method, path, query, head, scope["http_version"])
        if problem is not None:
            await self._refuse(problem, method, head, send)
            return
        source = self._sender(scope)
        if method == "HEAD":
            scope, send = _with_method(scope, HttpMethod.GET), _without_body(send)
        elif method != "GET":
            answer = self._say_methods(scope, receive, send) if method == "OPTIONS" else None
            receive = self._rounds.after(receive, self._network(scope))
            await (answer or self._pass_body(scope, receive, send, source, head.length))
            return
        try:
            # Before the look-up: a writer must read its own writes.
            if not self._views.is_current:
                self._views.renew()
            view = self._memory.get(_target(scope, head))
            if view is None:
                sender.set(source)
                if not query:
                    view = await self._make(path, head.accept)
            if isinstance(view, PackedRepresentation):
                view = view.accepted(head.encodings)
        # The exception handler of the framework does not see errors outside it.
        except Exception as error:
            await self._refuse(problem_of(error), method, head, send)
            return
        if view is None:
            await self._app(scope, receive, send)
        else:
            await view.answer(head.if_none_match, send)

    async def _pass_body(self, scope: Scope, receive: Receive, send: Send, source: str | None, length: bytes) -> None:
        """Pass a request on after reserving memory for its body. `length`: the announced length, possibly empty."""
        # An unknown length reserves the largest body. More than 19 digits are no length, and converting them costs
        # time.
        size = min(int(length), MAX_BODY) if length.isdigit() and len(length) < 20 else MAX_BODY
        direct = self._posts.get(scope["path"]) if scope["method"] == "POST" else None  # type: ignore[typeddict-item]
        if direct is not None:
            try:
                with self._bodies.take(source, size):
                    answer = await direct(scope["headers"], receive, source)
            except Exception as error:
                answer = refused(problem_of(error))
            await _send_answer(answer, send)
            return
        try:
            with self._bodies.take(source, size):
                await self._app(scope, receive, send)
        except Unavailable as error:
            await _send_answer(refused(problem_of(error)), send)

    async def _refuse(self, problem: Problem, method: str, head: RequestHead, send: Send) -> None:
        """Send a refusal: to a browser that reads as a page, to all others as JSON."""
        if method in _READS and head.prefers_page:
            body, fields = self._pages.problem(problem)
            await _send_answer(DirectAnswer(problem.status, {**fields, **dict(problem.headers)}, body), send)
        else:
            await _send_answer(refused(problem), send)

    def _network(self, scope: Scope) -> str:
        source = self._sender(scope)
        return site_network(source) if source else ""

    def _sender(self, scope: Scope) -> str | None:
        peer = scope["client"]
        # Without trusted proxies the header is the client's own claim, and is ignored.
        if not self._proxies.networks:
            return peer[0] if peer else None
        forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        return self._proxies.client(peer[0] if peer else None, forwarded)

    async def _say_methods(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer OPTIONS.

        The framework names the methods of a path only when it refuses one. So it is sent a method that no route has, and its
        refusal is turned into the answer.
        """
        if scope["path"] == "*":
            await _send_methods(METHODS.encode("ascii"), send)
            return
        answered = False

        async def answer(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.METHOD_NOT_ALLOWED:
                answered = True
                await _send_methods(next(value for name, value in message["headers"] if name.lower() == _ALLOW), send)
            elif not answered:
                await send(message)

        # No route answers TRACE, so the framework always refuses it with the list.
        await self._app(_with_method(scope, HttpMethod.TRACE), receive, answer)

    async def _make(self, path: str, accept: bytes) -> Representation | None:
        """Return the representation of a resource that agents fetch often; None for all others, which the framework routes."""
        views, memory = self._views, self._memory
        if path.startswith("/protocols/") and path.count("/") == 4:
            stem, form = split_form(path)
            form = form or preferred_form(accept, _PROTOCOL_FORMS)
            if form is None or (form == "html" and path.endswith("/")):
                return None  # the framework answers 406, or removes the slash
            return await (self._pages.protocol(stem) if form == "html" else views.protocol(stem, form))
        if path.startswith("/topics/"):
            form = preferred_form(accept, _TOPIC_FORMS)
            if form == "html" and split_form(path)[1] is None and not path.endswith("/"):
                return await self._pages.topic(path.removeprefix("/topics/"))
            return None if form == "html" else memory.get(f"{path}.{form}")
        if path.startswith("/blobs/sha256/"):
            return await views.blob(path.removeprefix("/blobs/sha256/"))
        if path.startswith("/tile/"):
            return await views.tile(path)
        if path == "/checkpoint":
            return await views.checkpoint()
        return None


def _target(scope: Scope, head: RequestHead) -> str:
    path, query = scope["path"], scope["query_string"]
    target = f"{path}?{query.decode('latin-1')}" if query else path
    return page_of(target) if head.prefers_page else target


def refused(problem: Problem) -> DirectAnswer:
    """Return a refusal as JSON."""
    return DirectAnswer(problem.status, {**JSON_HEADERS, **dict(problem.headers)}, problem.body)


async def _send_answer(answer: DirectAnswer, send: Send) -> None:
    fields = {"Content-Length": str(len(answer.body)), **answer.headers}
    headers = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


async def _send_methods(allow: bytes, send: Send) -> None:
    headers = [(_ALLOW, allow), (b"cache-control", NO_STORE.encode("ascii"))]
    await send({"type": "http.response.start", "status": HTTPStatus.NO_CONTENT, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _with_method(scope: Scope, method: HttpMethod) -> Scope:
    copy = cast("HTTPScope", scope.copy())
    copy["method"] = method
    return copy


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {"type": "http.response.body", "body": b"", "more_body": message["more_body"]}
        await send(message)

    return send_head
