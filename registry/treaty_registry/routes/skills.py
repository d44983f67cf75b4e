"""Serve the protocols of a registry as Agent Skills (`serving.skills`)."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath

from ..serving import skills
from ..serving.representation import Representation
from ..serving.views import Views

_INDEX, _FILE = f"{skills.PATH}/index.json", f"{skills.PATH}/{{name:str}}/SKILL.md"
_OF_NAMESPACE = "/namespaces/{namespace:str}"


@get(_INDEX, include_in_schema=False)
async def elected(views: NamedDependency[Views]) -> Representation:
    """Return the index of the elected protocols."""
    return await skills.index(views, None)


@get(_FILE, include_in_schema=False)
async def elected_skill(name: FromPath[str], views: NamedDependency[Views]) -> Representation:
    """Return an elected protocol as a skill."""
    return await skills.document(views, None, name)


@get(f"{_OF_NAMESPACE}{_INDEX}", include_in_schema=False)
async def published(namespace: FromPath[str], views: NamedDependency[Views]) -> Representation:
    """Return the index of the protocols of a namespace."""
    return await skills.index(views, namespace)


@get(f"{_OF_NAMESPACE}{_FILE}", include_in_schema=False)
async def published_skill(namespace: FromPath[str], name: FromPath[str], views: NamedDependency[Views]) -> Representation:
    """Return a protocol of a namespace as a skill."""
    return await skills.document(views, namespace, name)
