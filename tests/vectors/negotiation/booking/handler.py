"""Train tickets: one line of text a message, requests and responses matched by id."""

from __future__ import annotations

import re
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
    derive_id,
    encode_json,
)

SECONDS = 20
WORDS = {
    "SEARCH": ("searchTrips", ("origin", "destination", "date")),
    "BOOK": ("bookTrip", ("trip", "seats")),
    "CANCEL": ("cancelBooking", ("booking",)),
}
REQUEST = re.compile(
    r"(SEARCH) ([A-Za-z0-9]{1,64}) ([A-Z]{3}) ([A-Z]{3}) ([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"|(BOOK) ([A-Za-z0-9]{1,64}) ([A-Za-z0-9-]{1,32}) ([1-9])"
    r"|(CANCEL) ([A-Za-z0-9]{1,64}) ([A-Za-z0-9]{1,32})"
)
WITH_ID = re.compile(r"(?:SEARCH|BOOK|CANCEL) ([A-Za-z0-9]{1,64})(?: .*)?")
OK = re.compile(r"OK ([A-Za-z0-9]{1,64}) (.+)")
ERR = re.compile(r"ERR ([A-Za-z0-9]{1,64}) ([0-9]{3}) (.*)")


class Tickets:
    """The protocol; a message is a line."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Traveller | Railway:
        """A session as traveller or railway."""
        return Traveller(parameters, snapshot) if role == "traveller" else Railway(parameters, snapshot)

    def encode(self, message: Value) -> bytes:
        """The line as UTF-8."""
        if not isinstance(message, str) or "\n" in message:
            raise ValueError("a message is one line")
        return message.encode()

    def decode(self, data: bytes) -> str:
        """UTF-8 as a line."""
        text = data.decode()
        if "\n" in text:
            raise ValueError("a message is one line")
        return text

    def validate(self, message: Value, sender: str) -> list[str]:
        """Travellers send requests, railways responses."""
        forms = [REQUEST] if sender == "traveller" else [OK, ERR]
        fits = isinstance(message, str) and any(form.fullmatch(message) for form in forms)
        return [] if fits else ["This is no message of that role."]


class Side:
    """State: how many ids were made, and what is open under which."""

    def __init__(self, parameters: Mapping[str, Value], snapshot: bytes) -> None:
        self.peer, self.seed = str(parameters["peer"]), str(parameters["seed"])
        state: Value = decode_json(snapshot) if snapshot else [0, {}]
        self.made: int = state[0]
        self.open: dict[str, str] = state[1]

    def snapshot(self) -> bytes:
        """The state as JSON."""
        return encode_json([self.made, self.open])

    def line(self, data: bytes) -> str:
        """The received line, or "" when it is none."""
        try:
            return handler.decode(data)
        except ValueError:
            return ""


class Traveller(Side):
    """Calls."""

    def handle(self, event: Event) -> list[Effect]:
        """A call becomes a line and a timer."""
        match event:
            case Call(call=call, operation=operation, arguments=arguments):
                self.made += 1
                drawn = derive_id(self.seed, self.made)
                self.open[drawn] = call
                word, names = next((word, names) for word, (name, names) in WORDS.items() if name == operation)
                line = " ".join([word, drawn, *(str(arguments[name]) for name in names)])
                return [SetTimer(name=drawn, seconds=SECONDS), Send(peer=self.peer, data=handler.encode(line))]
            case Received(data=data):
                return self.answered(self.line(data))
            case Timer(name=drawn):
                return [Return(call=self.open.pop(drawn), error=Failure(code=504, message="The railway did not answer."))]
            case PeerLost():
                gone = Failure(code=503, message="The railway is gone.")
                lost = [Return(call=call, error=gone) for call in self.open.values()]
                return [*lost, End(status="failed" if lost else "completed")]
            case Close():
                return [End()]
        return []

    def answered(self, line: str) -> list[Effect]:
        """A response settles its call."""
        found = OK.fullmatch(line) or ERR.fullmatch(line)
        if found is None or found[1] not in self.open:
            return [Audit(text="Ignored what answers nothing.")]
        cancel, call = SetTimer(name=found[1], seconds=None), self.open.pop(found[1])
        if found.re is ERR:
            code = int(found[2]) if found[2] in ("400", "404", "409", "500") else 502
            return [cancel, Return(call=call, error=Failure(code=code, message=found[3][:500]))]
        try:
            return [cancel, Return(call=call, value=decode_json(found[2].encode()))]
        except ValueError:
            return [cancel, Return(call=call, error=Failure(code=502, message="The railway's result is no JSON."))]


class Railway(Side):
    """Serves."""

    def handle(self, event: Event) -> list[Effect]:
        """A request becomes an invocation, its result a line."""
        match event:
            case Received(data=data):
                return self.asked(self.line(data))
            case Result(call=call, value=value, error=None):
                return [self.say(f"OK {self.open.pop(call)} {encode_json(value).decode()}")]
            case Result(call=call, error=Failure(code=code, message=text)):
                return [self.say(f"ERR {self.open.pop(call)} {code} {' '.join(text.split())}")]
            case PeerLost() | Close():
                return [End()]
        return []

    def asked(self, line: str) -> list[Effect]:
        """What a line asks for."""
        found = REQUEST.fullmatch(line)
        if found is None:
            named = WITH_ID.fullmatch(line)
            return [self.say(f"ERR {named[1]} 400 This is no request.")] if named else [Audit(text="Ignored a line.")]
        word, drawn, *words = [group for group in found.groups() if group is not None]
        operation, names = WORDS[word]
        arguments: dict[str, Value] = dict(zip(names, words, strict=True))
        if "seats" in arguments:
            arguments["seats"] = int(arguments["seats"])
        self.made += 1
        self.open[str(self.made)] = drawn
        return [Invoke(call=str(self.made), operation=operation, arguments=arguments)]

    def say(self, line: str) -> Effect:
        """Send a line."""
        return Send(peer=self.peer, data=handler.encode(line))


handler = Tickets()
