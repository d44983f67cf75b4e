"""The context of the request that the current task works for: its id, its trace, and the statements it logged.

    X-Request-ID: 3f2b8c1e9d004a77         in: taken over when it is 8 to 64 letters, digits and hyphens; out: always
    traceparent: 00-TRACE-SPAN-01          in: W3C Trace Context

Both come from strangers. They order the lines of the log and decide nothing. An id has no dot, colon or underscore, so no DID, no
address and no JSON Web Token is one.
"""

from __future__ import annotations

import random
import re
from contextvars import ContextVar
from dataclasses import dataclass, field

REQUEST_ID = b"x-request-id"
MAX_STATEMENTS = 16
"""Statement ids in the line of one request. A batch has up to 256; the line then says how many there were."""
_random = random.Random()  # noqa: S311 (an id is no secret, and the system's generator takes three times as long)
_ID = re.compile(rb"[0-9A-Za-z-]{8,64}")


@dataclass(slots=True)
class RequestContext:
    """One request. `trace_id`: of its trace, "" for none. `statements`: the first ids it logged; `logged`: how many."""

    id: str
    trace_id: str = ""
    statements: list[str] = field(default_factory=list)
    logged: int = 0


_current: ContextVar[RequestContext | None] = ContextVar("treaty_request", default=None)


def current_request() -> RequestContext | None:
    """Return the request that this code works for, or None."""
    return _current.get()


def enter_request(context: RequestContext) -> None:
    """Make a request the current one, for the rest of this task."""
    _current.set(context)


def request_id(sent: bytes | None) -> bytes:
    """Return the id that a client sent, or a new one when there is none or it has another form."""
    return sent if sent is not None and _ID.fullmatch(sent) else b"%016x" % _random.getrandbits(64)


def note_statement(statement_id: str) -> None:
    """Note for the line of the current request that it logged a statement."""
    context = _current.get()
    if context is None:
        return
    context.logged += 1
    if len(context.statements) < MAX_STATEMENTS:
        context.statements.append(statement_id)
