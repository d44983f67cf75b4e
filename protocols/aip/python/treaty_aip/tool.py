"""The tool: it answers requests, by a handler, a Python function or an HTTP API."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, get_type_hints
from urllib.parse import quote

import httpx

from treaty_agent import OperationError
from treaty_consensus.printable import printable
from treaty_io.line_limit import limited_logger
from treaty_io.network.hosts import public_context

from .calls import Bounds
from .data import Mode, Peer, ToolInfo, copied
from .handlers import public_text, run
from .host import Function
from .messages import ToolRequest, ToolResponse, content_items, written_text
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
        fields = {"name": name, "description": description, "domain": domain, "version": version}
        lists = {"input_mode": input_mode, "output_mode": output_mode}
        changes: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
        changes |= {key: [*value] for key, value in lists.items() if value is not None}
        changes |= {} if arguments is None else {"arguments": dict(arguments)}
        changed = copied(self.tool_info, **changes)
        if self._gateway_address is not None:
            await self._call("update_info", peer=Peer(tool_info=changed))
        self._info = changed
        return self

    def set_process_request_handler(self, handler: Callable[[ToolRequest], Any]) -> Self:
        """Set the function that answers requests, of any `tool_name`. It may be a coroutine.

        It returns a `ToolResponse`, or a content: a text, bytes, a dict (a text of JSON), or a list of these. The message of an
        `OperationError` that it raises is the caller's `error_message`; of any other exception the caller learns the type.
        """
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
        without one is "any". A dict or a list that it returns is a text of JSON. The message of an `OperationError` that it
        raises is the caller's `error_message`; of any other exception the caller learns the type.
        `options`: the keyword arguments of `Tool`.
        """
        executor = FunctionExecutor(function)
        own = function.__name__
        text = executor.description if description is None else description
        named = executor.arguments if arguments is None else arguments
        tool = cls(address, tool_id or own, name or own, domain, text, version, input_mode, output_mode, named, **options)
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
        text = f"{executor.method} {api_url}" if description is None else description
        named = executor.arguments if arguments is None else arguments
        tool = cls(address, own, name, domain, text, version, input_mode, output_mode, named, **options)
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
        if request.tool_name not in ("", self._info.name, self._info.tool_id):
            text = f"This tool is {self._info.name}, not {printable(request.tool_name, 100)}."
            return ToolResponse(is_error=True, error_message=text)
        try:
            return ToolResponse(content=content_items(await self._executor(request.arguments)))
        except Exception as error:  # the function is any code
            if not isinstance(error, OperationError):
                _log.exception("The tool %r failed", self._info.tool_id)
            return ToolResponse(is_error=True, error_message=public_text(error))


MAX_ANSWER = 1024 * 1024
"""Bytes of an API's answer that are read."""
_READERS: Mapping[Any, Callable[[str], Any]] = {int: int, float: float}
_IN_QUERY, _IN_BODY = ("GET", "DELETE"), ("POST", "PUT", "PATCH")
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class FunctionExecutor:
    """Call a Python function with the arguments of a request, which are texts on the wire.

    An argument whose annotation is int or float is read as one; one of bool, list or dict is read as JSON.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Read the function's signature. Raises `OperationError` (400) if an argument cannot be given by name."""
        self._function = function
        self.description = inspect.getdoc(function) or ""
        parameters = inspect.signature(function).parameters.values()
        if any(each.kind is inspect.Parameter.POSITIONAL_ONLY for each in parameters):
            raise OperationError(400, "The arguments of a tool are given by name.")
        try:
            self._types = get_type_hints(function)
        except (NameError, TypeError):
            self._types = {}
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        named = [each for each in parameters if each.kind not in variable]
        self.arguments = {each.name: self._type_name(each) for each in named}
        self._required = [each.name for each in named if each.default is inspect.Parameter.empty]
        self._takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)

    async def __call__(self, arguments: Mapping[str, str]) -> str:
        """Return the result as text: a dict or a list as JSON, anything else by `str`. Raises the errors of the function.

        Raises `OperationError` (400) for an argument that is missing, unknown or not of its type.
        """
        if missing := [name for name in self._required if name not in arguments]:
            raise OperationError(400, f"The argument {missing[0]} is missing.")
        if not self._takes_any and (unknown := [name for name in arguments if name not in self.arguments]):
            names = ", ".join(self.arguments) or "none"
            raise OperationError(400, f"The argument {printable(unknown[0], 100)} is unknown. The arguments are: {names}.")
        named = {}
        for name, text in arguments.items():
            try:
                named[name] = self._read(name, text)
            except ValueError as error:
                raise OperationError(400, f"The argument {printable(name, 100)} is not of its type.") from error
        result = await run(self._function, **named)
        return written_text(result) if isinstance(result, dict | list) else str(result)

    def _type_name(self, parameter: inspect.Parameter) -> str:
        if parameter.annotation is inspect.Parameter.empty:
            return "any"
        annotation = self._types.get(parameter.name, parameter.annotation)
        return annotation.__name__ if isinstance(annotation, type) else str(annotation)

    def _read(self, name: str, text: str) -> Any:
        kind = self._types.get(name)
        if kind in _READERS:
            return _READERS[kind](text)
        if kind is bool or (getattr(kind, "__origin__", kind) in (list, dict)):
            return json.loads(text if kind is not bool else text.lower())
        return text


