"""The side that is paid at."""

from __future__ import annotations

from typing import Any

from treaty_handler import Close, Effect, End, Event, Invoke, PeerLost, Received, Result, Send, Value, encode_json

from .messages import issues, read

MAX_OPEN = 256


class Bank:
    """A session as bank. `open`: call → the id of the request and its type."""

    def __init__(self, peer: str, state: Any) -> None:
        self.peer = peer
        self.made: int = state.get("made", 0)
        self.open: dict[str, list[str]] = state.get("open", {})

    def snapshot(self) -> bytes:
        """The state as JSON."""
        return encode_json({"made": self.made, "open": self.open})

    def handle(self, event: Event) -> list[Effect]:
        """A request asks the application; its result is the answer."""
        match event:
            case Received(data=data):
                message = read(data)
                return [] if message is None else self.received(message)
            case Result(call=call, value=value, error=error):
                number, kind = self.open.pop(call)
                if error is not None:
                    return [self.refuse(number, error.code, error.message)]
                if kind == "journal":
                    return [self.send(number, "entries", entries=value)]
                return [self.send(number, "reserved" if kind == "reserve" else "captured")]
            case PeerLost() | Close():
                return [End()]
        return []

    def received(self, message: dict[str, Any]) -> list[Effect]:
        """Ask the application, unless the request does not conform."""
        number, kind = message["id"], message.get("type")
        if found := issues(message, "payer"):
            return [self.refuse(number, 400, " ".join(found))]
        if len(self.open) >= MAX_OPEN:
            return [self.refuse(number, 503, "Too many requests are open.")]
        self.made += 1
        self.open[str(self.made)] = [number, kind]
        names = {"reserve": ("payment", "amount"), "capture": ("payment",), "journal": ("after",)}[kind]
        return [Invoke(call=str(self.made), operation=kind, arguments={name: message[name] for name in names})]

    def refuse(self, number: str, code: int, text: str) -> Effect:
        """Answer with an error."""
        return self.send(number, "refused", code=code, message=text[:500])

    def send(self, number: str, kind: str, **members: Value) -> Effect:
        """Send an answer."""
        return Send(peer=self.peer, data=encode_json({"id": number, "type": kind, **members}))
