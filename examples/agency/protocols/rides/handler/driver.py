"""The side that bids."""

from __future__ import annotations

from treaty_handler import Effect, Event, Invoke, Received, Result, Send, Value, encode_json

from .messages import read

MAX_ASKED = 256
"""Questions that the application answers at once. Beyond them a driver does not bid."""


class Driver:
    """State: the auctions by the calls that ask the application."""

    def __init__(self, peer: str, state: dict[str, Value]) -> None:
        """Begin, or go on from the state."""
        self.peer = peer
        self.made: int = state.get("made", 0)
        self.asked: dict[str, str] = state.get("asked", {})

    def handle(self, event: Event) -> list[Effect]:
        """Ask the application for a price, and bid it."""
        match event:
            case Received(data=data):
                message = read(data, "dispatch")
                if message is None or message["type"] != "ask" or len(self.asked) >= MAX_ASKED:
                    return []
                self.made += 1
                self.asked[str(self.made)] = message["auction"]
                arguments = {"ride": message["ride"], "place": message["place"]}
                return [Invoke(call=str(self.made), operation="bid", arguments=arguments)]
            case Result(call=call, value=price, error=None):
                message = {"type": "bid", "auction": self.asked.pop(call), "price": price}
                return [Send(peer=self.peer, data=encode_json(message))]
            case Result(call=call):
                del self.asked[call]
        return []

    def snapshot(self) -> bytes:
        """All of the state."""
        return encode_json({"made": self.made, "asked": self.asked})
