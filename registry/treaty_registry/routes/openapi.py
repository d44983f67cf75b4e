"""Make the OpenAPI document from the routes, and add the form of each parameter, which the framework cannot know.

The rules themselves are in `treaty_consensus`; the patterns here repeat them for programs that read the document.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Litestar, get
from litestar.di import NamedDependency

from ..catalogue.facets import VALUES
from ..catalogue.retrieval import SORTS
from ..catalogue.search import MAX_QUERY
from ..serving.representation import Representation
from ..serving.views import Views

_DIGEST = "[0-9a-f]{64}"
_NAME = "[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?"
_TOPIC = f"{_NAME}(?:/{_NAME}){{0,3}}"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = rf"(?:{_LABEL}\.)*[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?"  # many parsers read a last label of digits as an IP address
_PORT = "(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_SEGMENT = r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}|\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}|\.\.[A-Za-z0-9._-]{1,62})"
_BASE58 = "[1-9A-HJ-NP-Za-km-z]"
# The ranges are the base58 spellings of an Ed25519 multikey (0xed01 and 32 bytes).
_KEY = f"did:key:z6Mk(?:e[U-Za-km-z]|[f-km-v]{_BASE58}|w[1-9A-HJ-NP-Za-f]){_BASE58}{{42}}"
_DID = f"(?:did:(?:wba|web):{_HOST}(?:%3A{_PORT})?(?::{_SEGMENT})*|{_KEY})"
_NUMBER = "(?:0|[1-9][0-9]{0,14})"
_VERSION = rf"(?:[1-9][0-9]{{0,3}}!)?{_NUMBER}(?:\.{_NUMBER})*(?:(?:a|b|rc){_NUMBER})?(?:\.post{_NUMBER})?(?:\.dev{_NUMBER})?"
_TILE = r"(?:[0-9]|[1-5][0-9]|6[0-3]|entries)/(?:x[0-9]{3}/){0,5}[0-9]{3}(?:\.p/[1-9][0-9]{0,2})?"
_TEXT = r"^[^\x00-\x1f\x7f]*$"
_SUFFIX = r"(?:\.(?:{}))?"

_FORMS: dict[str, dict[str, object]] = {
    "digest": {"pattern": f"^{_DIGEST}$"},
    "sha256": {"pattern": f"^{_DIGEST}$"},
    "hash": {"pattern": f"^{_DIGEST}$"},
    "statement": {"pattern": f"^{_DIGEST}$"},
    "did": {"pattern": f"^{_DID}$", "maxLength": 255},
    "namespace": {"pattern": rf"^(?:{_HOST}(?::{_SEGMENT})*|{_KEY})$", "maxLength": 247},
    "name": {"pattern": f"^{_NAME}$"},
    "version": {"pattern": f"^{_VERSION}{_SUFFIX.format('json|md|bundle')}$", "maxLength": 64},
    "topic": {"pattern": f"^{_TOPIC}$", "maxLength": 160},
    "after": {"pattern": f"^(?:{_TOPIC})?$", "maxLength": 160},
    "path": {"pattern": f"^{_TILE}$", "maxLength": 58},
    "uri": {"pattern": _TEXT, "minLength": 1, "maxLength": 512},
    "q": {"pattern": _TEXT, "maxLength": MAX_QUERY},
    "Treaty-Statement": {"pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$", "maxLength": 16 * 1024},
}
"""By the name of a parameter."""
_OF_ONE_ROUTE: dict[tuple[str, str], dict[str, object]] = {
    ("/topics/{topic}", "topic"): {"pattern": f"^{_TOPIC}{_SUFFIX.format('json|bundle')}$", "maxLength": 160},
    ("/protocols", "topic"): {"pattern": f"^(?:{_TOPIC})?$", "maxLength": 160},
    ("/protocols", "namespace"): {"pattern": rf"^(?:{_HOST}(?::{_SEGMENT})*|{_KEY})?$", "maxLength": 247},
    **{("/protocols", facet): {"enum": ["", *values]} for facet, values in VALUES.items()},
    ("/protocols", "sort"): {"enum": ["", *SORTS]},
    ("/protocols", "cursor"): {
        "pattern": f"^(?:[1-3]?[0-9]-[0-3]-{_NUMBER}|s-(?:100|[1-9]?[0-9])-{_NUMBER}|{_NUMBER})$",
        "maxLength": 40,
    },
    ("/index/{namespace}/simple/{project}", "project"): {"pattern": r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,158}[A-Za-z0-9])?$"},
    ("/index/{namespace}/files/{digest}/{filename}", "filename"): {"pattern": r"^[a-z0-9_]+-[a-z0-9.+!]+-py3-none-any\.whl$"},
    ("/feeds/{kind}", "name"): {"pattern": _TEXT, "minLength": 1, "maxLength": 512},
    ("/standing/{did}", "cursor"): {"pattern": f"^{_NUMBER}-{_NUMBER}$"},
    ("/speakers", "cursor"): {"pattern": f"^{_NUMBER}-{_NUMBER}-{_DID}$", "maxLength": 600},
}
"""By a route and the name of one of its parameters."""
_REQUIRED = {("/ballots", "did")}
"""Parameters that the page of a route does not need, and that its JSON needs."""


def encoded(described: Litestar) -> bytes:
    """Return the OpenAPI document of an application's routes, as JSON."""
    document: dict[str, Any] = described.openapi_schema.to_schema()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                _describe(path, parameter)
    # A transcript is sent as stored bytes, so the framework would describe it as any value, including null.
    decision = next(value for name, value in document["components"]["schemas"].items() if name.endswith("DecisionView"))
    decision["properties"]["transcript"] = {"type": ["object", "null"]}
    return msgspec.json.encode(document)


def _describe(path: str, parameter: dict[str, Any]) -> None:
    name: str = parameter["name"]
    if (path, name) in _REQUIRED:
        parameter["required"] = True
    form = _OF_ONE_ROUTE.get((path, name)) or _FORMS.get(name)
    if form is not None:
        description = parameter["schema"].get("description")
        parameter["schema"] = {"type": "string", **form} | ({"description": description} if description else {})


@get(["/schema", "/schema/openapi.json"], include_in_schema=False)
async def schema(views: NamedDependency[Views], openapi: NamedDependency[bytes]) -> Representation:
    """Return the OpenAPI document of this registry."""
    return views.constant("/schema", openapi)
