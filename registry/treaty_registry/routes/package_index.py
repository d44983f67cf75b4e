"""Serve `/index`: the package index of each namespace, for pip and uv (`serving.package_index`)."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import FromPath

from ..serving import package_index
from ..serving.package_index import HTML_V1, INTEGRITY, JSON_V1
from ..serving.representation import OCTETS, Representation
from ..serving.views import Views
from .documentation import OBJECT_BODY, READ, TEXT_BODY, answers, operation
from .requests import HttpRequest

_LISTS = operation(sends={200: {JSON_V1: OBJECT_BODY, HTML_V1: TEXT_BODY, "text/html": TEXT_BODY}})
_CONTENTS = "The list (PEP 503, 691)."


@get(
    "/index/{namespace:str}/simple",
    summary="The package index of a namespace",
    operation_class=_LISTS,
    responses=answers(None, _CONTENTS, 404, 406, *READ),
)
async def projects(namespace: FromPath[str], request: HttpRequest, views: NamedDependency[Views]) -> Representation:
    """Return the projects of a namespace, for pip and uv. `treaty` is the namespace of the registry's own wheels."""
    return await package_index.projects(views, namespace, _form(request))


@get(
    "/index/{namespace:str}/simple/{project:str}",
    summary="A project of a package index",
    operation_class=_LISTS,
    responses=answers(None, _CONTENTS, 404, 406, *READ),
)
async def project(
    namespace: FromPath[str], project: FromPath[str], request: HttpRequest, views: NamedDependency[Views]
) -> Representation:
    """Return the files of a project, with its status."""
    return await package_index.project(views, namespace, project, _form(request))


@get(
    "/index/{namespace:str}/files/{digest:str}/{filename:str}",
    summary="A file of a package index",
    operation_class=operation(sends={200: {INTEGRITY: OBJECT_BODY}}),
    responses=answers(bytes, "The wheel of this digest, its METADATA or its attestation.", 404, 410, *READ, media_type=OCTETS),
)
async def file(
    namespace: FromPath[str], digest: FromPath[str], filename: FromPath[str], views: NamedDependency[Views]
) -> Representation:
    """Return a wheel by its digest; with the suffix `.metadata` its METADATA, with `.provenance` its attestation (PEP 740)."""
    return await package_index.file(views, namespace, digest, filename)


def _form(request: HttpRequest) -> str:
    form = package_index.form_of(request.headers.get("accept", ""))
    if form is None:
        raise HTTPException(status_code=406)
    return form
