"""Which members of a broker get a message: by recipient, type, priority and data."""

from __future__ import annotations

from collections.abc import Iterable

from treaty_handler import Value

from .forms import KINDS, NAME, PRIORITIES, SCHEMA
from .messages import recipients_of
from .schemas import check

BROKER = "broker"
"""The name of the broker itself, which members send their JOIN to."""
MAX_RULES = 32

_NAMES = {"type": "array", "items": NAME, "maxItems": 16}
_CONDITIONS: dict[str, Value] = {
    "kinds": {"type": "array", "items": {"enum": list(KINDS)}, "maxItems": len(KINDS)},
    "priority": {"enum": list(PRIORITIES)},
    "where": {"type": "object"},
}
SUBSCRIPTION: Value = {"type": "object", "required": [], "properties": _CONDITIONS, "additionalProperties": False}
RULE: Value = {
    "type": "object",
    "required": ["to"],
    "properties": {"to": _NAMES, "recipients": _NAMES, **_CONDITIONS},
    "additionalProperties": False,
}
JOIN: Value = {
    "type": "object",
    "required": [],
    "properties": {"groups": _NAMES, "subscriptions": {"type": "array", "items": SUBSCRIPTION, "maxItems": MAX_RULES}},
    "additionalProperties": False,
}
RULES: Value = {"type": "array", "items": RULE, "maxItems": MAX_RULES}


def faults(form: Value, value: Value) -> list[str]:
    """Return the first faults of a JOIN or of rules."""
    return [fault for _, fault in zip(range(3), check(form, value, SCHEMA), strict=False)]


def holds(rule: Value, message: Value) -> bool:
    """Whether a message is of the types, at least of the priority, and has the data that a rule or subscription names."""
    payload, metadata = message["payload"], message["metadata"]
    return (
        ("kinds" not in rule or payload["handoff_type"] in rule["kinds"])
        and PRIORITIES.index(metadata["priority"]) >= PRIORITIES.index(rule.get("priority", PRIORITIES[0]))
        and all(_member(payload["data"], name) == value for name, value in rule.get("where", {}).items())
    )


def routed(message: Value, rules: Iterable[Value]) -> list[str]:
    """Return the agents and groups that a message goes to: for each recipient those of the first rule that holds, or itself."""
    targets: dict[str, None] = {}
    rules = [rule for rule in rules if holds(rule, message)]
    for recipient in recipients_of(message):
        fitting = (rule["to"] for rule in rules if not rule.get("recipients") or recipient in rule["recipients"])
        targets |= dict.fromkeys(next(fitting, [recipient]))
    return list(targets)


def _member(value: Value, name: str) -> Value:
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
