"""What is behind a tool: a Python function, or an HTTP API."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints
from urllib.parse import quote

import httpx

from treaty_agent import OperationError
from treaty_consensus.printable import printable
from treaty_io.network.hosts import public_context

from .handlers import run

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
        self.arguments = {each.name: self._type_name(each) for each in parameters if each.kind not in variable}

    async def __call__(self, arguments: Mapping[str, str]) -> str:
        """Return the result as text: a str as it is, anything else by `str`. Raises what the function raises.

        Raises `OperationError` (400) for an argument that is not of its type.
        """
        named = {}
        for name, text in arguments.items():
            try:
                named[name] = self._read(name, text)
            except ValueError as error:
                raise OperationError(400, f"The argument {printable(name, 100)} is not of its type.") from error
        return str(await run(self._function, **named))

    def _type_name(self, parameter: inspect.Parameter) -> str:
        if parameter.annotation is inspect.Parameter.empty:
            return "any"
        found = self._types.get(parameter.name, parameter.annotation)
        return found.__name__ if isinstance(found, type) else str(found)

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
