"""Remove personal data from messages before they are logged or shown."""

from __future__ import annotations

import re
from typing import Any

from .messages import Message

HIDDEN = "[redacted]"
_PERSONAL = frozenset(("customer_info", "contact_number", "email", "phone", "address", "name", "user_id", "query_parameters"))
"""Members whose whole value is personal, wherever they stand."""
_FREE_TEXT = frozenset(("content", "historical_data_summary", "details", "symptoms", "detail", "description", "objective"))
"""Texts of people and about people: no pattern finds all that is personal in them."""
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_PHONE = re.compile(r"\+?\d(?:[ ()./-]{0,2}\d){6,14}")

_PLAIN = re.compile(r"\d{4}-\d\d-\d\dT|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
"""Times and ids: their digits are no number of a telephone."""


def redacted(message: Message) -> Message:
    """Return a copy without personal data. `metadata` stays, so that the flow can be followed."""
    return {name: part if name == "metadata" else _redact(part) for name, part in message.items()}


def _redact(value: Any) -> Any:
    match value:
        case dict():
            return {name: HIDDEN if name in _PERSONAL | _FREE_TEXT else _redact(item) for name, item in value.items()}
        case list():
            return [_redact(item) for item in value]
        case str() if not _PLAIN.match(value):
            return _PHONE.sub(HIDDEN, _EMAIL.sub(HIDDEN, value))
    return value
