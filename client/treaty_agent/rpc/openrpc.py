"""Read the methods of an OpenRPC 1.x document, as the official ANP SDK writes them.

    {"openrpc": "1.3.2", "servers": [{"url": URL}], "components": {"schemas": {…}},
     "methods": [{"name": TEXT, "params": [{"name": TEXT, "required": true, "schema": {…}}], "result": {"schema": {…}}}]}

The document is foreign. It has at most 64 methods and the size of a `treaty_handler.Value`. Its URLs are https.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.printable import printable
from treaty_io.codes import RpcCode
from treaty_sandbox.schemas import measure

from .methods import MAX_DESCRIPTION, MAX_METHODS, RemoteMethod, local_schema


def parse_openrpc(document: object, url: str, servers: object = None) -> tuple[RemoteMethod, ...]:
    """Return the methods of a document found at `url`. `servers`: those that count if the document names none.

    Raises `Malformed` (`rpc.answer`) and `TooLarge` (`rpc.answer`).
    """
    if not isinstance(document, dict) or not isinstance(document.get("methods"), list) or "openrpc" not in document:
        raise _malformed(url, "it is no OpenRPC document")
    measure(document, RpcCode.ANSWER, f"The interfaces at {url}")  # first: the code below recurses as deep as the document
    methods = document["methods"]
    if len(methods) > MAX_METHODS:
        raise TooLarge(RpcCode.ANSWER, f"The document at {url} has more than {MAX_METHODS} methods.")
    components = document.get("components")
    schemas = components.get("schemas") if isinstance(components, dict) else None
    definitions = schemas if isinstance(schemas, dict) else {}
    parsed = [_method(item, url, document.get("servers") or servers, definitions) for item in methods]
    # Two methods of one name cannot be told apart in a request; the first is the one that counts.
    return tuple({method.name: method for method in reversed(parsed)}.values())[::-1]


def _method(item: object, url: str, servers: object, definitions: Mapping[str, Any]) -> RemoteMethod:
    match item:
        case {"name": str(name)} if name and len(name) <= 200 and isinstance(item, dict):
            pass
        case _:
            raise _malformed(url, "a method has no name")
    params, result = item.get("params", []), item.get("result")
    if not isinstance(params, list) or not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in params):
        raise _malformed(url, f"the parameters of {printable(name, 80)} are no list of named schemas")
    by_position = item.get("paramStructure") == "by-position"
    return RemoteMethod(
        name=name,
        url=_server(item.get("servers") or servers, url),
        parameters=local_schema(parameters_schema(params), definitions),
        result=local_schema(result["schema"], definitions) if isinstance(result, dict) and "schema" in result else None,
        description=printable(str(item.get("description") or item.get("summary") or ""), MAX_DESCRIPTION),
        order=tuple(one["name"] for one in params) if by_position else None,
    )


def parameters_schema(params: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema of an object with all arguments. `params`: of a method, each with its name."""
    return {
        "type": "object",
        "properties": {param["name"]: param.get("schema", {}) for param in params},
        "required": [param["name"] for param in params if param.get("required") is True],
        "additionalProperties": False,
    }


def _server(servers: object, url: str) -> str:
    """Return the URL of the first server."""
    match servers:
        case [{"url": str(server_url)}, *_]:
            joined = urljoin(url, server_url)
            if urlsplit(joined).scheme == "https":
                return joined
    raise _malformed(url, "it names no server with an https URL")


def _malformed(url: str, why: str) -> Malformed:
    return Malformed(RpcCode.ANSWER, f"The methods at {url} cannot be read: {why}.")
