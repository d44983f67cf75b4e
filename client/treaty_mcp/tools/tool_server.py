"""The tools of one server, over pipes or HTTP, in every version that the official SDK speaks.

The list is made at the start, has one order, and is the same for every connection. A tool that fails answers with `isError`, so
that a model can read why. The documents that `read` finds are resources too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS

from treaty_consensus import __version__
from treaty_consensus.errors import Malformed, TreatyError
from treaty_io.codes import RpcCode

from .consent import Consent
from .quoting import line
from .tool import Tool

PROOF = "treaty/proof"
"""The member of `_meta` that has the proof of a result."""
_CACHED: tuple[CacheableMethod, ...] = (
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
    "server/discover",
)
MAX_CALLS = 32
# A registry or an agent that is asked has deadlines of its own; this one is for all of them together.
PATIENCE = 120.0
# The list changes with the process alone.
LIFETIME = CacheHint(ttl_ms=300_000, scope="public")

_Context = ServerRequestContext[Any]
_log = logging.getLogger(__name__)


class ToolServer:
    """Some tools. For one event loop. `server`: that of the SDK."""

    def __init__(self, instructions: str, tools: Sequence[Tool], *, reader: Tool, documents: Sequence[str] = ()) -> None:
        """`reader`: the tool that returns the document of a `uri`. `documents`: the URIs that are listed as resources.

        Raises `Malformed` (`rpc.answer`) for two tools of one name.
        """
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            raise Malformed(RpcCode.ANSWER, "Two tools have the same name.", fix="Name one protocol of this name only.")
        self._listed = [_listed(tool) for tool in tools]
        self._reader, self._documents, self._consent = reader, documents, Consent()
        self._turns = asyncio.Semaphore(MAX_CALLS)
        self.server: Server[Any] = Server(
            "treaty",
            version=__version__,
            instructions=instructions,
            cache_hints=dict.fromkeys(_CACHED, LIFETIME),
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_list_resources=self._list_documents,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_document,
            on_list_prompts=self._list_prompts,
        )

    async def serve_pipes(self) -> None:
        """Serve on standard input and output until the host closes them."""
        async with stdio_server() as (reads, writes):
            await self.server.run(reads, writes, self.server.create_initialization_options())

    async def _list(self, context: _Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._listed)

    async def _call(
        self, context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"There is no tool {line(params.name, 80)}.")
        arguments = params.arguments or {}
        try:
            async with self._turns, asyncio.timeout(PATIENCE):
                if (question := tool.question(arguments)) and (asks := await self._consent.ask(question, params, context)):
                    return asks
                result = await tool.run(arguments)
        except TreatyError as error:
            fix = f" {line(error.fix)}" if error.fix else ""
            return _failed(f"{error.code}: {line(error.message, 2 * 512)}{fix}")
        except TimeoutError:
            return _failed(f"It took more than {PATIENCE:.0f} seconds.")
        except MCPError:
            raise
        except Exception:
            _log.exception("the tool %s failed", tool.name)
            return _failed("The tool failed. Its server has the reason in its log.")
        text = result.text or json.dumps(result.value, ensure_ascii=False)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structured_content=result.value,
            **_proof(result.proof),
        )

    async def _list_documents(self, context: _Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        named = [
            types.Resource(uri=uri, name=uri.rpartition("/protocols/")[2], mime_type="text/markdown") for uri in self._documents
        ]
        return types.ListResourcesResult(resources=named)

    async def _read_document(self, context: _Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            async with self._turns, asyncio.timeout(PATIENCE):
                result = await self._reader.run({"uri": str(params.uri)})
        except (TreatyError, TimeoutError) as error:
            data = {"uri": str(params.uri)[:512]}
            raise MCPError(INVALID_PARAMS, f"There is no such document: {line(str(error))}", data) from error
        contents = types.TextResourceContents(uri=params.uri, mime_type="text/markdown", text=result.text)
        return types.ReadResourceResult(contents=[contents], **_proof(result.proof))

    async def _list_templates(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[])

    async def _list_prompts(self, context: _Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[])


def _listed(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=tool.is_read_only, idempotent_hint=tool.is_idempotent, destructive_hint=False, open_world_hint=True
    )
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=dict(tool.arguments),
        output_schema=dict(tool.result),
        annotations=hints,
    )


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _proof(proof: Mapping[str, Any]) -> dict[str, Any]:
    return {"_meta": {PROOF: dict(proof)}} if proof else {}
