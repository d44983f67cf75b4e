"""Define the interface of a protocol handler: events in, effects out.

A handler implements one application protocol. It has no clock, no sockets, no disk and no randomness: the host owns them, and
a handler returns effects to ask for them. So a handler is deterministic, testable from recorded transcripts, and safe to run
in isolation.

    from treaty_handler import Call, Effect, Event, Received, Return, Send

    class Echo:                                       # a Session
        def handle(self, event: Event) -> list[Effect]:
            match event:
                case Call(call=call, arguments=arguments):
                    self.call = call
                    return [Send(peer=self.peer, data=arguments["text"].encode())]
                case Received(data=data):
                    return [Return(call=self.call, value=data.decode())]
            return []

The package's `manifest.json` lists the roles of the protocol and their operations; the host checks every effect against it
first. In the sandbox a handler may import this package and the standard library. Parts of the library that need a socket, a
process, a thread, a writable file or new random bytes fail there.
"""

from __future__ import annotations

from .effects import Audit, Cancel, Effect, Emit, End, Invoke, Multicast, Persist, Request, Return, Send, SetTimer
from .events import (
    Call,
    Cancelled,
    Close,
    Event,
    Item,
    Opened,
    PeerJoined,
    PeerLost,
    Received,
    Renegotiated,
    Requested,
    Result,
    Timer,
)
from .interface import Handler, Session, derive_id
from .values import Failure, Value, decode_json, encode_json

# The version of this interface; a manifest names the version that it was written for.
# Interface 2 adds streams (`Requested`, `Item`, `Emit`, `Request`), events, and cancellation (`Cancelled`, `Cancel`).
# Interface 3 adds shared roles, whose session has many peers (`PeerJoined`).
# Interface 4 adds the change of agreed parameters (`Renegotiated`).
# Interface 5 adds negative codes of errors, and forms whose ids may be integers.
# A handler of an earlier interface never receives the events of a later one.
INTERFACE = 6

__all__ = [
    "INTERFACE",
    "Audit",
    "Call",
    "Cancel",
    "Cancelled",
    "Close",
    "Effect",
    "Emit",
    "End",
    "Event",
    "Failure",
    "Handler",
    "Invoke",
    "Item",
    "Multicast",
    "Opened",
    "PeerJoined",
    "PeerLost",
    "Persist",
    "Received",
    "Renegotiated",
    "Request",
    "Requested",
    "Result",
    "Return",
    "Send",
    "Session",
    "SetTimer",
    "Timer",
    "Value",
    "decode_json",
    "derive_id",
    "encode_json",
]
