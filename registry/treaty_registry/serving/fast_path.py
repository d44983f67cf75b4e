"""The outermost ASGI application: what `front` refuses, and what is in memory answered at once.

A route of the framework costs twice what raw ASGI does, and most requests to a registry are for a few things that never or rarely
change. So a GET is first looked up in memory (`views`), and the resources agents fetch all the time are made here, without a
route; everything else, and every query string memory does not hold, goes on to the framework. HEAD is a GET whose body is not
sent. OPTIONS says in `Allow` what a path answers.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from litestar.enums import HttpMethod

from treaty_consensus.errors import Unavailable

from ..networks import sender
from ..problems import MEDIA_TYPE, Problem, problem_of
from .bodies import MAX_BODY, BodyRoom
from .front import METHODS, Front
from .negotiation import Form, preferred_form, split_form
from .representation import NO_STORE, Representation
from .views import Views

if TYPE_CHECKING:
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

_ALLOW = b"allow"
_TOPIC_FORMS: tuple[Form, ...] = ("json", "bundle")


class FastPath:
    """An ASGI application in front of another one."""

    def __init__(self, app: ASGIApp, views: Views) -> None:
        self._app = app
        self._views = views
        self._memory = views.memory
        self._front = Front()
        self._bodies = BodyRoom()
        self._proxies = views.registry.proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a lifespan goes straight on."""
        kind: str = scope["type"]
        if kind != "http":
            await self._app(scope, receive, send)
            return
        path, query = scope["path"], scope["query_string"]
        method: str = scope["method"]  # type: ignore[typeddict-item]  # only HTTP comes as far as this
        accept, if_none_match, length, size, hosts = b"", None, b"", 0, list[bytes]()
        for name, value in scope["headers"]:  # once for everything: this is most of what an answer from memory costs
            size += len(name) + len(value)
            if name == b"accept":
                accept = b"%b,%b" % (accept, value) if accept else value
            elif name == b"if-none-match":
                if_none_match = value
            elif name == b"host":
                hosts.append(value)
            elif name == b"content-length":
                length = value
        refusal = self._front.refusal(method, path, query, hosts, scope["http_version"], size)
        if refusal is not None:
            await send_problem(refusal, send)
            return
        if method == "HEAD":
            scope, send = _with_method(scope, HttpMethod.GET), _without_body(send)
        elif method == "OPTIONS":
            await self._say_methods(scope, receive, send)
            return
        elif method != "GET":
            await self._pass_body(scope, receive, send, length)
            return
        try:
            if not self._views.is_current:
                self._views.renew()
            view = self._memory.get(f"{path}?{query.decode('latin-1')}" if query else path)
            if view is None:
                sender.set(self._sender(scope))
                if not query:
                    view = await self._make(path, accept)
        except Exception as error:
            await send_problem(problem_of(error), send)
            return
        if view is None:
            await self._app(scope, receive, send)
        elif if_none_match is None:
            await send(view.start)
            await send(view.content)
        else:
            await view.answer(if_none_match, send)

    async def _pass_body(self, scope: Scope, receive: Receive, send: Send, length: bytes) -> None:
        """Hand a request on, once there is room for its body. `length`: what its head announces, if anything."""
        size = min(int(length), MAX_BODY) if length.isdigit() and len(length) < 20 else MAX_BODY
        try:
            with self._bodies.take(self._sender(scope), size):
                await self._app(scope, receive, send)
        except Unavailable as error:
            await send_problem(problem_of(error), send)

    def _sender(self, scope: Scope) -> str | None:
        peer = scope["client"]
        forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        return self._proxies.client(peer[0] if peer else None, forwarded)

    async def _say_methods(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer OPTIONS. The framework names all methods of a path only where it refuses one: so it is asked for one that
        nothing answers, and its refusal becomes the answer."""
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

        await self._app(_with_method(scope, HttpMethod.TRACE), receive, answer)

    async def _make(self, path: str, accept: bytes) -> Representation | None:
        """The representation of what agents ask for all the time; None for the rest, which the framework routes."""
        views, memory = self._views, self._memory
        if path.startswith("/protocols/") and path.count("/") == 4:
            stem, form = split_form(path)
            form = form or preferred_form(accept)
            if form is None:
                return None  # the framework says that nothing acceptable is offered
            return await views.protocol(stem, form)
        if path.startswith("/topics/"):
            return memory.get(f"{path}.{preferred_form(accept, _TOPIC_FORMS)}")
        if path.startswith("/blobs/sha256/"):
            return await views.blob(path.removeprefix("/blobs/sha256/"))
        if path.startswith("/tile/"):
            return await views.tile(path)
        if path == "/checkpoint":
            return await views.checkpoint()
        return None


async def send_problem(problem: Problem, send: Send) -> None:
    """Send a refusal."""
    body = problem.body
    headers = [
        (b"content-type", MEDIA_TYPE.encode("ascii")),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", NO_STORE.encode("ascii")),
        *((name.lower().encode("ascii"), value.encode("ascii")) for name, value in problem.headers),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


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
