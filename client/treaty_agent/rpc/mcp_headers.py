"""The headers of a request of MCP 2026-07-28 over HTTP: its method, its name, and the arguments that a tool wants as headers.

A property of a tool's schema may have `"x-mcp-header": "Region"`: its argument is sent as `Mcp-Param-Region` too, so that a
proxy can route without reading the body. The property is reached from the root by `properties` alone, and is a string, an integer
or a boolean. A value that is no plain ASCII is sent as `=?base64?…?=`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

KEYWORD = "x-mcp-header"
PARAMETER = "Mcp-Param-"
NAMED: Mapping[str, str] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The methods whose subject is the header `Mcp-Name`, and the parameter that has it."""
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,100}")
_PLAIN = re.compile(r"[\x20-\x7e]*")
_SENTINEL = re.compile(r"=\?base64\?.*\?=")
_TYPES = ("string", "integer", "boolean")
_DATA = ("const", "default", "enum", "examples")

Path = tuple[str, ...]


def routing_headers(method: str, params: Mapping[str, Any], version: str) -> dict[str, str]:
    """Return the headers by which a proxy routes a request."""
    subject = params.get(NAMED.get(method, ""))
    named = {"Mcp-Name": header_value(subject)} if isinstance(subject, str) else {}
    return {"MCP-Protocol-Version": version, "Mcp-Method": header_value(method), **named}


def header_value(text: str) -> str:
    """Return a text as the value of a header."""
    if _PLAIN.fullmatch(text) and text == text.strip() and not _SENTINEL.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="


def wanted_headers(schema: Mapping[str, Any]) -> dict[Path, str]:
    """Return the headers that the schema of a tool's input wants, by the place of their argument. The caller bounds the depth of
    the schema. Raises `ValueError` with the reason if one of them is not valid."""
    wanted: dict[Path, str] = {}
    for path, node in _annotated(schema, ()):
        token = node[KEYWORD]
        if not path:
            raise ValueError("a header is wanted for a value that is no argument")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise ValueError("the name of a header is no token")
        if node.get("type") not in _TYPES:
            raise ValueError("a header is wanted for a value that is neither string nor integer nor boolean")
        if token.lower() in {one.lower() for one in wanted.values()}:
            raise ValueError("two arguments want one header")
        wanted[path] = token
    return wanted


def parameter_headers(wanted: Mapping[Path, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a call. An argument that is absent or null has none."""
    headers = {}
    for path, token in wanted.items():
        value: Any = arguments
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            headers[PARAMETER + token] = "true" if value else "false"
        elif isinstance(value, str | int):
            headers[PARAMETER + token] = header_value(str(value))
    return headers


def without_headers(schema: Any) -> Any:
    """Return a schema without the keyword, which is no part of JSON Schema."""
    if isinstance(schema, list):
        return [without_headers(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for name, value in schema.items():
        if name == "properties" and isinstance(value, dict):  # one of them may have the name of the keyword
            kept[name] = {one: without_headers(item) for one, item in value.items()}
        elif name != KEYWORD:
            kept[name] = value if name in _DATA else without_headers(value)
    return kept


def _annotated(node: Any, path: Path | None) -> Iterator[tuple[Path | None, Mapping[str, Any]]]:
    """Yield each part of a schema that wants a header, and its place; None for one that `properties` alone do not reach."""
    if isinstance(node, list):
        for item in node:
            yield from _annotated(item, None)
    if not isinstance(node, dict):
        return
    if KEYWORD in node:
        yield path, node
    for name, value in node.items():
        if name == "properties" and isinstance(value, dict):
            for one, item in value.items():
                yield from _annotated(item, None if path is None else (*path, one))
        elif name in ("$defs", "definitions", "dependentSchemas", "patternProperties") and isinstance(value, dict):
            for item in value.values():
                yield from _annotated(item, None)
        elif name not in _DATA and name != KEYWORD:
            yield from _annotated(value, None)
