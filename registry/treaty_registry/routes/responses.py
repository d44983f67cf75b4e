"""Turn refusals into responses of the framework."""

from __future__ import annotations

from litestar import Response
from litestar.enums import HttpMethod

from ..pages.pages import Pages
from ..problems import JSON_HEADERS, Problem, problem_of
from .requests import HttpRequest, is_for_people


def problem_response(problem: Problem) -> Response[bytes]:
    """Return a refusal that caches must not store."""
    return Response(problem.body, status_code=problem.status, headers={**dict(problem.headers), **JSON_HEADERS})


def on_exception(pages: Pages, request: HttpRequest, error: Exception) -> Response[bytes]:
    """Handle every exception of the application. A browser that reads gets a page."""
    problem = problem_of(error)
    if request.method not in (HttpMethod.GET, HttpMethod.HEAD) or not is_for_people(request):
        return problem_response(problem)
    body, headers = pages.problem(problem)
    return Response(body, status_code=problem.status, headers={**dict(problem.headers), **headers})
