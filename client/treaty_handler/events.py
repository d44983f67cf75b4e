"""Define the events of a session. The host creates them; `Session.handle` receives one at a time, in the order they occurred.

Every event has `at`: milliseconds since 1970 by the host's clock, the only time that a session sees; 0 where time does not
matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .values import Failure, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Report that the session is new. It is the first event, exactly once; a session that continues from a snapshot does not
    receive it.

    `stored`: key → value that earlier sessions of this role kept by `Persist`, with this peer.
    `parameters`: name → value that both sides agreed on beside the protocol; empty where the profile agrees on none.
    `Renegotiated` tells of a change.
    `is_proved`: whether the peer proved its DID. `stored` of a proved peer is only for proofs. False for a mere claim, from an
    older host, and in a shared role, where `PeerJoined` tells it of each peer.
    """

    stored: dict[str, bytes] = field(default_factory=dict)
    at: int = 0
    parameters: dict[str, Value] = field(default_factory=dict)
    is_proved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Renegotiated:
    """Report that both sides agreed on other parameters. The session goes on: messages before were sent under the former ones,
    messages after it under these. Interface 4.

    `parameters`: all that are agreed on now, as in `Opened`.
    """

    parameters: dict[str, Value]
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Report one whole message of the protocol.

    `peer`: the DID that the sender gave. Whether it proved the DID, or merely claims it as in a plain Hello, is told before by
    `is_proved`: of `Opened`, and in a shared role of `PeerJoined`. Give rights by proofs alone.
    `data`: any bytes; the sender may be faulty or hostile.
    `stream`: separates messages of different streams; "" where the transport has one stream. In ANP's flow profile it is the
    action of a message that the peer sent as JSON.
    """

    peer: str
    data: bytes
    stream: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Report that the local application calls an operation of this role. Answer with exactly one `Return` of the same `call`.

    A stream answers with `Emit` effects before its `Return`. An event, which has no answer, is returned when it is sent.

    `call`: unique among the calls of the session.
    `arguments`: satisfy the operation's schema.
    """

    call: str
    operation: str
    arguments: dict[str, Value]
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Report the local application's answer to an `Invoke` of the same `call`; of a stream, its end.

    `value`: satisfies the operation's schema; None for a stream and for an event.
    `error`: instead of a value, the failure.
    """

    call: str
    value: Value = None
    error: Failure | None = None
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """Report that the local application takes up to `count` more items of this streaming `Call`.

    They add to those asked for before. The first such event follows the `Call`. Interface 2.
    """

    call: str
    count: int
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Report the next item of a streaming `Invoke`. There are never more than its `Request` effects asked for. Interface 2.

    `value`: satisfies the operation's schema.
    """

    call: str
    value: Value
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Report that the local application gave up a `Call`. The call is closed: no effect may name it any more. Interface 2."""

    call: str
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """Report that the timer of this name expired. It no longer exists; setting it again starts a new one."""

    name: str
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerJoined:
    """Report that an agent joined this session of a shared role. It is there until its `PeerLost`. Interface 3.

    `peer`: its DID, unique in the session. A later connection that proves the same DID replaces the earlier one: `PeerLost` and
    then `PeerJoined`.
    `role`: its role in the protocol.
    `is_proved`: whether it proved the DID; False for a mere claim.
    """

    peer: str
    role: str
    is_proved: bool = False
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """Report that the connection to this peer ended without an effect of the session. In a shared role: that the peer left,
    was lost or was too slow.

    Messages that were sent before may or may not have arrived.
    """

    peer: str
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Report that the local application ends the session. Effects of this event are performed; no event follows."""

    at: int = 0


Event = Opened | Renegotiated | Received | Call | Requested | Cancelled | Result | Item | Timer | PeerJoined | PeerLost | Close
