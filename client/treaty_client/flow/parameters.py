"""What parameters a side agrees to: one rule a name, the same for both sides.

    Fixed(v)             v and nothing else
    Choice(a, b, …)      one of these, the first preferred
    Range(low, high)     a number between; another is moved to the nearer end

The responder changes what it can change (a number into its range) and leaves out names that it has no rule for. What it cannot
change it refuses, and says what it supports. The initiator takes what its own rules admit, or offers again: what was offered
moved into its own rules. A parameter that the responder left out is dropped, unless its rule is `required`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from treaty_consensus.errors import Malformed, Refused

Json: TypeAlias = Any


class Unsupported(Refused):
    """No value for a parameter satisfies its rule. `details`: of the error message (`parameter`, `requested`, `supported`)."""

    def __init__(self, name: str, requested: Json, supported: Json) -> None:
        super().__init__("flow.parameters", f"The value that was asked for {name} is not supported.")
        self.details = {"parameter": name, "requested": requested, "supported": supported}


@dataclass(frozen=True)
class Choice:
    """One of `values`, the first preferred."""

    values: Sequence[Json]
    required: bool = False

    def __post_init__(self) -> None:
        if not self.values:
            raise Malformed("flow.offer", "A choice has at least one value.")

    @property
    def preferred(self) -> Json:
        """What is asked for first."""
        return self.values[0]

    @property
    def supported(self) -> Json:
        """What is told to a peer whose value was refused."""
        return list(self.values)

    def fit(self, name: str, value: Json) -> Json:
        """`value` if it is one of them. Raises `Unsupported`."""
        if not any(same(value, own) for own in self.values):
            raise Unsupported(name, value, self.supported)
        return value


def Fixed(value: Json, *, required: bool = False) -> Choice:  # noqa: N802 - reads as a rule beside the others
    """A choice of one."""
    return Choice((value,), required)


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`; `wanted` is asked for first, by default `high`."""

    low: float
    high: float
    wanted: float | None = None
    required: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.preferred <= self.high:
            raise Malformed("flow.offer", "A range goes from a lower to a higher number, and what is wanted is within.")

    @property
    def preferred(self) -> Json:
        """What is asked for first."""
        return self.high if self.wanted is None else self.wanted

    @property
    def supported(self) -> Json:
        """What is told to a peer whose value was refused."""
        return {"minimum": self.low, "maximum": self.high}

    def fit(self, name: str, value: Json) -> Json:
        """`value`, moved into the range. Raises `Unsupported` for what is no number."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Unsupported(name, value, self.supported)
        return min(max(value, self.low), self.high)


Rule: TypeAlias = Choice | Range
Rules: TypeAlias = Mapping[str, Rule]


def preferred(rules: Rules) -> dict[str, Json]:
    """What an initiator asks for first."""
    return {name: rule.preferred for name, rule in rules.items()}


def respond(rules: Rules, asked: Mapping[str, Json]) -> dict[str, Json]:
    """The responder's values for what was asked. Raises `Unsupported`."""
    for name, rule in rules.items():
        if rule.required and name not in asked:
            raise Unsupported(name, None, rule.supported)
    return {name: rules[name].fit(name, value) for name, value in asked.items() if name in rules}


def counter(rules: Rules, asked: Mapping[str, Json], answered: Mapping[str, Json]) -> dict[str, Json]:
    """The initiator's reaction to an answer: the same values if they will do, else what it would ask for now. Raises
    `Unsupported`."""
    for name, rule in rules.items():
        if rule.required and name not in answered:
            raise Unsupported(name, None, rule.supported)
    return {name: rules[name].fit(name, value) for name, value in answered.items() if name in asked and name in rules}


def instead(rules: Rules, asked: Mapping[str, Json], details: Mapping[str, Json]) -> dict[str, Json] | None:
    """What to ask for after a refusal with these `details`: the refused parameter at the first value that both support. None when
    there is none, or the refusal does not say enough."""
    name, supported = details.get("parameter"), details.get("supported")
    rule = rules.get(name) if isinstance(name, str) else None
    if not isinstance(name, str) or rule is None or name not in asked:
        return None
    for value in _values(supported, asked[name]):
        try:
            fitted = rule.fit(name, value)
        except Unsupported:
            continue
        if same(fitted, value) and not same(value, asked[name]):
            return {**asked, name: value}
    return None if rule.required else {key: value for key, value in asked.items() if key != name}


def same(one: Json, other: Json) -> bool:
    """Whether two JSON values are one: as Python compares them, but true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _values(supported: Json, asked: Json) -> list[Json]:
    match supported:
        case list():
            return supported[:64]
        case {"minimum": int() | float() as low, "maximum": int() | float() as high} if isinstance(asked, int | float):
            return [min(max(asked, low), high)]
    return []
