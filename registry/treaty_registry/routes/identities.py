"""`/identities`: what the log knows of a DID."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath

from ..catalogue.resources import IdentityView
from ..serving.representation import Representation
from ..serving.views import Views
from .documentation import READ, answers
from .requests import HttpRequest, target


@get(
    "/identities/{did:str}",
    summary="A DID's newest identity",
    responses=answers(IdentityView, "Its keys and tenure.", 404, *READ),
)
async def identity(did: FromPath[str], request: HttpRequest, views: NamedDependency[Views]) -> Representation:
    """The keys under which a statement of this DID would be judged now."""
    head = views.registry.head
    return views.json(target(request), head, await views.catalogue.identity(did))
