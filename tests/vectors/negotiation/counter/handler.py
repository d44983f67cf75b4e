"""Event counter: fixed binary messages, numbered within a session."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from treaty_handler import (
    Audit,
    Call,
    Close,
    Effect,
    End,
    Event,
    Failure,
    Invoke,
    PeerLost,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
    Value,
    decode_json,
    encode_json,
)

SECONDS = 5
REQUEST = struct.Struct(">IBQ")
RESPONSE = struct.Struct(">IHQ")
KINDS = {1: "addEvents", 2: "readTotal"}
MOST = 2**53 - 1


class Counter:
    """The protocol; a message is a list of integers."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Sensor | Meter:
        """A session as sensor or meter."""
        return Sensor(parameters, snapshot) if role == "sensor" else Meter(parameters, snapshot)

    def encode(self, message: Value) -> bytes:
        """A request has a kind below 100 in its second place, a response a status."""
        try:
            return (REQUEST if message[1] < 100 else RESPONSE).pack(*message)
        except (struct.error, TypeError, IndexError, KeyError) as error:
            raise ValueError("a message is three unsigned integers") from error

    def decode(self, data: bytes) -> list[int]:
        """The three integers."""
        for form in (REQUEST, RESPONSE):
            if len(data) == form.size:
                return list(form.unpack(data))
        raise ValueError("no message has this length")

    def validate(self, message: Value, sender: str) -> list[str]:
        """Only the number of integers is judged."""
        return [] if isinstance(message, list) and len(message) == 3 else ["A message is three integers."]


class Side:
    """State: the last number, and what is open under which number."""

    def __init__(self, parameters: Mapping[str, Value], snapshot: bytes) -> None:
        self.peer = str(parameters["peer"])
        state: Value = decode_json(snapshot) if snapshot else [0, {}]
        self.last: int = state[0]
        self.open: dict[str, Value] = state[1]

    def snapshot(self) -> bytes:
        """The state as JSON."""
        return encode_json([self.last, self.open])


class Sensor(Side):
    """Calls."""

    def handle(self, event: Event) -> list[Effect]:
        """A call becomes a numbered request and a timer."""
        match event:
            case Call(call=call, operation=operation, arguments=arguments):
                self.last += 1
                name = str(self.last)
                self.open[name] = call
                kind = next(kind for kind, known in KINDS.items() if known == operation)
                data = REQUEST.pack(self.last, kind, arguments.get("amount", 0))
                return [SetTimer(name=name, seconds=SECONDS), Send(peer=self.peer, data=data)]
            case Received(data=data):
                return self.answered(data)
            case Timer(name=name):
                return [Return(call=self.open.pop(name), error=Failure(code=504, message="The meter did not answer."))]
            case PeerLost():
                gone = Failure(code=503, message="The meter is gone.")
                lost = [Return(call=call, error=gone) for call in self.open.values()]
                return [*lost, End(status="failed" if lost else "completed")]
            case Close():
                return [End()]
        return []

    def answered(self, data: bytes) -> list[Effect]:
        """A response settles its call."""
        if len(data) != RESPONSE.size:
            return [Audit(text="Ignored what is no response.")]
        number, status, total = RESPONSE.unpack(data)
        if str(number) not in self.open:
            return [Audit(text="Ignored what answers nothing.")]
        cancel, call = SetTimer(name=str(number), seconds=None), self.open.pop(str(number))
        if status == 200 and total <= MOST:
            return [cancel, Return(call=call, value=total)]
        code = status if status in (409, 429, 500) else 502
        return [cancel, Return(call=call, error=Failure(code=code, message="The meter refused."))]


class Meter(Side):
    """Serves."""

    def handle(self, event: Event) -> list[Effect]:
        """A request with the next number becomes an invocation."""
        match event:
            case Received(data=data):
                return self.asked(data)
            case Result(call=call, value=value, error=error):
                number = self.open.pop(call)
                status = error.code if error else 200
                return [Send(peer=self.peer, data=RESPONSE.pack(number, status, 0 if error else value))]
            case PeerLost() | Close():
                return [End()]
        return []

    def asked(self, data: bytes) -> list[Effect]:
        """What a request asks for."""
        if len(data) != REQUEST.size:
            return [Audit(text="Ignored what is no request.")]
        number, kind, amount = REQUEST.unpack(data)
        if kind not in KINDS or (kind == 1 and not 1 <= amount <= 1_000_000):
            return [Audit(text="Ignored a request of no known kind.")]
        if number != self.last + 1:
            return [Send(peer=self.peer, data=RESPONSE.pack(number, 409, 0))]
        self.last = number
        self.open[str(number)] = number
        arguments: dict[str, Value] = {"amount": amount} if kind == 1 else {}
        return [Invoke(call=str(number), operation=KINDS[kind], arguments=arguments)]


handler = Counter()
