"""The messages between an environment and its members: JSON objects with a type, and the members that the type has."""

from __future__ import annotations

import hashlib
import json
import zlib

from treaty_handler import Value, decode_json, encode_json

from .message import is_name, message_faults

MAX_ROUND = 2**31
MAX_TEXT = 500

_MEMBERS: dict[str, dict[str, dict[str, type]]] = {
    "member": {
        "join": {"id": str, "name": str, "address": str, "shared": bool},
        "publish": {"id": str, "message": dict},
        "state": {"round": int, "idle": bool, "error": str},
    },
    "environment": {
        "accepted": {"id": str},
        "refused": {"id": str, "code": int, "reason": str},
        "message": {"message": dict},
        "run": {"round": int},
    },
}
CODES = (400, 403, 409, 429)
"""The reasons for which an environment refuses: malformed, not allowed, taken, no room."""


def wire_faults(message: Value, sender: str) -> list[str]:
    """Return the faults of a message that a role sent, a sentence each."""
    kinds = _MEMBERS.get(sender, {})
    if not isinstance(message, dict) or not isinstance(message.get("type"), str) or message["type"] not in kinds:
        return [f"A {sender} sends an object whose type is one of {', '.join(kinds)}."]
    members = kinds[message["type"]]
    if message.keys() != {"type", *members}:
        return [f"{message['type']} has the members {', '.join(members)}."]
    faults = [f"{name} is of a wrong type." for name, kind in members.items() if type(message[name]) is not kind]
    return faults or _value_faults(message)


def _value_faults(message: dict[str, Value]) -> list[str]:
    faults = [f"{name} is no name." for name in ("id", "name", "address") if not is_name(message.get(name, "x"))]
    if not 0 <= message.get("round", 0) <= MAX_ROUND:
        faults.append(f"round is from 0 to {MAX_ROUND}.")
    if message.get("code", CODES[0]) not in CODES:
        faults.append(f"code is one of {', '.join(map(str, CODES))}.")
    if len(message.get("reason", "")) > MAX_TEXT or len(message.get("error", "")) > MAX_TEXT:
        faults.append(f"A reason has at most {MAX_TEXT} characters.")
    return faults + (message_faults(message["message"]) if "message" in message else [])


def read(data: bytes, sender: str) -> dict[str, Value]:
    """Return a message of the other side. Raises `ValueError` with its fault."""
    message = decode_json(data)
    for fault in wire_faults(message, sender):
        raise ValueError(fault)
    value: dict[str, Value] = message
    return value


def make_id(seed: str, number: int) -> str:
    """Return the hexadecimal digits of a UUID of version 4 (RFC 9562), which needs the session's seed to predict."""
    digits = hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()[:32]
    variant = "89ab"[int(digits[16], 16) % 4]
    return f"{digits[:12]}4{digits[13:16]}{variant}{digits[17:]}"


def pack(state: Value) -> bytes:
    """Return a state for a snapshot. Messages resemble each other, so that compression makes room for many."""
    return zlib.compress(encode_json(state), 9)


def unpack(snapshot: bytes) -> Value:
    """Return the state of `pack`."""
    # Not `decode_json`: a history is larger than a message may be.
    return json.loads(zlib.decompress(snapshot))