class ApiExecutor:
    """Call an HTTP API with the arguments of a request."""

    def __init__(self, url: str, method: str, headers: Mapping[str, str], timeout: float) -> None:
        """Read the template. Raises `OperationError` (400) for a method or a URL that is not served."""
        self._url, self.method, self._headers, self._timeout = url, method.upper(), dict(headers), timeout
        if self.method not in (*_IN_QUERY, *_IN_BODY):
            raise OperationError(400, f"The method is one of {', '.join((*_IN_QUERY, *_IN_BODY))}.")
        if not re.match(r"https?://[^/?#{}]+(?=[/?#]|$)", url):
            # A place in the host's name would let a caller choose the host.
            raise OperationError(400, "The URL is http or https, and its host has no {NAME}.")
        self._fixed = frozenset(httpx.URL(_PLACE.sub("x", url)).params)
        self.arguments = dict.fromkeys(_PLACE.findall(url), "any")
        self.name = re.sub(r"\W+", "_", url.partition("://")[2]).strip("_")[:100]

    async def __call__(self, arguments: Mapping[str, str]) -> str:
        """Return the text of the answer. Raises `OperationError` for a status from 400, and httpx' errors."""
        missing = [name for name in self.arguments if name not in arguments and f"{{{name}}}" in self._url]
        if missing:
            raise OperationError(400, f"The argument {missing[0]} is missing.")
        url = _PLACE.sub(lambda place: _segment(arguments[place[1]]), self._url)
        # The owner's own parameters of the query may say whose data the API shows.
        if fixed := [name for name in arguments if name in self._fixed and self.method in _IN_QUERY]:
            raise OperationError(400, f"The argument {printable(fixed[0], 100)} is fixed by the tool.")
        rest = {name: value for name, value in arguments.items() if f"{{{name}}}" not in self._url}
        sent: dict[str, Any] = {"json": rest} if self.method in _IN_BODY else {"params": httpx.URL(url).params.merge(rest)}
        # Redirects are not followed: the headers may hold the owner's token, and the owner named this URL.
        async with (
            httpx.AsyncClient(timeout=self._timeout, follow_redirects=False, verify=public_context()) as client,
            client.stream(self.method, url, headers=self._headers, **sent) as response,
        ):
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER:
                    raise OperationError(502, f"The API's answer has more than {MAX_ANSWER} bytes.")
        text = body.decode(response.encoding or "utf-8", "replace")
        if response.status_code >= 300:
            raise OperationError(502, f"The API answered {response.status_code}: {text[:200]}")
        return text


def _segment(value: str) -> str:
    """Return an argument as a part of a path. A dot or two would be read as another folder."""
    if value in (".", ".."):
        raise OperationError(400, "An argument in a path is not . or ...")
    return quote(value, safe="")
