"""What a session asks of its host. Each is checked against the manifest and the caps before any of one event's effects
happens.

An effect that breaks a rule ends the session with an error and none of that event's effects take place, so a session need not
guard against half of them. Names and ids are 1 to 64 characters of `A-Z a-z 0-9 . _ : -` (a `stream` may also be "").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .values import Failure, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send one whole message to a peer of the session, after all that was sent to it before on this stream."""

    peer: str
    data: bytes
    stream: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoke:
    """Call the local application's business logic. A `Result` with the same `call` follows, in any order among several.

    `call`: chosen by the session, unique among its unanswered ones. `arguments` satisfy the operation's schema.
    """

    call: str
    operation: str
    arguments: dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """Answer the `Call` of this id: with a `value` that satisfies the operation's schema, or with an `error`."""

    call: str
    value: Value = None
    error: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Wake this session after `seconds` (more than 0, at most 30 days); replaces a timer of the same name.

    None cancels it.
    """

    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Keep `value` under `key` beyond this session, durably before any later effect happens. None forgets it."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The session is over; unanswered calls fail. Nothing follows it in the list, and no event comes after."""

    status: Literal["completed", "failed"] = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A note for the operator's log, at most 1,000 characters; shown escaped, never interpreted."""

    text: str


Effect = Send | Invoke | Return | SetTimer | Persist | End | Audit
