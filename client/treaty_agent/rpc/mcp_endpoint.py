"""An MCP server at a URL, over streamable HTTP. Only answers to own requests are read, and no stream is kept open."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from treaty_consensus.errors import TreatyError

from .exchange import RpcAnswer, RpcExchange
from .mcp_headers import routing_headers


class McpEndpoint:
    """Sends the messages of one session to a URL."""

    def __init__(self, url: str, exchange: RpcExchange) -> None:
        """Send nothing yet."""
        parts = urlsplit(url)
        self.name, self.origin = url, f"{parts.scheme}://{parts.netloc}"
        self._exchange, self._session = exchange, dict[str, str]()

    async def ask(self, method: str, params: Mapping[str, Any], version: str, more: Mapping[str, str]) -> RpcAnswer:
        """Send a request. `version`: "" before it is known. `more`: further headers. Raises as `RpcExchange.ask`."""
        headers = routing_headers(method, params, version) if version else {}
        answer = await self._exchange.ask(self.name, method, params, {**headers, **self._session, **more})
        # A server of the handshake may keep a session; it is named in each later request.
        if (session := answer.headers.get("mcp-session-id")) is not None:
            self._session = {"Mcp-Session-Id": session}
        return answer

    async def notify(self, method: str, version: str) -> None:
        """Send a notification. Raises as `RpcExchange.notify`."""
        await self._exchange.notify(self.name, method, {**routing_headers(method, {}, version), **self._session})

    async def aclose(self) -> None:
        """End the session, if the server keeps one. A server that does not answer forgets it by itself."""
        if self._session:
            with suppress(TreatyError):
                await self._exchange.send("DELETE", self.name, b"", self._session)
