"""The messages of both roles, and how they are read."""

from __future__ import annotations

from typing import Any

from treaty_handler import Value, decode_json

_MEMBERS = {
    "reserve": {"payment": str, "amount": int},
    "capture": {"payment": str},
    "journal": {"after": int},
    "reserved": {},
    "captured": {},
    "entries": {"entries": list},
    "refused": {"code": int, "message": str},
}
_SENDERS = {"payer": ("reserve", "capture", "journal"), "bank": ("reserved", "captured", "entries", "refused")}


def is_entry(entry: Value) -> bool:
    """Whether an entry of the journal has the form that the manifest promises to applications."""
    if not isinstance(entry, dict) or entry.keys() != {"number", "key", "event", "price"}:
        return False
    number, key, event, price = (entry[name] for name in ("number", "key", "event", "price"))
    is_text = isinstance(key, str) and 1 <= len(key) <= 64 and isinstance(event, str) and len(event) <= 16
    return is_text and type(number) is int and number >= 1 and type(price) is int and 0 <= price <= 100_000_000


def issues(message: Value, sender: str) -> list[str]:
    """The faults of a message. Each type has its members, and its sender."""
    if not isinstance(message, dict) or not isinstance(message.get("id"), str) or not 1 <= len(message["id"]) <= 64:
        return ["A message is an object with an id of 1 to 64 characters."]
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in _SENDERS[sender]:
        return [f"A {sender} sends {', '.join(_SENDERS[sender])}."]
    found = [
        f"{name} is missing or of a wrong type."
        for name, wanted in _MEMBERS[kind].items()
        if type(message.get(name)) is not wanted
    ]
    if not found and not 1 <= len(message.get("payment", "key")) <= 64:
        found.append("payment has 1 to 64 characters.")
    if not found and not (1 <= message.get("amount", 1) <= 100_000_000 and message.get("after", 0) >= 0):
        found.append("The number is out of its range.")
    return found


def read(data: bytes) -> dict[str, Any] | None:
    """A message of the other side if it is an object with an id, else None."""
    try:
        message = decode_json(data)
    except ValueError:
        return None
    return message if isinstance(message, dict) and isinstance(message.get("id"), str) and 1 <= len(message["id"]) <= 64 else None
