"""Serve `/feeds/…`: the newest events of the log, or of one subject, as Atom."""

from __future__ import annotations

from typing import Annotated, get_args

from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, QueryParameter

from treaty_consensus.events import Subject, SubjectKind

from ..serving.feeds import ATOM
from ..serving.representation import Representation
from ..serving.views import Views
from .documentation import READ, answers
from .requests import target

Name = Annotated[
    str, QueryParameter(name="name", min_length=1, max_length=512, description="The subject, such as a DID or a topic.")
]
_KINDS: dict[str, SubjectKind] = {f"{kind}.atom": kind for kind in get_args(SubjectKind)}


@get("/feeds/log.atom", summary="The newest events of the log", responses=answers(str, "An Atom feed.", *READ, media_type=ATOM))
async def log_feed(views: NamedDependency[Views]) -> Representation:
    """Return the newest 50 events as an Atom feed. A feed proves nothing; `treaty watch` verifies the log."""
    return await views.feed("/feeds/log.atom", None)


@get(
    "/feeds/{kind:str}",
    summary="The newest events of a subject",
    responses=answers(str, "An Atom feed.", 404, *READ, media_type=ATOM),
)
async def subject_feed(kind: FromPath[str], name: Name, views: NamedDependency[Views]) -> Representation:
    """Return the newest 50 events of `did.atom`, `namespace.atom`, `domain.atom`, `topic.atom`, `protocol.atom` or `file.atom`,
    among the newest 4,096 leaves."""
    if kind not in _KINDS:
        raise NotFoundException
    return await views.feed(target(f"/feeds/{kind}", name=name), Subject(_KINDS[kind], name))
