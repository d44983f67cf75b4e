"""Build the package of a project that is not published yet."""

from __future__ import annotations

from treaty_consensus.handler import HandlerPackage, read_wheel

from ..protocols.project import Project
from .manifest import ORIGIN

_NAMESPACE = "example.com"


def build(project: Project, *, origin: str = ORIGIN, namespace: str = _NAMESPACE) -> HandlerPackage:
    """Return the package of a project with a handler. Raises the errors of `Project.build_wheel`.

    `origin`, `namespace`: of the URI in its manifest, when the real ones are not known yet.
    """
    return read_wheel(*project.build_wheel(f"https://{origin}/protocols/{namespace}/{project.name}/{project.version}"))
