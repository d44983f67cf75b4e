"""Greeting: a guest tells its name, a host greets it. Small, with all the parts: two roles, a timer, hostile input."""

from __future__ import annotations

from collections.abc import Mapping

from treaty_handler import (
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


class Greeting:
    """The protocol: a message is UTF-8 text."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Guest | Host:
        """A session as guest or host."""
        calls = decode_json(snapshot) if snapshot else []
        return Guest(parameters["peer"], calls) if role == "guest" else Host(parameters["peer"], calls)

    def encode(self, message: Value) -> bytes:
        """Text as UTF-8."""
        if not isinstance(message, str):
            raise ValueError("a message is text")
        return message.encode()

    def decode(self, data: bytes) -> str:
        """UTF-8 as text."""
        return data.decode()

    def validate(self, message: Value, sender: str) -> list[str]:
        """A name has 1 to 100 characters, a greeting at most 500."""
        shortest, longest = (1, 100) if sender == "guest" else (0, 500)
        fits = isinstance(message, str) and shortest <= len(message) <= longest
        return [] if fits else [f"A message of a {sender} is text of {shortest} to {longest} characters."]


class Side:
    """One role's session. `calls`: what waits for an answer, in order."""

    def __init__(self, peer: str, calls: list[str]) -> None:
        self.peer, self.calls = peer, calls

    def snapshot(self) -> bytes:
        """The state as JSON."""
        return encode_json(self.calls)

    def text(self, data: bytes, sender: str) -> str | None:
        """A message of the other side, or None when it is none."""
        try:
            message = handler.decode(data)
        except ValueError:
            return None
        return None if handler.validate(message, sender) else message


class Guest(Side):
    """Asks: one name at a time is under way."""

    def handle(self, event: Event) -> list[Effect]:
        """A call sends the name and waits ten seconds."""
        match event:
            case Call(call=call) if self.calls:
                return [Return(call=call, error=Failure(code=429, message="One name at a time."))]
            case Call(call=call, arguments=arguments):
                self.calls.append(call)
                return [SetTimer(name="answer", seconds=10), Send(peer=self.peer, data=handler.encode(arguments["name"]))]
            case Received(data=data) if self.calls and (greeting := self.text(data, "host")) is not None:
                return [SetTimer(name="answer", seconds=None), Return(call=self.calls.pop(), value=greeting)]
            case Timer():
                return [Return(call=self.calls.pop(), error=Failure(code=504, message="No greeting came."))]
            case PeerLost() | Close():
                return [End(status="failed" if self.calls else "completed")]
        return []


class Host(Side):
    """Answers, in the order of the names."""

    def handle(self, event: Event) -> list[Effect]:
        """A name invokes the business logic, whose result is the greeting."""
        match event:
            case Received(data=data) if not self.calls and (name := self.text(data, "guest")) is not None:
                self.calls.append("1")
                return [Invoke(call="1", operation="greet", arguments={"name": name})]
            case Result(value=value, error=error):
                self.calls.clear()
                return [] if error else [Send(peer=self.peer, data=handler.encode(value))]
            case PeerLost() | Close():
                return [End()]
        return []


handler = Greeting()
