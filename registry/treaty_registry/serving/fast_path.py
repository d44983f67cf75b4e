"""The outermost ASGI application: caps on every request, and what is in memory answered at once.

A route of the framework costs twice what raw ASGI does, and most requests to a registry are for a few things that never or rarely
change. So a GET is first looked up in memory (`views`), and the resources agents fetch all the time are made here, without a
route; everything else, and every query string memory does not hold, goes on to the framework. HEAD is a GET whose body is not
sent.

Caps, before anything is read: a path of 1,024 bytes, a query of 2,048, headers of 32 KiB together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from litestar.enums import HttpMethod

from ..problems import MEDIA_TYPE, Problem, http_problem, problem_of
from .negotiation import Form, preferred_form, split_form
from .representation import NO_STORE, Representation
from .views import Views

if TYPE_CHECKING:
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

MAX_PATH = 1_024
MAX_QUERY = 2_048
MAX_HEADER_BYTES = 32 * 1024
_TOPIC_FORMS: tuple[Form, ...] = ("json", "bundle")


class FastPath:
    """An ASGI application in front of another one."""

    def __init__(self, app: ASGIApp, views: Views) -> None:
        self._app = app
        self._views = views
        self._memory = views.memory
        self._registry = views.registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a lifespan goes straight on."""
        kind: str = scope["type"]
        if kind != "http":
            await self._app(scope, receive, send)
            return
        path, query = scope["path"], scope["query_string"]
        method: str = scope["method"]  # type: ignore[typeddict-item]  # only HTTP comes as far as this
        accept, if_none_match, size = b"", None, 0
        for name, value in scope["headers"]:  # once for everything: this is most of what an answer from memory costs
            size += len(name) + len(value)
            if name == b"accept":
                accept = b"%b,%b" % (accept, value) if accept else value
            elif name == b"if-none-match":
                if_none_match = value
        if size > MAX_HEADER_BYTES or len(path) > MAX_PATH or len(query) > MAX_QUERY:
            await send_problem(http_problem(431 if size > MAX_HEADER_BYTES else 414), send)
            return
        if method == "HEAD":
            scope, send = _as_get(scope), _without_body(send)
        elif method != "GET":
            await self._app(scope, receive, send)
            return
        try:
            if not self._views.is_current:
                self._views.renew()
            view = self._memory.get(f"{path}?{query.decode('latin-1')}" if query else path)
            if view is None and not query:
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

    async def _make(self, path: str, accept: bytes) -> Representation | None:
        """The representation of what agents ask for all the time; None for the rest, which the framework routes."""
        views, memory = self._views, self._memory
        if path.startswith("/protocols/") and path.count("/") == 4:
            stem, form = split_form(path)
            form = form or preferred_form(accept)
            if form is None:
                return None  # the framework says that nothing acceptable is offered
            return memory.get(f"{stem}.{form}") or await views.protocol(stem, form)
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


def _as_get(scope: Scope) -> Scope:
    copy = cast("HTTPScope", scope.copy())
    copy["method"] = HttpMethod.GET
    return copy


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {"type": "http.response.body", "body": b"", "more_body": message["more_body"]}
        await send(message)

    return send_head
