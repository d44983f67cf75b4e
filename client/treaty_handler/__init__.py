"""The interface a protocol handler is written against: events in, effects out.

A handler speaks one application protocol and nothing else. It has no clock, no sockets, no disk and no randomness: the host
owns those, and a handler asks for what it needs by returning effects. So the same handler is deterministic, testable from
written-down transcripts, and safe to run where it can reach nothing.

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

The package's `manifest.json` says which roles the protocol has and which operations they offer; the host checks every effect
against it before anything happens. Inside the sandbox a handler may import this package and the standard library, of which
whatever needs a socket, a process, a thread, a writable file or fresh randomness fails.
"""

from __future__ import annotations

from .effects import Audit, Effect, End, Invoke, Persist, Return, Send, SetTimer
from .events import Call, Close, Event, Opened, PeerLost, Received, Result, Timer
from .interface import Handler, Session, derive_id
from .values import Failure, Value, decode_json, encode_json

INTERFACE = 1
"""The version of this interface; a manifest names the one it was written for."""

__all__ = [
    "INTERFACE",
    "Audit",
    "Call",
    "Close",
    "Effect",
    "End",
    "Event",
    "Failure",
    "Handler",
    "Invoke",
    "Opened",
    "PeerLost",
    "Persist",
    "Received",
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
