"""The routes of a registry, from the OpenAPI document that it serves at /schema."""

from __future__ import annotations

import json
from typing import Any

from treaty_registry.app import openapi_document

from . import SITE
from .limits import table

_COMMON = frozenset({"400", "405", "414", "431", "500", "503"})
"""Refusals that every route may give."""
_UNCHANGED = "304"


def routes() -> str:
    """The meaning of each refusal, then each route with its parameters and its answers."""
    document: dict[str, Any] = json.loads(openapi_document())
    operations = [
        (method.upper(), path, operation)
        for path, methods in sorted(document["paths"].items())
        for method, operation in methods.items()
    ]
    return "\n\n".join([_refusals(operations), *(_operation(*found) for found in operations)])


def _is_refusal(status: str) -> bool:
    return status >= "400"


def _refusals(operations: list[tuple[str, str, dict[str, Any]]]) -> str:
    answers = [answer for *_, operation in operations for answer in operation["responses"].items()]
    meanings = {status: answer["description"] for status, answer in answers if _is_refusal(status)}
    return table(("status", "refusal"), sorted(meanings.items()))


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f"## `{method} {path}`", "", operation.get("description") or f"{operation['summary']}.", ""]
    for place in ("query", "header"):
        if names := [f"`{found['name']}`" for found in operation.get("parameters", ()) if found["in"] == place]:
            lines.append(f"- {place.capitalize()}: {', '.join(names)}.")
    if body := operation.get("requestBody"):
        lines.append(f"- Body: {_types(body['content'])}. {body.get('description', '')}".rstrip())
    answers = sorted(operation["responses"].items())
    for status, answer in answers:
        if not _is_refusal(status) and status != _UNCHANGED:
            types = f" {_types(answer['content'])}" if answer.get("content") else ""
            lines.append(f"- {status}{types}: {answer['description']}")
    if refusals := [status for status, _ in answers if _is_refusal(status) and status not in _COMMON]:
        lines.append(f"- Refusals: {', '.join(refusals)}.")
    return "\n".join(lines)


def _types(content: dict[str, Any]) -> str:
    return ", ".join(f"`{media_type}`" for media_type in content)


SITE["http-routes"] = routes
