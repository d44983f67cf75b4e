"""Hide personal data in messages before they are logged or shown."""

from __future__ import annotations

from typing import Any

from .messages import Message

HIDDEN = "[redacted]"
_PARTS = frozenset(
    ("context", "previous_actions", "user_interaction_history", "payload", "data", "sub_tasks", "instructions", "constraints")
) | {"failure_handling_strategy"}
"""Members that have members of the protocol: these are looked at one by one."""
_SHOWN = frozenset(("handoff_type", "status", "severity", "in_reply_to", "progress", "timestamp", "deadline")) | {
    "criteria_met",
    "logs_attached",
    "retry_count",
    "time_limit",
}
"""Members whose form leaves no room for personal data: one of some words, a number, a time, an id."""


def redacted(message: Message) -> Message:
    """Return a copy of a valid message without personal data. `metadata` stays, so that the flow can be followed.

    All other members are hidden, but for those whose form the protocol fixes: no pattern finds all that is personal.
    """
    return {name: part if name == "metadata" else _redact(part) for name, part in message.items()}


def _redact(value: Any) -> Any:
    match value:
        case dict():
            return {name: item if name in _SHOWN else _redact(item) if name in _PARTS else HIDDEN for name, item in value.items()}
        case list():
            return [_redact(item) for item in value]
    return HIDDEN
