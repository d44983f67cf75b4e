"""Turn refusals into responses of the framework."""

from __future__ import annotations

from litestar import Response

from ..problems import MEDIA_TYPE, Problem, problem_of
from ..serving.representation import NO_STORE
from .requests import HttpRequest


def problem_response(problem: Problem) -> Response[bytes]:
    """Return a refusal that caches must not store."""
    headers = {**dict(problem.headers), "Cache-Control": NO_STORE}
    return Response(problem.body, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def on_exception(_request: HttpRequest, error: Exception) -> Response[bytes]:
    """Handle every exception of the application."""
    return problem_response(problem_of(error))
