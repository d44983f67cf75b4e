"""The messages: their members, who sends them, and how they are read."""

from __future__ import annotations

from treaty_handler import Value, decode_json

MAX_TEXT = 500
_TYPES = {
    "member": {"say": {"id": str, "text": str}},
    "room": {
        "heard": {"id": str, "number": int},
        "error": {"id": str, "code": int, "message": str},
        "said": {"number": int, "from": str, "text": str},
    },
}
_LONGEST = {"id": 64, "text": MAX_TEXT, "from": 2048, "message": 500}


def issues(message: Value, sender: str) -> list[str]:
    """Return the faults of a message of this role."""
    types = _TYPES.get(sender, {})
    kind = message.get("type") if isinstance(message, dict) else None
    if not isinstance(kind, str) or kind not in types:
        return [f"It is no message of a {sender}."]
    return [
        f"{name} is missing or has another form." for name, of in types[kind].items() if not _fits(message.get(name), name, of)
    ]


def read(data: bytes, sender: str) -> dict[str, Value] | None:
    """Return the message in these bytes, or None for anything else."""
    try:
        message = decode_json(data)
    except ValueError:
        return None
    return None if issues(message, sender) else message


def _fits(value: Value, name: str, of: type) -> bool:
    if type(value) is not of:
        return False
    if of is int:
        return bool(value >= 1)
    return len(value) <= _LONGEST[name] and (bool(value) or name in ("from", "message"))
