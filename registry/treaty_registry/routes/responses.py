"""Turn refusals into responses of the framework."""

from __future__ import annotations

from litestar import Response
from litestar.enums import HttpMethod, MediaType

from ..pages.pages import Pages
from ..problems import MEDIA_TYPE, Problem, problem_of
from ..serving.representation import NO_STORE
from .requests import HttpRequest, is_for_people


def problem_response(problem: Problem) -> Response[bytes]:
    """Return a refusal that caches must not store."""
    headers = {**dict(problem.headers), "Cache-Control": NO_STORE}
    return Response(problem.body, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def on_exception(pages: Pages, request: HttpRequest, error: Exception) -> Response[bytes]:
    """Handle every exception of the application. A browser that reads gets a page."""
    problem = problem_of(error)
    if request.method not in (HttpMethod.GET, HttpMethod.HEAD) or not is_for_people(request):
        return problem_response(problem)
    headers = {**dict(problem.headers), **pages.renderer.error_headers()}
    return Response(pages.problem(problem), status_code=problem.status, media_type=MediaType.HTML, headers=headers)
