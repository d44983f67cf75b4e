"""Hide personal data in messages before they are logged or shown."""

from __future__ import annotations

import re
from typing import Any

from .handler.forms import KINDS, PRIORITIES, STATUSES
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
"""Members that are shown if their value leaves no room for personal data: one of some words, a small number, a time, an id."""
_WORDS = frozenset((*KINDS, *PRIORITIES, *STATUSES))
_FIGURES = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,12}Z|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|PT[0-9HMS]{1,20}"
)


def redacted(message: Message) -> Message:
    """Return a copy of a valid message without personal data. `metadata` stays, so that the flow can be followed.

    All other members are hidden, but for those whose form the protocol fixes: no pattern finds all that is personal.
    """
    return {name: part if name == "metadata" else _redact(part) for name, part in message.items()}


def _redact(value: Any) -> Any:
    match value:
        case dict():
            return {
                name: item if name in _SHOWN and _is_harmless(item) else _redact(item) if name in _PARTS else HIDDEN
                for name, item in value.items()
            }
        case list():
            return [_redact(item) for item in value]
    return HIDDEN


def _is_harmless(value: Any) -> bool:
    """Senders may add members, also of these names."""
    match value:
        case bool():
            return True
        case int():
            return 0 <= value <= 100
        case str():
            return value in _WORDS or _FIGURES.fullmatch(value) is not None
    return False
