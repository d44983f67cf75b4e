"""What happens to a session. The host makes these; a session's `handle` consumes one at a time, in the order they occurred.

Every event carries `at`: milliseconds since 1970 by the host's clock, the only time a session ever sees; 0 where nobody
cares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .values import Failure, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The first event of a new session, exactly once. `stored`: what earlier sessions of this role kept by `Persist`, key to
    value.

    A session that continues from a snapshot does not see it again.
    """

    stored: dict[str, bytes] = field(default_factory=dict)
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One whole message of the protocol arrived. `peer`: the DID that sent it, authenticated by the host.

    `stream` tells apart what the transport keeps apart; "" where it keeps one stream. `data`: any bytes at all; whoever sent
    them may be broken or hostile.
    """

    peer: str
    data: bytes
    stream: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The local application calls an operation that this role offers. Answer with exactly one `Return` of the same `call`.

    `call`: unique among the calls of the session. `arguments` satisfy the operation's schema.
    """

    call: str
    operation: str
    arguments: dict[str, Value]
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The local application answers an `Invoke` of the same `call`: with a `value` that satisfies the schema, or with an
    `error`.
    """

    call: str
    value: Value = None
    error: Failure | None = None
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """The timer set under this name ran out. It is gone; setting it again starts a new one."""

    name: str
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """The connection to this peer ended without the session asking for it.

    Messages on the way may or may not have arrived.
    """

    peer: str
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The local side wants the session over. Effects of this event still happen; no event follows."""

    at: int = 0


Event = Opened | Received | Call | Result | Timer | PeerLost | Close
