"""The side that pays."""

from __future__ import annotations

from typing import Any

from treaty_handler import (
    Call,
    Close,
    Effect,
    End,
    Event,
    Failure,
    PeerLost,
    Received,
    Return,
    Send,
    SetTimer,
    Timer,
    Value,
    derive_id,
    encode_json,
)

from .messages import is_entry, issues, read

PATIENCE = 30
ANSWERS = {"reserve": "reserved", "capture": "captured", "journal": "entries"}
CODES = {"pay": (400, 402, 403, 409), "journal": (400, 403)}


class Payer:
    """A session as payer. `open`: id → the call, its operation, the payment and the type of the last message."""

    def __init__(self, peer: str, seed: str, state: Any) -> None:
        self.peer, self.seed = peer, seed
        self.made: int = state.get("made", 0)
        self.open: dict[str, dict[str, Any]] = state.get("open", {})

    def snapshot(self) -> bytes:
        """The state as JSON."""
        return encode_json({"made": self.made, "open": self.open})

    def handle(self, event: Event) -> list[Effect]:
        """A call sends the first step; each answer sends the next one, or is the result."""
        match event:
            case Call(call=call, operation=operation, arguments=arguments):
                self.made += 1
                number = derive_id(self.seed, self.made)
                self.open[number] = {"call": call, "operation": operation, "payment": arguments.get("payment", "")}
                return self.send(number, "reserve" if operation == "pay" else "journal", **arguments)
            case Received(data=data):
                message = read(data)
                return [] if message is None or message["id"] not in self.open else self.received(message)
            case Timer(name=number):
                return [self.fail(number, 504, "The bank does not answer.")]
            case PeerLost():
                # The open calls stay open: the host knows that their outcome is unknown, and may repeat them.
                return [End(status="failed" if self.open else "completed")]
            case Close():
                return [End()]
        return []

    def received(self, message: dict[str, Any]) -> list[Effect]:
        """Take the answer to the last step."""
        number, state = message["id"], self.open[message["id"]]
        quiet = SetTimer(name=number, seconds=None)
        if issues(message, "bank"):
            return [quiet, self.fail(number, 502, "The bank's answer does not conform.")]
        if message["type"] == "refused":
            code = message["code"] if message["code"] in (*CODES[state["operation"]], 500, 503, 504) else 502
            return [quiet, self.fail(number, code, message["message"][:500])]
        if message["type"] != ANSWERS[state["step"]]:
            return [quiet, self.fail(number, 502, "The bank answered another request.")]
        if message["type"] == "reserved":
            return self.send(number, "capture", payment=state["payment"])
        entries = message.get("entries")
        # A result of another form would end the session.
        if entries is not None and (len(entries) > 100 or not all(map(is_entry, entries))):
            return [quiet, self.fail(number, 502, "The bank sent entries of another form.")]
        return [quiet, Return(call=self.open.pop(number)["call"], value=entries)]

    def send(self, number: str, step: str, **members: Value) -> list[Effect]:
        """Send a step and wait for its answer."""
        self.open[number]["step"] = step
        data = encode_json({"id": number, "type": step, **members})
        return [SetTimer(name=number, seconds=PATIENCE), Send(peer=self.peer, data=data)]

    def fail(self, number: str, code: int, text: str) -> Return:
        """The end of a call without a result."""
        return Return(call=self.open.pop(number)["call"], error=Failure(code=code, message=text))
