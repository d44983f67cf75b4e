"""The tool: it answers requests, by a handler, a Python function or an HTTP API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

from treaty_agent import OperationError
from treaty_io.line_limit import limited_logger

from .calls import Bounds
from .data import Mode, Peer, ToolInfo, copied
from .executors import ApiExecutor, FunctionExecutor
from .handlers import public_text, run
from .host import Function
from .messages import ToolRequest, ToolResponse, content_items
from .node import HEARTBEAT_INTERVAL, GatewayNode
from .security import Security

_log = limited_logger(__name__)
Executor = Callable[[Mapping[str, str]], Awaitable[str]]


class Tool(GatewayNode):
    """A tool. For one event loop."""

    _service = "ToolService"

    def __init__(
        self,
        address: str,
        tool_id: str,
        name: str | None = None,
        domain: str = "default",
        description: str = "",
        version: str = "1.0.0",
        input_mode: Sequence[Mode] = (Mode.TEXT,),
        output_mode: Sequence[Mode] = (Mode.TEXT,),
        arguments: Mapping[str, str] | None = None,
        *,
        security: Security | None = None,
        bounds: Bounds | None = None,
        heartbeat_interval: float = HEARTBEAT_INTERVAL,
    ) -> None:
        """Start nothing."""
        super().__init__(address, security, bounds, heartbeat_interval)
        self._info = ToolInfo(
            tool_id, address, name or tool_id, domain, [*input_mode], [*output_mode], description, dict(arguments or {}), version
        )
        self._executor: Executor | None = None
        self._handler: Callable[[ToolRequest], Any] = self._execute

    @property
    def tool_info(self) -> ToolInfo:
        """The description that a registration sends."""
        return copied(self._info, address=self.address)  # type: ignore[no-any-return]

    async def update_tool_info(
        self,
        name: str | None = None,
        description: str | None = None,
        domain: str | None = None,
        version: str | None = None,
        input_mode: Sequence[Mode] | None = None,
        output_mode: Sequence[Mode] | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> Self:
        """Change the description, and tell the gateway if there is one. None leaves a part as it is.

        Raises `OperationError`; then nothing has changed.
        """
        given = {"name": name, "description": description, "domain": domain, "version": version}
        lists = {"input_mode": input_mode, "output_mode": output_mode}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        changes |= {key: [*value] for key, value in lists.items() if value is not None}
        changes |= {} if arguments is None else {"arguments": dict(arguments)}
        changed = copied(self.tool_info, **changes)
        if self._gateway_address is not None:
            await self._call("update_info", peer=Peer(tool_info=changed))
        self._info = changed
        return self

    def set_process_request_handler(self, handler: Callable[[ToolRequest], Any]) -> Self:
        """Set the function that answers requests. It may be a coroutine; it returns a `ToolResponse`, or a content."""
        self._handler = handler
        return self

    @classmethod
    def creat_function_tool(
        cls,
        function: Callable[..., Any],
        address: str,
        tool_id: str | None = None,
        name: str | None = None,
        domain: str = "default",
        description: str | None = None,
        version: str = "1.0.0",
        input_mode: Sequence[Mode] = (Mode.TEXT,),
        output_mode: Sequence[Mode] = (Mode.TEXT,),
        arguments: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Tool:
        """Return a tool for a Python function.

        Id and name are the function's name, the description is its docstring, and the arguments are its annotations; an argument
        without one is "any". `options`: the keyword arguments of `Tool`.
        """
        executor = FunctionExecutor(function)
        own = function.__name__
        told = executor.description if description is None else description
        named = executor.arguments if arguments is None else arguments
        tool = cls(address, tool_id or own, name or own, domain, told, version, input_mode, output_mode, named, **options)
        tool._executor = executor
        return tool

    @classmethod
    def creat_api_tool(
        cls,
        address: str,
        api_url: str,
        api_method: str = "GET",
        api_headers: Mapping[str, str] | None = None,
        api_timeout: int = 30,
        tool_id: str | None = None,
        name: str | None = None,
        domain: str = "default",
        description: str | None = None,
        version: str = "1.0.0",
        input_mode: Sequence[Mode] = (Mode.TEXT,),
        output_mode: Sequence[Mode] = (Mode.TEXT,),
        arguments: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Tool:
        """Return a tool for an HTTP API.

        `api_url`: `{NAME}` in it is replaced by that argument. Other arguments go into the query of GET and DELETE, and into a
        JSON body of POST, PUT and PATCH. `api_timeout`: seconds. `options`: the keyword arguments of `Tool`.
        Raises `OperationError` (400) for another method.
        """
        executor = ApiExecutor(api_url, api_method, api_headers or {}, api_timeout)
        own = tool_id or name or executor.name
        told = f"{executor.method} {api_url}" if description is None else description
        named = executor.arguments if arguments is None else arguments
        tool = cls(address, own, name, domain, told, version, input_mode, output_mode, named, **options)
        tool._executor = executor
        return tool

    create_function_tool = creat_function_tool
    create_api_tool = creat_api_tool

    def _peer(self) -> Peer:
        return Peer(tool_info=self.tool_info)

    def _registered(self, response: Mapping[str, Any]) -> None:
        """Keep nothing: a tool knows no peers."""

    def _functions(self) -> Mapping[str, Function]:
        return {"process_request": self._process}

    async def _process(self, arguments: Any) -> Any:
        request = ToolRequest.from_value(arguments["request"])
        answer = await run(self._handler, request)
        if not isinstance(answer, ToolResponse):
            answer = ToolResponse(content=content_items(answer))
        # The source's handlers leave the ids out.
        answer.sender_id = answer.sender_id or request.receiver_id
        answer.receiver_id = answer.receiver_id or request.sender_id
        answer.session_id = answer.session_id or request.session_id
        return answer.to_value()

    async def _execute(self, request: ToolRequest) -> ToolResponse:
        """Answer by the function or the API, as a text. Its failure is a response."""
        if self._executor is None:
            return ToolResponse(is_error=True, error_message="This tool has no handler.")
        try:
            return ToolResponse(content=content_items(await self._executor(request.arguments)))
        except Exception as error:  # the function is any code
            if not isinstance(error, OperationError):
                _log.exception("The tool %r failed", self._info.tool_id)
            return ToolResponse(is_error=True, error_message=public_text(error))
