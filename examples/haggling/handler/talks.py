"""The parts that buyer and seller share: reading and sending messages of open talks."""

from __future__ import annotations

import re
from typing import Any

from treaty_handler import Effect, Send, SetTimer, Value, decode_json, encode_json

PATIENCE = 15
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")  # it is the name of a timer too
MAX_PRICE = 1_000_000_000


_MEMBERS = {
    "offer": {"item": str, "price": int},
    "counter": {"price": int},
    "accept": {"price": int},
    "refuse": {"code": int, "message": str},
}
_SENDERS = {"buyer": {"offer", "accept", "refuse"}, "seller": {"counter", "accept", "refuse"}}


def issues(message: Value, sender: str) -> list[str]:
    """The faults of a message. Each type has its members, and its sender."""
    if not isinstance(message, dict) or not isinstance(message.get("id"), str):
        return ["A message is an object with an id."]
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in _SENDERS[sender]:
        return [f"A {sender} sends {', '.join(sorted(_SENDERS[sender]))}."]
    wrong = (name for name, wanted in _MEMBERS[kind].items() if type(message.get(name)) is not wanted)
    return [f"{name} is missing or of a wrong type." for name in wrong]


class Talks:
    """One role's session. `talks`: id → state of an open talk."""

    def __init__(self, peer: str, seed: str, state: Any) -> None:
        self.peer, self.seed = peer, seed
        self.made: int = state.get("made", 0)
        self.talks: dict[str, dict[str, Any]] = state.get("talks", {})

    def snapshot(self) -> bytes:
        """The state as JSON."""
        return encode_json({"made": self.made, "talks": self.talks})

    def read(self, data: bytes, sender: str) -> dict[str, Value] | None:
        """A message of the other side, or None if it does not conform."""
        try:
            message = decode_json(data)
        except ValueError:
            return None
        if issues(message, sender) or not _ID.fullmatch(message["id"]):
            return None
        has_price = "price" in _MEMBERS[message["type"]]
        return message if not has_price or 1 <= message["price"] <= MAX_PRICE else None

    def say(self, talk: str, kind: str, **members: Value) -> list[Effect]:
        """Send a message and wait for the answer."""
        data = encode_json({"id": talk, "type": kind, **members})
        waits = kind in ("offer", "counter")
        timer = SetTimer(name=talk, seconds=PATIENCE if waits else None)
        return [timer, Send(peer=self.peer, data=data)]

    def stop(self, talk: str) -> list[Effect]:
        """Wait no longer."""
        return [SetTimer(name=talk, seconds=None)]
