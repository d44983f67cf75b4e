"""Serve `/hashes` and `/resolve`: the protocols that a hash or a foreign name may mean."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from treaty_consensus.canonical import parse_digest
from treaty_consensus.protocol import MAX_URI

from ..catalogue.resources import HashMatches, Resolution
from ..log.changes import CATALOGUE
from ..pages.pages import Pages
from ..serving.representation import Representation
from ..serving.views import Views
from .documentation import READ, answers
from .requests import HttpRequest, is_for_people, target

Name = Annotated[str, QueryParameter(name="uri", min_length=1, max_length=MAX_URI, description="The name, percent-encoded.")]


@get(
    "/hashes/{sha256:str}",
    summary="Protocols by hash",
    responses=answers(HashMatches, "In the order of publication.", 404, *READ),
)
async def by_hash(
    sha256: FromPath[str], request: HttpRequest, views: NamedDependency[Views], pages: NamedDependency[Pages]
) -> Representation:
    """Return the protocols whose document has this SHA-256."""
    digest = parse_digest(sha256)
    if is_for_people(request):
        return await pages.by_hash(digest)
    return await views.json(target(f"/hashes/{digest}"), lambda: views.catalogue.by_hash(digest), CATALOGUE)


@get("/resolve", summary="What a name may mean", responses=answers(Resolution, "Every match; none is picked.", *READ))
async def resolve(
    uri: Name, request: HttpRequest, views: NamedDependency[Views], pages: NamedDependency[Pages]
) -> Representation:
    """Return all protocols that a name may mean.

    A name is a protocol's URI or hash, Agora's SHA-1 (hexadecimal or base64), or an alias that a publisher claims: a canonical
    URI elsewhere, an A2A extension URI, `anp:protocol:NAME:VERSION`, a purl. An alias is `verified` only when its host is the
    publisher's own domain.
    """
    at = target("/resolve", uri=uri)
    if is_for_people(request):
        return await pages.resolve(at, uri)
    return await views.json(at, lambda: views.catalogue.resolve(uri), CATALOGUE)
