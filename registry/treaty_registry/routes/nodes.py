"""Serve `/nodes/proposals`, on which the nodes of one registry send each other what they admitted."""

from __future__ import annotations

from litestar import Response, post
from litestar.di import NamedDependency

from treaty_consensus.errors import NotFound

from ..cache_control import NO_STORE
from ..codes import HttpCode
from ..log.forwarding import HEADER, MAX_REQUEST, PATH
from ..registry import Registry
from ..serving.representation import OCTETS
from .requests import HttpRequest, read_body


# Not in the OpenAPI document: only processes with the log's key can use it.
@post(PATH, status_code=200, include_in_schema=False)
async def proposals(request: HttpRequest, registry: NamedDependency[Registry]) -> Response[bytes]:
    """Place the proposals of another node."""
    if registry.nodes is None:
        raise NotFound(HttpCode.NOT_FOUND, f"Nothing is served at {PATH}.")
    body = await read_body(request, MAX_REQUEST)
    answer, code = await registry.nodes.take(registry.sequencer, body, request.headers.get(HEADER, ""))
    return Response(answer, media_type=OCTETS, headers={HEADER: code, "Cache-Control": NO_STORE})
