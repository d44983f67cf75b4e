"""The ids of the messages that one sender sent: a repetition of one has no second effect, however many came in between."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from treaty_handler import Value, encode_json

from .messages import expires, id_of


class RememberedIds:
    """`ids`: by id the status, the digest, the timestamp and the expiry of a message.

    `floor`: the newest timestamp of those whose ids gave way. A message that is not newer may be a repetition, so it is refused.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.floor: int = state.get("floor", 0)
        self.ids: dict[str, list[Any]] = state.get("ids", {})

    def state(self) -> dict[str, Any]:
        """Return the state as JSON's values."""
        return {"floor": self.floor, "ids": self.ids}

    def verdict(self, message: Value, at: int) -> tuple[str, str]:
        """Return why a valid message has no effect, as a status and a sentence; two empty texts if it may have one."""
        entry = self.ids.get(id_of(message))
        if entry is not None:
            return ("DUPLICATE", entry[0]) if entry[1] == _digest(message) else ("REJECTED", "Another message has this id.")
        moment = expires(message)
        if moment is not None and moment <= at:
            return "EXPIRED", ""
        if _sent(message) <= self.floor:
            return "EXPIRED", "The message is older than the ids that are remembered."
        return "", ""

    def add(self, message: Value, status: str) -> list[Any]:
        """Remember a message, or its new status."""
        self.ids[id_of(message)] = [status, _digest(message), _sent(message), expires(message)]
        return self.ids[id_of(message)]

    def give_way(self, at: int, exempt: Collection[str] = ()) -> str:
        """Forget and return one id, none of `exempt`: of an expired message, which has no effect anyway, or of the oldest."""
        free = [key for key in self.ids if key not in exempt]
        gone = [key for key in free if self.ids[key][3] is not None and self.ids[key][3] <= at]
        key = gone[0] if gone else min(free, key=lambda key: self.ids[key][2])
        if not gone:
            self.floor = max(self.floor, self.ids[key][2])
        del self.ids[key]
        return key


def _sent(message: Value) -> int:
    return round(datetime.fromisoformat(message["metadata"]["timestamp"]).timestamp() * 1000)


def _digest(message: Value) -> str:
    """64 bits: only the sender, who may send anything, gains from a collision."""
    return hashlib.sha256(encode_json(_sorted(message))).hexdigest()[:16]


def _sorted(value: Value) -> Value:
    """The order of names does not count."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
