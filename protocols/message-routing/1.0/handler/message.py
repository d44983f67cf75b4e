"""A message of the environment: its fields, their defaults (rule 1), and the form of names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from treaty_handler import Value, encode_json

TO_ALL, TO_NONE, TO_SELF = "<all>", "<none>", "<self>"
USER_REQUIREMENT = "UserRequirement"
"""The cause of a message that names none."""
ROLES = ("user", "system", "assistant")

MAX_NAME = 64
MAX_RECIPIENTS = 64
# Messages are arguments and results of operations, whose values have bounds together. So each has to be small.
MAX_BYTES = 64 * 1024
MAX_VALUES = 1_000
MAX_LEVELS = 16
"""The bounds of a message as compact JSON: bytes, values, and levels."""

FIELDS = ("id", "content", "instruct_content", "role", "cause_by", "sent_from", "send_to")


class Size(NamedTuple):
    """The size of a message: bytes of its key, and values."""

    bytes: int
    values: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """One message. `send_to`: names and addresses of members, or one of the three words in angle brackets."""

    id: str
    content: str
    instruct_content: Value = None
    role: str = "user"
    cause_by: str = USER_REQUIREMENT
    sent_from: str = ""
    send_to: frozenset[str] = frozenset({TO_ALL})

    def to_value(self) -> dict[str, Value]:
        """Return the message as a JSON value with all fields."""
        return {**{name: getattr(self, name) for name in FIELDS}, "send_to": sorted(self.send_to)}

    @property
    def key(self) -> bytes:
        """Return bytes that only an equal message has: all fields count, and the order of names in objects does not."""
        return encode_json({**self.to_value(), "instruct_content": _ordered(self.instruct_content)})

    @property
    def size(self) -> Size:
        """Return its size. Each use computes it anew."""
        return Size(len(self.key), _measure(self.to_value()))

    def readdressed(self, sent_from: str, send_to: frozenset[str]) -> Message:
        """Return the message with another sender and other recipients."""
        return replace(self, sent_from=sent_from, send_to=send_to)


def complete(draft: Mapping[str, Any], make_id: Callable[[], str]) -> Message:
    """Return the message of a draft without faults: what is missing or empty has its default (rule 1)."""
    return Message(
        id=draft.get("id") or make_id(),
        content=draft["content"],
        instruct_content=draft.get("instruct_content"),
        role=draft.get("role") or "user",
        cause_by=draft.get("cause_by") or USER_REQUIREMENT,
        sent_from=draft.get("sent_from") or "",
        send_to=frozenset(draft.get("send_to") or (TO_ALL,)),
    )


def draft_faults(draft: Value) -> list[str]:
    """Return the faults of a message of any author, a sentence each. All fields but `content` may be missing."""
    if not isinstance(draft, dict) or not isinstance(draft.get("content"), str):
        return ["A message is an object with a text as its content."]
    faults = [f"A message has no field {name[:80]!r}." for name in draft if name not in FIELDS]
    values = {name: value for name, value in draft.items() if value not in (None, "")}
    if not isinstance(values.get("instruct_content", {}), dict):
        faults.append("instruct_content is an object or null.")
    if values.get("role", "user") not in ROLES:
        faults.append(f"role is one of {', '.join(ROLES)}.")
    faults += [f"{name} is {NAME_FORM}." for name in ("id", "cause_by", "sent_from") if not is_name(values.get(name, "x"))]
    recipients = values.get("send_to", [])
    if not isinstance(recipients, list) or len(recipients) > MAX_RECIPIENTS or not all(map(_is_recipient, recipients)):
        faults.append(f"send_to is a list of at most {MAX_RECIPIENTS} names, or {TO_ALL}, {TO_NONE} or {TO_SELF}.")
    if not faults and (len(encode_json(draft)) > MAX_BYTES or _measure(draft) > MAX_VALUES):
        faults.append(f"A message has at most {MAX_BYTES} bytes and {MAX_VALUES} values, nested at most {MAX_LEVELS} deep.")
    return faults


def message_faults(value: Value) -> list[str]:
    """Return the faults of a message on the wire, which has all fields. Only the sender may be empty: that of the user."""
    if not isinstance(value, dict) or value.keys() != set(FIELDS):
        return [f"A message has the fields {', '.join(FIELDS)}."]
    if not all(value[name] for name in ("id", "role", "cause_by", "send_to")) or value["sent_from"] is None:
        return ["A message has an id, a role, a cause, a sender and recipients."]
    return draft_faults(value)


# A module path is no stable name: it changes with the program, and another program has another.
NAME_FORM = f"a name of 1 to {MAX_NAME} characters without dots, angle brackets and control characters"


def is_name(value: Value) -> bool:
    """Return whether this is a name of a member, a class, an action or a message."""
    return isinstance(value, str) and 1 <= len(value) <= MAX_NAME and not any(c in "<>.\x7f" or c < " " for c in value)


def _is_recipient(value: Value) -> bool:
    return value in (TO_ALL, TO_NONE, TO_SELF) if isinstance(value, str) and value[:1] == "<" else is_name(value)


def _measure(value: Value) -> int:
    """Return the number of values in a draft; too many if they are nested too deeply."""
    level, count = [value], 0
    for _ in range(MAX_LEVELS):
        count += len(level)
        containers = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [child for container in containers for child in container]
        if not level:
            return count
    return MAX_VALUES + 1


def _ordered(value: Value) -> Value:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value
