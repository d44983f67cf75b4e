"""Map errors to HTTP in one table, and write every refusal as RFC 9457 `application/problem+json`.

    {"type": "urn:treaty:problem:CODE", "title": FAMILY, "status": STATUS, "code": CODE, "detail": SENTENCE, "fix": SENTENCE}

`code` is the stable code of the `TreatyError`, or one of `http.*` for a failure of HTTP itself. `fix` is absent where there is
none. A client maps `status` back to the family:

    400 Malformed      401 Unauthorized    404 NotFound     409 Conflict          410 Gone
    413 TooLarge       422 Refused, Untrusted               429, 503 Unavailable

An unexpected exception is a 500 with a fixed sentence. Its own text goes only to the server's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
import structlog
from litestar.exceptions import HTTPException, ValidationException

from treaty_consensus.errors import (
    Conflict,
    Gone,
    Malformed,
    NotFound,
    Refused,
    TooLarge,
    TreatyError,
    Unauthorized,
    Unavailable,
    Untrusted,
)
from treaty_io.repeats import Repeats

from .codes import HttpCode
from .storage.postgres import database_silent, is_outage
from .telemetry.measures import count_refusal

MEDIA_TYPE = "application/problem+json"
REFUSAL_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""The headers of every refusal, as JSON and as a page. Caches must not store one."""
JSON_HEADERS = {"Content-Type": MEDIA_TYPE, **REFUSAL_HEADERS}

_FAMILIES: Mapping[type[TreatyError], tuple[HTTPStatus, str]] = {
    Malformed: (HTTPStatus.BAD_REQUEST, "Malformed input"),
    TooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Too large"),
    Unauthorized: (HTTPStatus.UNAUTHORIZED, "Not authentic"),
    Refused: (HTTPStatus.UNPROCESSABLE_ENTITY, "Refused by a rule"),
    Conflict: (HTTPStatus.CONFLICT, "In conflict with what stands"),
    NotFound: (HTTPStatus.NOT_FOUND, "Not found"),
    Gone: (HTTPStatus.GONE, "Withdrawn"),
    Unavailable: (HTTPStatus.SERVICE_UNAVAILABLE, "Unavailable for now"),
    Untrusted: (HTTPStatus.UNPROCESSABLE_ENTITY, "A proof does not hold"),
}
_QUOTA = "quota."
_STATUSES: Mapping[int, tuple[str, str]] = {
    400: (HttpCode.REQUEST, "The request is not in the form this route asks for."),
    404: (HttpCode.NOT_FOUND, "Nothing is served at this path."),
    405: (HttpCode.METHOD, "This path does not answer that method."),
    406: (HttpCode.MEDIA_TYPE, "This resource has no representation of an acceptable media type."),
    408: (HttpCode.TIMEOUT, "The request took too long to arrive."),
    413: (HttpCode.TOO_LARGE, "The body of the request is larger than this route reads."),
    414: (HttpCode.TOO_LARGE, "The path or the query of the request is longer than anything served here."),
    415: (HttpCode.MEDIA_TYPE, "This route does not read bodies of that Content-Type."),
    431: (HttpCode.TOO_LARGE, "The headers of the request are larger than a registry reads."),
    500: (HttpCode.INTERNAL, "The registry failed to answer; the fault is on its side and was recorded."),
}
_outages, _failures = Repeats(), Repeats(60)
"""Lines of requests that failed for PostgreSQL's sake, and by internal errors. A stranger can send any number of requests."""
_log = structlog.get_logger(__name__)


class ProblemDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON of a refusal (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Problem:
    """A refusal that is ready to send: its status and JSON body, and `headers` that its status requires."""

    status: int
    code: str
    title: str
    detail: str
    fix: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def details(self) -> ProblemDetails:
        """Return the members of the problem, for embedding in another document."""
        return ProblemDetails(f"urn:treaty:problem:{self.code}", self.title, self.status, self.code, self.detail, self.fix)

    @property
    def body(self) -> bytes:
        """Return the problem's JSON."""
        return msgspec.json.encode(self.details)


def problem_of(error: Exception) -> Problem:
    """Return the public problem of `error`. Logs unexpected errors."""
    # PostgreSQL's own message may name hosts and tables, so a fixed sentence replaces it.
    if is_outage(error):
        if (more := _outages.admit(type(error).__name__)) is not None:
            _log.warning("database unavailable", error=repr(error), **more)
        error = database_silent()
    if isinstance(error, TreatyError):
        return _of_treaty(error)
    # A 5xx of the framework is a fault here, and is logged below.
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _of_framework(error)
    # The text of an unexpected error can hold internals. Clients get a fixed sentence.
    if (more := _failures.admit(type(error).__name__)) is not None:
        _log.error("request failed", exc_info=error, **more)
    return http_problem(500)


def http_problem(status: int, detail: str = "", *, headers: tuple[tuple[str, str], ...] = ()) -> Problem:
    """Return a refusal by HTTP itself. `detail` replaces the default sentence of the status."""
    code, sentence = _STATUSES.get(status, _STATUSES[400])
    count_refusal(code)
    return Problem(status, code, HTTPStatus(status).phrase, detail or sentence, headers=headers)


def _of_framework(error: HTTPException) -> Problem:
    headers = dict(error.headers or {})
    if "allow" in headers:
        methods = {str(method) for method in headers["allow"].split(", ")}
        methods |= {"HEAD"} if "GET" in methods else set()  # answered for every GET by `fast_path`
        headers["allow"] = ", ".join(sorted(methods))
    detail = ""
    if isinstance(error, ValidationException):
        faults = [fault for fault in error.extra or [] if isinstance(fault, dict)]
        detail = " ".join(f"`{fault.get('key')}`: {fault.get('message')}." for fault in faults) or f"{error.detail}."
    return http_problem(error.status_code, detail, headers=tuple(headers.items()))


def _of_treaty(error: TreatyError) -> Problem:
    count_refusal(error.code)
    family = next(family for family in type(error).__mro__ if family in _FAMILIES or family is TreatyError)
    status, title = _FAMILIES.get(family, (HTTPStatus.UNPROCESSABLE_ENTITY, "Refused"))
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, Unavailable):
        # RFC 6585 §4: 429 says that the sender itself sent too much; 503 that the registry cannot now.
        status = HTTPStatus.TOO_MANY_REQUESTS if error.code.startswith(_QUOTA) else status
        headers = (("Retry-After", "1"),)
    if status == HTTPStatus.UNAUTHORIZED:
        headers = (("WWW-Authenticate", "DSSE"),)  # RFC 9110 §15.5.2 asks for a challenge
    return Problem(int(status), error.code, title, error.message, error.fix, headers)
