"""Reading and writing handoff messages."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

from treaty_handler import Value, decode_json, derive_id

from .forms import PRIORITIES, SCHEMA
from .schemas import check

MAX_MESSAGE = 16 * 1024
"""Bytes of a message that a session takes: it is part of the session's snapshot, which has 64 KiB."""
MAX_ISSUES = 10
VERSION = "1.0.0"
MAJOR = "1"


def issues(message: Value) -> list[str]:
    """The faults of a message, a sentence each."""
    found = list(islice(check(SCHEMA, message, SCHEMA), MAX_ISSUES))
    if not found and message["metadata"]["protocol_version"].partition(".")[0] != MAJOR:
        return [f"Version {message['metadata']['protocol_version']} is not spoken here."]
    return found


def read(data: bytes) -> tuple[Value, list[str]]:
    """A message and its faults. The message is None where the bytes are none."""
    if len(data) > MAX_MESSAGE:
        return None, [f"A message has at most {MAX_MESSAGE} bytes here."]
    try:
        message = decode_json(data)
    except ValueError as error:
        return None, [f"The message is not JSON: {error}."]
    return message, issues(message)


def rank(message: Value) -> int:
    """The order of work: a smaller number comes first."""
    return -PRIORITIES.index(message["metadata"]["priority"])


def expires(message: Value) -> int | None:
    """When the message expires, in milliseconds since 1970; None if never."""
    text = message["metadata"].get("expiration_time")
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)


def status_update(seed: str, number: int, at: int, about: Value, status: str, *, issues: list[str], detail: str = "") -> Value:
    """Feedback on a message: a STATUS_UPDATE of its recipient to its sender, in the same flow and task."""
    metadata = about["metadata"]
    recipient = metadata["recipient_id"]
    digits = derive_id(seed, 2 * number) + derive_id(seed, 2 * number + 1)
    data: dict[str, Value] = {"in_reply_to": metadata["message_id"], "status": status}
    if detail:
        data["detail"] = detail[:500]
    if issues:
        data["issues"] = issues
    shown = {name: metadata[name] for name in ("correlation_id",) if name in metadata}
    return {
        "metadata": {
            "message_id": f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}",
            "timestamp": datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "protocol_version": VERSION,
            "sender_id": recipient if isinstance(recipient, str) else recipient[0],
            "recipient_id": metadata["sender_id"],
            **shown,
            "task_id": metadata["task_id"],
            "priority": metadata["priority"],
        },
        "context": {"workflow_state": status, "previous_actions": []},
        "payload": {"handoff_type": "STATUS_UPDATE", "data": data},
        "instructions": {},
    }
