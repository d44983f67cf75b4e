"""Use the tools of an MCP server of either era, over HTTP (`mcp_endpoint`) or pipes (`mcp_process`).

MCP 2026-07-28 has no session: each request carries its version and the capabilities of the client in `_meta`. Earlier versions
begin with `initialize`. The server is asked for its versions first (`server/discover`). A list with 2026-07-28, or an error that
has one, is the new era, and every other answer is the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treaty_consensus import __version__
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unavailable
from treaty_consensus.printable import printable
from treaty_handler import Value
from treaty_io.codes import RpcCode
from treaty_sandbox.schemas import measure

from .exchange import RpcAnswer
from .mcp_endpoint import McpEndpoint
from .mcp_eras import McpEras
from .mcp_headers import Path, parameter_headers, wanted_headers, without_headers
from .mcp_process import McpProcess
from .methods import MAX_DESCRIPTION, MAX_METHODS, RemoteMethod, local_schema

STATELESS = "2026-07-28"
HANDSHAKE = "2025-11-25"
META = "io.modelcontextprotocol/"
# A server could give another cursor for ever.
MAX_PAGES = 8
# A server may ask to repeat a call with a state of its own, for example when it moves the work to another node.
MAX_ROUNDS = 4
MAX_VERSION = 40
_STATELESS_ERRORS = (-32020, -32021)
"""Errors of the new era alone: other headers than the body, and a missing capability."""


class McpSession:
    """A session with one server. It begins with the first request; `aclose` ends it."""

    def __init__(self, server: McpEndpoint | McpProcess, eras: McpEras | None = None) -> None:
        """Send nothing yet. `eras`: the versions of servers that were met before."""
        self._server, self._eras = server, eras or McpEras()
        self._wanted: dict[str, dict[Path, str]] = {}
        self.version = ""
        """The version that is spoken; "" before the first request."""
        self._is_assumed = False

    async def tools(self) -> tuple[RemoteMethod, ...]:
        """Return the tools of the server that can be called. Raises as `listed`."""
        found = []
        for tool in await self.listed():
            method = read_tool(tool, self._server.name)
            try:
                self._wanted[method.name] = wanted_headers(tool["inputSchema"])
            except ValueError:
                continue  # MCP 2026-07-28: a client leaves such a tool out, and keeps the others
            found.append(method)
        return tuple(found)

    async def listed(self) -> list[Any]:
        """Return the tools of the server as it lists them.

        Raises `Malformed` (`rpc.answer`), `TooLarge` (`rpc.answer`) and the errors of the server's `ask`.
        """
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
        raise TooLarge(RpcCode.ANSWER, f"{self._server.name} lists more than {MAX_METHODS} tools or {MAX_PAGES} pages.")

    async def call(self, tool: RemoteMethod, arguments: Mapping[str, Value]) -> Value:
        """Call a tool; return its structured result, or else the parts of its content. A form for the user is declined.

        Raises `Refused` (`rpc.error`) if the tool failed or asks for something else, `Malformed` (`rpc.answer`), and the errors
        of the server's `ask`.
        """
        name, params = printable(tool.name, 80), dict[str, Any](name=tool.name, arguments=dict(arguments))
        headers = parameter_headers(self._wanted.get(tool.name, {}), arguments)
        for _ in range(MAX_ROUNDS):
            result = await self._request("tools/call", params, headers)
            if not isinstance(result, dict) or not isinstance(result.get("content", []), list):
                raise Malformed(RpcCode.ANSWER, f"{self._server.name} answered the call in another form.")
            if result.get("resultType", "complete") == "complete":
                return _result_of(result, name)
            params = {"name": tool.name, "arguments": dict(arguments), **_declined(result, name)}
        raise Refused(RpcCode.ERROR, f"{name} wants to be called more than {MAX_ROUNDS} times for one result.")

    async def aclose(self) -> None:
        """End the session and its process."""
        await self._server.aclose()

    async def _request(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        if not self.version:
            await self._begin()
        try:
            result = (await self._ask(method, params, self.version, headers or {})).value(method)
        except TreatyError:
            # The server may have changed since its version was remembered. Only what has no effect is repeated.
            if not self._is_assumed or method != "tools/list":
                raise
            self._eras.keep(self._server.origin, "")
            await self._begin()
            result = (await self._ask(method, params, self.version, {})).value(method)
        self._is_assumed = False
        return result

    async def _ask(self, method: str, params: Mapping[str, Any], version: str, headers: Mapping[str, str]) -> RpcAnswer:
        if version != STATELESS:
            return await self._server.ask(method, params, version, {})
        about = {"clientCapabilities": {}, "clientInfo": {"name": "treaty", "version": __version__}, "protocolVersion": version}
        meta = {f"{META}{name}": value for name, value in about.items()}
        return await self._server.ask(method, {**params, "_meta": meta}, version, headers)

    async def _begin(self) -> None:
        """Find the era: the one that is remembered, or else the one that the server names."""
        known = self._eras.get(self._server.origin)
        self._is_assumed = known == STATELESS
        if self._is_assumed:
            self.version = STATELESS  # nothing begins, so the first request says whether it is still so
            return
        if known:
            try:
                await self._handshake()
                return
            except (Refused, Malformed, Unavailable):
                self._eras.keep(self._server.origin, "")
        if await self._is_stateless():
            self._begun(STATELESS)
        else:
            await self._handshake()

    async def _is_stateless(self) -> bool:
        try:
            answer = await self._ask("server/discover", {}, STATELESS, {})
        except TreatyError as error:
            # A server of the old era may answer with any status. A failed connection fails again at the handshake.
            if error.code in (RpcCode.UNREACHABLE, RpcCode.ANSWER):
                return False
            raise
        if answer.error is not None and answer.error.get("code") in _STATELESS_ERRORS:
            return True
        named = answer.result if answer.error is None else answer.error.get("data")
        versions = named.get("supportedVersions", named.get("supported")) if isinstance(named, dict) else None
        return isinstance(versions, list) and STATELESS in versions

    async def _handshake(self) -> None:
        info = {"name": "treaty", "version": __version__}
        params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": info}
        match (await self._server.ask("initialize", params, "", {})).value("initialize"):
            case {"protocolVersion": str(chosen)} if chosen.isascii() and chosen.isprintable() and len(chosen) <= MAX_VERSION:
                await self._server.notify("notifications/initialized", chosen)
                self._begun(chosen)
            case _:
                raise self._malformed("the answer to initialize has no protocolVersion")

    def _begun(self, version: str) -> None:
        self.version = version
        self._eras.keep(self._server.origin, version)

    def _malformed(self, why: str) -> Malformed:
        return _malformed(self._server.name, why)


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
                parameters=local_schema(without_headers(parameters)),
                result=local_schema(result) if isinstance(result, dict) else None,
                description=printable(str(tool.get("description") or ""), MAX_DESCRIPTION),
            )
    raise _malformed(url, "a tool has no name or no schema of its input")


def _result_of(result: Mapping[str, Any], name: str) -> Value:
    if result.get("isError") is True:
        error_text = " ".join(str(part.get("text", "")) for part in result.get("content", []) if isinstance(part, dict))
        raise Refused(RpcCode.ERROR, f"{name} failed at the agent: {printable(error_text[:600], 300)}")
    answer: Value = result["structuredContent"] if "structuredContent" in result else result.get("content", [])
    return answer


def _declined(result: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the members of the next request for a call that asks for inputs: each form is declined.

    Raises `Refused` (`rpc.error`) for an input of another kind.
    """
    asked = result.get("inputRequests") or {}
    is_known = result["resultType"] == "input_required" and isinstance(asked, dict) and len(asked) <= MAX_ROUNDS
    if not is_known or not all(isinstance(one, dict) and one.get("method") == "elicitation/create" for one in asked.values()):
        raise Refused(RpcCode.ERROR, f"{name} asks its caller for an input, which this client does not give.")
    members: dict[str, Any] = {"inputResponses": {key: {"action": "decline"} for key in asked}} if asked else {}
    # The state is the server's own and goes back as it came; without one the next request has none.
    return {**members, "requestState": result["requestState"]} if "requestState" in result else members


def _malformed(url: str, why: str) -> Malformed:
    return Malformed(RpcCode.ANSWER, f"The tools of {url} cannot be read: {why}.")
