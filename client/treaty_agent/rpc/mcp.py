"""Speak with an MCP server over streamable HTTP (MCP 2025-06-18): `initialize`, `tools/list`, `tools/call`.

Only answers to own requests are read. Requests and notifications of the server are ignored, and no stream is kept open for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from treaty_consensus import __version__
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError
from treaty_consensus.printable import printable
from treaty_handler import Value
from treaty_io.codes import RpcCode
from treaty_sandbox.schemas import measure

from .exchange import RpcExchange
from .methods import MAX_DESCRIPTION, MAX_METHODS, RemoteMethod, local_schema

VERSION = "2025-06-18"
# A server could give another cursor for ever.
MAX_PAGES = 8


class McpSession:
    """A session with the server at one URL. It begins with the first request; `aclose` ends it."""

    def __init__(self, url: str, exchange: RpcExchange) -> None:
        self._url, self._exchange = url, exchange
        self._headers: dict[str, str] = {}

    async def tools(self) -> tuple[RemoteMethod, ...]:
        """Return the tools of the server. Raises as `listed`."""
        return tuple(read_tool(tool, self._url) for tool in await self.listed())

    async def listed(self) -> list[Any]:
        """Return the tools of the server as it lists them.

        Raises `Malformed` (`rpc.answer`), `TooLarge` (`rpc.answer`) and the errors of `RpcExchange.call`.
        """
        await self._begin()
        listed: list[Any] = []
        cursor = None
        for _ in range(MAX_PAGES):
            page = await self._request("tools/list", {"cursor": cursor} if cursor else {})
            match page:
                case {"tools": list(tools)}:
                    listed += tools[: MAX_METHODS + 1]
                case _:
                    raise self._malformed("the list of tools has another form")
            cursor = page.get("nextCursor")
            if len(listed) > MAX_METHODS:
                break
            if not isinstance(cursor, str) or not cursor:
                return listed
        raise TooLarge(RpcCode.ANSWER, f"{self._url} lists more than {MAX_METHODS} tools or {MAX_PAGES} pages.")

    async def call(self, tool: RemoteMethod, arguments: Mapping[str, Value]) -> Value:
        """Call a tool; return its structured result, or else the parts of its content.

        Raises `Refused` (`rpc.error`) if the tool failed, `Malformed` (`rpc.answer`), and the errors of `RpcExchange.call`.
        """
        result = await self._request("tools/call", {"name": tool.name, "arguments": dict(arguments)})
        if not isinstance(result, dict) or not isinstance(result.get("content", []), list):
            raise Malformed(RpcCode.ANSWER, f"{self._url} answered the call in another form.")
        if result.get("isError") is True:
            error_text = " ".join(str(part.get("text", "")) for part in result.get("content", []) if isinstance(part, dict))
            raise Refused(RpcCode.ERROR, f"{printable(tool.name, 80)} failed at the agent: {printable(error_text[:600], 300)}")
        answer: Value = result["structuredContent"] if "structuredContent" in result else result.get("content", [])
        return answer

    async def aclose(self) -> None:
        """End the session, if the server keeps one. A server that does not answer forgets it by itself."""
        if "Mcp-Session-Id" in self._headers:
            with suppress(TreatyError):
                await self._exchange.send("DELETE", self._url, b"", self._headers)

    async def _begin(self) -> None:
        if self._headers:
            return
        info = {"name": "treaty", "version": __version__}
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": info}
        result, headers = await self._exchange.call(self._url, "initialize", params, {})
        match result:
            case {"protocolVersion": str(chosen)} if chosen.isascii() and chosen.isprintable() and len(chosen) <= 20:
                self._headers = {"MCP-Protocol-Version": chosen}
            case _:
                raise self._malformed("the answer to initialize has no protocolVersion")
        session = headers.get("mcp-session-id")
        if session is not None:
            self._headers["Mcp-Session-Id"] = session
        await self._exchange.notify(self._url, "notifications/initialized", self._headers)

    async def _request(self, method: str, params: object) -> Any:
        result, _ = await self._exchange.call(self._url, method, params, self._headers)
        return result

    def _malformed(self, why: str) -> Malformed:
        return _malformed(self._url, why)


def read_tool(tool: Any, url: str) -> RemoteMethod:
    """Return a tool of the answer to `tools/list`. Raises `Malformed` (`rpc.answer`)."""
    # The depth is bounded first, because the schemas are rewritten by recursion.
    measure(tool, RpcCode.ANSWER, f"The tools of {url}")
    match tool:
        case {"name": str(name), "inputSchema": dict(parameters)} if name and len(name) <= 200:
            result = tool.get("outputSchema")
            return RemoteMethod(
                name=name,
                url=url,
                parameters=local_schema(parameters),
                result=local_schema(result) if isinstance(result, dict) else None,
                description=printable(str(tool.get("description") or ""), MAX_DESCRIPTION),
            )
    raise _malformed(url, "a tool has no name or no schema of its input")


def _malformed(url: str, why: str) -> Malformed:
    return Malformed(RpcCode.ANSWER, f"The tools of {url} cannot be read: {why}.")
