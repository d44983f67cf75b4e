"""Answer A2A 1.0 by JSON-RPC at `/a2a` of an agent's port (A2A specification, sections 3 and 9), and 0.3 by the SDK's own layer.

An A2A extension is a protocol of Treaty by its URI: permanent, with its version, and its document is served there. The data part
of a message names an operation of it:

    {"messageId": "1", "role": "ROLE_USER", "extensions": [URI], "parts": [{"data": {"operation": "quote", "arguments": {…}}}]}

The SDK parses, keeps the tasks and streams. This module adds bounds for strangers, and the header that names the extensions of an
answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from starlette.requests import Request
from starlette.types import Message

from treaty_agent import Agent
from treaty_agent.sessions.in_process import InProcessCaller
from treaty_agent.transport.application import Application, Door
from treaty_consensus.errors import TooLarge
from treaty_io.asgi import Receive, Scope, Send
from treaty_io.codes import ConnectionCode
from treaty_io.line_limit import limit_lines

from .operations import ADDRESS, APPLICATION, OperationExecutor, OperationHandler, ServedOperations

MAX_MESSAGE = 64 * 1024
"""Bytes of a request. The SDK parses it on the event loop, at a microsecond a value."""
GRACE = 1.0
"""Seconds for event streams to end when the agent stops."""


class A2A(Door):
    """The A2A side of one agent. Give it to `listen`, `serve` or `asgi` of this agent. For one event loop."""

    path: ClassVar[str] = "/a2a"
    card: ClassVar[Mapping[str, str]] = {"protocolBinding": "JSONRPC", "protocolVersion": "1.0"}

    def __init__(self, agent: Agent) -> None:
        """Serve nothing yet. Raises `Refused` (`agent.settings`) if the policy of the agent requires encryption: callers by A2A
        are not proved."""
        # A stranger makes the SDK log by each wrong request. Its loggers exist since the imports above.
        limit_lines(*(name for name in logging.root.manager.loggerDict if name.startswith("a2a.")))
        self._operations = ServedOperations(agent.context.served)
        self._caller = InProcessCaller(agent.context, agent.flow)
        self._handler = OperationHandler(self._operations, OperationExecutor(self._caller))
        self._dispatcher = JsonRpcDispatcher(self._handler, _CallContexts(), enable_v0_3_compat=True, shutdown_grace_period=GRACE)

    async def answer(self, application: Application, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """See `Door.answer`. An answer that streams goes on until its task ends or the peer leaves. Raises `TooLarge`
        (`connection.too-large`)."""
        if len(body) > MAX_MESSAGE:
            raise TooLarge(ConnectionCode.TOO_LARGE, f"A message has at most {MAX_MESSAGE} bytes.")
        host, port = scope.get("client") or ("?", 0)
        state = {**scope.get("state", {}), APPLICATION: application, ADDRESS: f"{host}:{port}"}
        scope = {**scope, "state": state}
        request = Request(scope, _Replay(body, receive), send)
        requested = get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER))
        activated = sorted(requested & self._operations.uris)
        response = await self._dispatcher.handle_requests(request)
        if activated:  # the SDK does not say it
            response.headers[HTTP_EXTENSION_HEADER] = ", ".join(activated)
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        await response(scope, receive, send)

    async def aclose(self) -> None:
        """See `Door.aclose`. Tasks that run are cancelled."""
        await self._handler.aclose()
        await self._caller.aclose()


class _CallContexts(DefaultServerCallContextBuilder):
    """Give each call its sender, whose network owns its tasks."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        for name in (APPLICATION, ADDRESS):
            context.state[name] = request.scope["state"][name]
        return context


class _Replay:
    """The `receive` of a request whose body was read already."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
