"""Define the effects that a session requests from its host.

The host checks all effects of an event against the manifest and the caps before it performs any of them. An effect that
breaks a rule ends the session with an error, and no effect of that event is performed. Names and ids are 1 to 64 characters
of `A-Z a-z 0-9 . _ : -` (a `stream` may also be "").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .values import Failure, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send one whole message to a peer of the session, after all earlier messages to it on this stream.

    In a shared role, a message to an agent that is not in the session is dropped, and an `Audit` note says so.

    `stream`: "" where the transport has one stream. In ANP's flow profile it is the action of a message that goes out as JSON.
    """

    peer: str
    data: bytes
    stream: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Multicast:
    """Send one message to several peers of a shared role, as a `Send` to each would. It crosses to the host once. Interface 3.

    `peers`: those that are not in the session are left out, as with `Send`. The copies of all messages of one event have at most
    32 MiB together.
    """

    peers: tuple[str, ...]
    data: bytes
    stream: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoke:
    """Call an operation of the local application. A `Result` with the same `call` follows; several results arrive in any order.

    The items of a stream come before its `Result`, as far as `Request` effects ask for them.

    `call`: an id of the session's choice, unique among its unanswered calls.
    `arguments`: satisfy the operation's schema.
    """

    call: str
    operation: str
    arguments: dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """Answer the `Call` with this id; of a stream, end it.

    `value`: satisfies the operation's schema; None for a stream and for an event.
    `error`: instead of a value, the failure.
    """

    call: str
    value: Value = None
    error: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """Give the application the next item of a streaming `Call`. Never more than its `Requested` events asked for. Interface 2.

    `value`: satisfies the operation's schema.
    """

    call: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Ask for up to `count` further items of a streaming `Invoke`, beside those asked for before. Interface 2.

    `count`: 1 to 1,024; together at most 1,024 items are outstanding.
    """

    call: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Give up an `Invoke`. Its function is cancelled; no `Item` and no `Result` follows. Interface 2."""

    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Wake this session after a time. Replaces a timer of the same name.

    `seconds`: more than 0, at most 30 days; None cancels the timer.
    """

    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Keep `value` under `key` beyond this session, durably before any later effect is performed. None deletes it."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """End the session; unanswered calls fail. It is the last effect of its list, and no event follows."""

    status: Literal["completed", "failed"] = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Write a note to the operator's log, at most 1,000 characters. It is shown escaped and never interpreted."""

    text: str


Effect = Send | Multicast | Invoke | Request | Cancel | Return | Emit | SetTimer | Persist | End | Audit
