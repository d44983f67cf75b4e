"""What the tests of costly schemas share."""

from __future__ import annotations

from typing import Any

SECONDS = 1.0
"""Of processor time, for what takes 0.1 s at most; without bounds the same things took 3 to 40 s."""

AMBIGUOUS = "(a[ -y]{1,9}|b[ -y]{1,17}){12}z"
"""What an automaton of all its states has no room for: each letter costs as much as the pattern is long."""


def each(*schemas: dict[str, Any]) -> dict[str, Any]:
    """A schema that applies all of these to every item, whatever they say of the first ones."""
    return {"items": {"allOf": [{"anyOf": [schema, {"not": schema}]} for schema in schemas]}}
