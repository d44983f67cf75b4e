"""Serve each namespace as a package index for pip and uv, and Treaty's own wheels as the index of the namespace `treaty`.

    /index/NAMESPACE/simple/                                    the projects (PEP 503 and 691, api-version 1.4)
    /index/NAMESPACE/simple/PROJECT/                            the files of one, with its status (PEP 592, 700, 714, 740, 792)
    /index/NAMESPACE/files/SHA256/FILENAME                      a wheel: the bytes of this digest, for ever
    /index/NAMESPACE/files/SHA256/FILENAME.metadata             its METADATA (PEP 658)
    /index/NAMESPACE/files/SHA256/FILENAME.provenance           its attestation (PEP 740)

An index has the wheels of its namespace alone. It never falls to another one, so nobody else can add a file to it.
"""

from __future__ import annotations

from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.datastructures.headers import Accept
from packaging.utils import canonicalize_name

from treaty_consensus import canonical
from treaty_consensus.codes import ProtocolCode
from treaty_consensus.errors import NotFound
from treaty_consensus.protocol import parse_namespace

from ..cache_control import IMMUTABLE, SHARED
from ..catalogue.package_index import OWN, IndexProject, OwnIndex, PackageIndex
from ..catalogue.provenance import Provenance
from ..catalogue.readers import CoreMetadata
from ..log.changes import CATALOGUE, acts
from ..networks import sender
from .representation import HTML, OCTETS, Representation

if TYPE_CHECKING:
    from ..catalogue.readers import ReaderKind
    from .views import Made, Views

API_VERSION = "1.4"
JSON_V1, HTML_V1 = "application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.v1+html"
INTEGRITY = "application/vnd.pypi.integrity.v1+json"
MAX_PROJECT = 160  # characters, as of a wheel's file name
# In the order of preference where the client has none. A client of PEP 503 may send no `Accept` at all.
_FORMS = {
    "text/html": HTML,
    JSON_V1: JSON_V1,
    HTML_V1: HTML_V1,
    "application/vnd.pypi.simple.latest+json": JSON_V1,
    "application/vnd.pypi.simple.latest+html": HTML_V1,
}
_META = {"api-version": API_VERSION}
_VARY = ("Vary", "Accept")
# A page of links needs nothing else.
_POLICY = ("Content-Security-Policy", "default-src 'none'")
_ATTACHMENT = ("Content-Disposition", "attachment")
_UNKNOWN = "::"


# Clients choose the header, so the memory is bounded.
@lru_cache(maxsize=256)
def form_of(accept: str) -> str | None:
    """Return the media type that the value of an `Accept` header prefers, or None if none is acceptable."""
    match = Accept(accept or "*/*").best_match([*_FORMS])
    return None if match is None else _FORMS[match]


async def projects(views: Views, namespace: str, form: str) -> Representation:
    """Return the list of projects of a namespace in a form of `form_of`. Raises `Malformed`."""
    index = _index(views, namespace)

    async def view() -> Made:
        names = await index.projects()
        if form == JSON_V1:
            body = msgspec.json.encode({"meta": _META, "projects": [{"name": name} for name in names]})
        else:
            links = [_link(f"/index/{namespace}/simple/{name}/", name, {}) for name in names]
            body = _page(namespace, {}, links)
        return _listing(body, form), _subjects(index)

    return await views.made(f"{form} /index/{namespace}/simple/", view)


async def project(views: Views, namespace: str, name: str, form: str) -> Representation:
    """Return a project of a namespace. Raises `Malformed`, `NotFound`."""
    index, normal = _index(views, namespace), _normal(name)

    async def view() -> Made:
        found = await index.project(normal)
        return _listing(_json(found) if form == JSON_V1 else _html(found), form), _subjects(index)

    return await views.made(f"{form} /index/{namespace}/simple/{normal}/", view)


