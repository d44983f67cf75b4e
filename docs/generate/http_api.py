"""The routes of a registry, from the OpenAPI document that it serves at /schema."""

from __future__ import annotations

import json
from typing import Any

from treaty_registry.app import openapi_document

from . import SITE
from .limits import table


def routes() -> str:
    """A line for each route, then the meaning of each refusal."""
    document: dict[str, Any] = json.loads(openapi_document())
    operations = [
        (method.upper(), path, operation)
        for path, methods in sorted(document["paths"].items())
        for method, operation in methods.items()
    ]
    return "\n".join([*(_operation(*found) for found in operations), "", _refusals(operations)])


def _is_refusal(status: str) -> bool:
    return status >= "400"


def _refusals(operations: list[tuple[str, str, dict[str, Any]]]) -> str:
    answers = [answer for *_, operation in operations for answer in operation["responses"].items()]
    meanings = {status: answer["description"] for status, answer in answers if _is_refusal(status)}
    return table(("status", "refusal"), sorted(meanings.items()))


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    """A line of the route: its meaning, its body and its parameters. The document at `/schema` has the types and answers."""
    meaning = operation.get("description") or f"{operation['summary']}."
    line = f"- `{method} {path}`: {meaning}"
    if body := operation.get("requestBody"):
        line += f" Body: {', '.join(f'`{media_type}`' for media_type in body['content'])}."
    for place in ("query", "header"):
        if names := [f"`{found['name']}`" for found in operation.get("parameters", ()) if found["in"] == place]:
            line += f" {place.capitalize()}: {', '.join(names)}."
    return line


SITE["http-routes"] = routes
