"""Serve `/feeds/…`: the newest events of the log, or of one subject, as Atom."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from treaty_consensus.events import Subject, SubjectKind

from ..serving.feeds import ATOM
from ..serving.representation import Representation
from ..serving.views import Views
from .documentation import READ, answers
from .requests import target

Name = Annotated[
    str,
    QueryParameter(
        name="name", pattern=r"^[^\x00-\x1f\x7f]+$", max_length=512, description="The subject, such as a DID or a topic."
    ),
]


@get("/feeds/log", summary="The newest events of the log", responses=answers(str, "An Atom feed.", *READ, media_type=ATOM))
async def log_feed(views: NamedDependency[Views]) -> Representation:
    """Return the newest 50 events as an Atom feed. A feed proves nothing; `treaty watch` verifies the log."""
    return await views.feed("/feeds/log", None)


@get(
    "/feeds/{kind:str}",
    summary="The newest events of a subject",
    responses=answers(str, "An Atom feed.", *READ, media_type=ATOM),
)
async def subject_feed(kind: FromPath[SubjectKind], name: Name, views: NamedDependency[Views]) -> Representation:
    """Return the newest 50 events of a DID, namespace, domain, topic, protocol or file, among the newest 4,096 leaves."""
    return await views.feed(target(f"/feeds/{kind}", name=name), Subject(kind, name))
