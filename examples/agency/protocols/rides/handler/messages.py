"""The messages: their members, who sends them, and how they are read."""

from __future__ import annotations

from treaty_handler import Value, decode_json

MAX_PRICE = 100_000_000
_TYPES = {
    "customer": {"order": ("id", "ride", "place")},
    "driver": {"bid": ("auction", "price")},
    "dispatch": {
        "ask": ("auction", "ride", "place"),
        "sold": ("id", "price"),
        "refused": ("id", "code", "message"),
    },
}


def issues(message: Value, sender: str) -> list[str]:
    """Return the faults of a message of this role."""
    types = _TYPES.get(sender, {})
    kind = message.get("type") if isinstance(message, dict) else None
    if not isinstance(kind, str) or kind not in types:
        return [f"It is no message of a {sender}."]
    return [f"{name} is missing or has another form." for name in types[kind] if not _fits(name, message.get(name))]


def read(data: bytes, sender: str) -> dict[str, Value] | None:
    """Return the message in these bytes, or None for anything else."""
    try:
        message = decode_json(data)
    except ValueError:
        return None
    return None if issues(message, sender) else message


def read_id(data: bytes) -> str:
    """Return the id of a message that may have faults, or ""."""
    try:
        message = decode_json(data)
    except ValueError:
        return ""
    return message["id"] if isinstance(message, dict) and _fits("id", message.get("id")) else ""


def _fits(name: str, value: Value) -> bool:
    if name == "price":
        return type(value) is int and 1 <= value <= MAX_PRICE
    if name == "code":
        return type(value) is int and 100 <= value <= 599
    return isinstance(value, str) and 1 <= len(value) <= (500 if name == "message" else 64)
