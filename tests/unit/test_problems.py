"""The one table from errors to HTTP."""

from __future__ import annotations

import asyncpg
import msgspec
import pytest
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException

from treaty_consensus import errors
from treaty_consensus.errors import TreatyError
from treaty_registry.problems import http_problem, problem_of

STATUSES = {
    errors.Malformed: 400,
    errors.TooLarge: 413,
    errors.Unauthorized: 401,
    errors.Refused: 422,
    errors.Conflict: 409,
    errors.NotFound: 404,
    errors.Gone: 410,
    errors.Unavailable: 503,
    errors.Untrusted: 422,
}


def test_every_family_has_its_status() -> None:
    families = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TreatyError)}
    assert families - {TreatyError} == set(STATUSES)
    for family, status in STATUSES.items():
        problem = problem_of(family("a.code", "What went wrong.", fix="What to do."))
        assert (problem.status, problem.code, problem.detail, problem.fix) == (
            status,
            "a.code",
            "What went wrong.",
            "What to do.",
        )
        assert msgspec.json.decode(problem.body) == {
            "type": "urn:treaty:problem:a.code",
            "title": problem.title,
            "status": status,
            "code": "a.code",
            "detail": "What went wrong.",
            "fix": "What to do.",
        }


def test_a_family_of_a_family_is_found_by_its_parent() -> None:
    class Special(errors.Conflict):
        """A conflict of a particular kind."""

    assert problem_of(Special("x.y", "No.")).status == 409
    assert b'"fix"' not in problem_of(Special("x.y", "No.")).body
    assert problem_of(TreatyError("x.y", "No.")).status == 422


def test_what_may_succeed_later_says_so() -> None:
    assert problem_of(errors.Unavailable("quota.total", "Too many.")).status == 429
    for error in (errors.Unavailable("quota.total", "Too many."), errors.Unavailable("log.unavailable", "No.")):
        assert dict(problem_of(error).headers)["Retry-After"]
    assert "WWW-Authenticate" in dict(problem_of(errors.Unauthorized("x.y", "No.")).headers)


@pytest.mark.parametrize(
    "error",
    [asyncpg.ConnectionDoesNotExistError("at 10.0.0.7"), asyncpg.InterfaceError("pool"), ConnectionRefusedError("10.0.0.7")],
)
def test_an_absent_database_is_unavailable(error: Exception) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code) == (503, "database.unreachable") and b"10.0.0.7" not in problem.body


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("secret"),
        KeyError("secret"),
        asyncpg.exceptions.DataError("secret"),
        HTTPException(status_code=500, detail="secret"),
    ],
)
def test_whatever_nobody_meant_to_raise_is_a_fault_of_ours(error: Exception) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code) == (500, "http.internal") and b"secret" not in problem.body


def test_refusals_of_the_framework_are_problems_too() -> None:
    assert problem_of(NotFoundException("x")).code == "http.not-found"
    allowed = problem_of(MethodNotAllowedException(headers={"allow": "GET, OPTIONS"}))
    assert allowed.code == "http.method" and dict(allowed.headers)["allow"] == "GET, HEAD, OPTIONS"
    invalid = problem_of(ValidationException("x", extra=[{"key": "limit", "message": "Expected less"}]))
    assert (invalid.status, invalid.detail) == (400, "`limit`: Expected less.")
    assert problem_of(HTTPException(status_code=418)).code == "http.request"
    assert http_problem(413, "At most 3 bytes.").detail == "At most 3 bytes."
