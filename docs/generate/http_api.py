"""The routes of a registry, from the OpenAPI document that it serves at /schema."""

from __future__ import annotations

import json
from typing import Any

from treaty_registry.app import openapi_document

from . import SITE

_COMMON = frozenset({"400", "405", "414", "431", "500", "503"})


def routes() -> str:
    """Each route with its parameters and its answers. The refusals that every route may give are left out."""
    document: dict[str, Any] = json.loads(openapi_document())
    parts = [
        _operation(method.upper(), path, operation)
        for path, operations in sorted(document["paths"].items())
        for method, operation in operations.items()
    ]
    return "\n\n".join(parts)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f"## `{method} {path}`", "", operation.get("description") or f"{operation['summary']}.", ""]
    parameters = operation.get("parameters", ())
    if parameters:
        lines += ["| parameter | in | form |", "|---|---|---|"]
        lines += [f"| `{found['name']}` | {found['in']} | {_form(found['schema'])} |" for found in parameters]
        lines.append("")
    body = operation.get("requestBody")
    if body:
        lines += [f"Body: {_types(body['content'])}. {body.get('description', '')}".strip(), ""]
    lines += ["| status | answer | media types |", "|---|---|---|"]
    for status, answer in sorted(operation["responses"].items()):
        if status not in _COMMON:
            lines.append(f"| {status} | {answer['description']} | {_types(answer.get('content', {}))} |")
    return "\n".join(lines)


def _form(schema: dict[str, Any]) -> str:
    if "maxLength" in schema:
        return f"text, at most {schema['maxLength']} characters"
    found = schema.get("type") or "/".join(str(one.get("type", "")) for one in schema.get("oneOf", ()))
    return "/".join(found) if isinstance(found, list) else str(found)


def _types(content: dict[str, Any]) -> str:
    return ", ".join(f"`{media_type}`" for media_type in content) or "–"


SITE["http-routes"] = routes
