"""The side that orders rides."""

from __future__ import annotations

from treaty_handler import (
    Call,
    Cancelled,
    Effect,
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

from .messages import read

SECONDS = 55


class Customer:
    """State: the calls by the ids of their orders."""

    def __init__(self, peer: str, seed: str, state: dict[str, Value]) -> None:
        """Begin, or go on from the state."""
        self.peer, self.seed = peer, seed
        self.made: int = state.get("made", 0)
        self.open: dict[str, str] = state.get("open", {})

    def handle(self, event: Event) -> list[Effect]:
        """Order a ride, or take the answer."""
        match event:
            case Call(call=call, arguments=arguments):
                self.made += 1
                id = derive_id(self.seed, self.made)
                self.open[id] = call
                message = {"type": "order", "id": id, "ride": arguments["ride"], "place": arguments["place"]}
                return [SetTimer(name=id, seconds=SECONDS), Send(peer=self.peer, data=encode_json(message))]
            case Cancelled(call=call):
                self.open = {id: other for id, other in self.open.items() if other != call}
            case Received(data=data):
                message = read(data, "dispatch")
                return [] if message is None or message.get("id") not in self.open else self.answered(message)
            case Timer(name=id) if id in self.open:
                return [self.fail(id, 504, "The dispatch does not answer.")]
            case PeerLost():
                return [self.fail(id, 503, "The dispatch is gone.") for id in tuple(self.open)]
        return []

    def answered(self, message: dict[str, Value]) -> list[Effect]:
        """Return the price, or the error."""
        id = message["id"]
        stopped = SetTimer(name=id, seconds=None)
        if message["type"] == "sold":
            return [stopped, Return(call=self.open.pop(id), value=message["price"])]
        code = message["code"] if message["code"] in (400, 403, 503) else 500
        return [stopped, self.fail(id, code, message["message"])]

    def fail(self, id: str, code: int, message: str) -> Return:
        """The end of an order that was not sold."""
        return Return(call=self.open.pop(id), error=Failure(code=code, message=message))

    def snapshot(self) -> bytes:
        """All of the state."""
        return encode_json({"made": self.made, "open": self.open})