async def file(views: Views, namespace: str, digest: str, filename: str) -> Representation:
    """Return a wheel, its METADATA or its provenance. Raises `Malformed`, `NotFound`, `Gone`."""
    canonical.parse_digest(digest)
    wheel, ending = filename, ""
    for suffix in (".metadata", ".provenance"):
        if filename.endswith(suffix):
            wheel, ending = filename.removesuffix(suffix), suffix
    if namespace == OWN:
        return _own_file(views, digest, wheel, ending)
    index = PackageIndex(views.registry.pool, parse_namespace(namespace))
    if len(wheel) > MAX_PROJECT or not await index.holds(wheel, digest):
        raise _missing(namespace, filename)
    if not ending:
        return await views.blob(digest)

    async def metadata() -> Made:
        content = await _read(views, "metadata", wheel, digest, CoreMetadata)
        return Representation(content.text, OCTETS, _ATTACHMENT, cache_control=IMMUTABLE), ()

    async def provenance() -> Made:
        publisher, bundle = await index.bundle(digest)
        value = await _read(views, "provenance", publisher, bundle, Provenance)
        return Representation(msgspec.json.encode(value), INTEGRITY, cache_control=IMMUTABLE), ()

    return await views.made(f"/index/{namespace}/files/{digest}/{filename}", metadata if ending == ".metadata" else provenance)


def _own_file(views: Views, digest: str, filename: str, ending: str) -> Representation:
    wheel = views.registry.wheels.by_digest.get((digest, filename))
    if wheel is None or ending == ".provenance":
        raise _missing(OWN, f"{filename}{ending}")
    return Representation(wheel.metadata if ending else wheel.data, OCTETS, _ATTACHMENT, cache_control=IMMUTABLE)


async def _read(views: Views, kind: ReaderKind, name: str, digest: str, expected: type[Any]) -> Any:
    # In a process with limits: the bytes are foreign.
    data = await views.registry.read_blobs(kind, name, [digest], sender.get() or _UNKNOWN)
    return msgspec.msgpack.decode(data, type=expected)


def _index(views: Views, namespace: str) -> PackageIndex | OwnIndex:
    if namespace == OWN:
        return OwnIndex(views.registry.wheels.wheels)
    return PackageIndex(views.registry.pool, parse_namespace(namespace))


def _subjects(index: PackageIndex | OwnIndex) -> tuple[str, ...]:
    # A status of the protocol may be by another DID, and a new wheel is an act of the namespace's own.
    return () if isinstance(index, OwnIndex) else (CATALOGUE, *map(acts, index.owners))


def _normal(name: str) -> str:
    return canonicalize_name(name[:MAX_PROJECT])


def _missing(namespace: str, filename: str) -> NotFound:
    return NotFound(ProtocolCode.UNKNOWN, f"{namespace} has published no {filename[:MAX_PROJECT]} here.")


def _listing(body: bytes, form: str) -> Representation:
    policy = () if form == JSON_V1 else (_POLICY,)
    return Representation(body, form, _VARY, *policy, cache_control=SHARED)


def _json(project: IndexProject) -> bytes:
    value = {
        "meta": _META,
        "name": project.name,
        "project-status": project.status,
        "versions": project.versions,
        "files": project.files,
    }
    return msgspec.json.encode(value)


def _html(project: IndexProject) -> bytes:
    status = {"pypi:project-status": project.status.status, "pypi:project-status-reason": project.status.reason}
    links = []
    for each in project.files:
        metadata = f"sha256={each.core_metadata['sha256']}" if each.core_metadata else None
        fields = {
            "data-requires-python": each.requires_python,
            "data-core-metadata": metadata,
            "data-dist-info-metadata": metadata,  # the first name of the same, for pip before 23.3
            "data-yanked": each.yanked,
            "data-provenance": each.provenance,
        }
        links.append(_link(f"{each.url}#sha256={each.hashes['sha256']}", each.filename, fields))
    return _page(project.name, status, links)


def _link(url: str, text: str, fields: dict[str, str | None]) -> str:
    attributes = "".join(f' {name}="{escape(value)}"' for name, value in fields.items() if value is not None)
    return f'<a href="{escape(url)}"{attributes}>{escape(text)}</a><br>\n'


def _page(title: str, meta: dict[str, str | None], links: list[str]) -> bytes:
    named = {"pypi:repository-version": API_VERSION, **meta}
    lines = [f'<meta name="{name}" content="{escape(value)}">\n' for name, value in named.items() if value is not None]
    head = f'<meta charset="utf-8">\n{"".join(lines)}<title>{escape(title)}</title>\n'
    body = f"<h1>{escape(title)}</h1>\n{''.join(links)}"
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}</head>\n<body>\n{body}</body>\n</html>\n'.encode()
