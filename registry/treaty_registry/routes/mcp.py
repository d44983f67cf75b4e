"""Serve `POST /mcp`: the reads of a registry for hosts of MCP, public and without a session.

The SDK answers each request on its own, in every version that it speaks. The request is bounded and admitted as all others are,
and its answer is one JSON body: the tools ask nothing of a host and tell nothing in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from litestar import Response, post
from litestar.di import NamedDependency

from treaty_io.extras import naming_extras

from ..cache_control import NO_STORE
from ..networks import sender
from ..problems import http_problem
from ..serving.fast_path import DirectAnswer, refused
from ..serving.views import Views
from .requests import HttpRequest, receive_body, source

if TYPE_CHECKING:
    from litestar.types import Receive

    from treaty_mcp.tools.tool_server import ToolServer

PATH = "/mcp"
MAX_REQUEST = 64 * 1024
"""Bytes. A request of these tools has some hundreds."""
_KEPT = frozenset((b"content-type", b"mcp-session-id"))


class McpDoor:
    """The tools of one log."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._server: ToolServer | None = None

    async def __call__(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive, source: str | None) -> DirectAnswer:
        """See `serving.fast_path.DirectRoute`."""
        raw = [(name.lower(), value) for name, value in headers]
        named = dict(reversed(raw))
        # The specification forbids it, although these reads give a page of another site nothing that it could not fetch.
        origin = named.get(b"origin", b"").decode("latin-1")
        if origin and origin != self._views.registry.base_url.rstrip("/"):
            return refused(http_problem(403, "Pages of other sites cannot use this endpoint."))
        # Its searches wait in the turns of its network.
        sender.set(source)
        body = await receive_body(receive, named.get(b"content-length", b"0").decode("latin-1"), MAX_REQUEST)
        if self._server is None:
            # In a thread: the SDK takes half a second to import, and most registries are never asked by MCP.
            self._server = await asyncio.to_thread(_make, self._views)
        return await _answer(self._server, raw, body)


def _make(views: Views) -> ToolServer:
    with naming_extras("registry"):
        from ..serving.read_tools import read_server

    return read_server(views)


async def _answer(server: ToolServer, headers: list[tuple[bytes, bytes]], body: bytes) -> DirectAnswer:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "query_string": b"",
        "headers": headers,
        "http_version": "1.1",
    }
    scope |= {"scheme": "http", "raw_path": PATH.encode(), "root_path": "", "client": None, "server": None}
    sent: list[Any] = []
    arrived = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if arrived.is_set():
            # Until the answer is complete: a disconnection would cancel its making.
            await asyncio.get_running_loop().create_future()
        arrived.set()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    # One for each request, because it can run once. It keeps nothing: there are no sessions.
    manager = StreamableHTTPSessionManager(server.server, json_response=True, stateless=True, max_request_body_size=MAX_REQUEST)
    async with manager.run():
        await manager.asgi_app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    kept = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"] if name in _KEPT}
    return DirectAnswer(start["status"], {**kept, "Cache-Control": NO_STORE}, content)


@post(PATH, summary="The reads for hosts of MCP", include_in_schema=False)
async def speak(request: HttpRequest, views: NamedDependency[Views]) -> Response[bytes]:
    """Answer a message of MCP (`McpDoor`), for a spelling of the path that the fast path does not know."""
    answer = await McpDoor(views)(request.scope["headers"], request.receive, source(request, views.registry.proxies))
    return Response(answer.body, status_code=answer.status, headers=dict(answer.headers))
