"""Agree on parameters by rules: one rule for each name, the same kinds on both sides.

    Fixed(v)             only v
    Choice(a, b, …)      one of these; the first is preferred
    Range(low, high)     a number between; another number is moved to the nearer end

docs/specification/flow-profile.md, section 4, has the procedure. For example, a responder with Range(1, 10) answers 20 with 10. A
parameter that the responder leaves out is dropped, unless its rule is `required`.

The session itself keeps five parameters. All others belong to the handlers, which get them in `Opened`.

    maxMessageSize      bytes of one handler's message in either direction
    responseTimeout     milliseconds that a call waits
    chunkSize           bytes of one message of the wire, at least 512; a longer message is cut (`transfer`)
    compressionFormat   "gzip", "deflate" or "none" (`transfer`)
    encryptionLevel     "AES-128-GCM", the cipher of the encrypted connection, or "none"

Only values that happen may be agreed. So an offer with another value is refused when it is registered, and an encryption is
agreed only on an encrypted connection. The peer cannot remove it: a rule for `encryptionLevel` is required unless "none" is among
its values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from treaty_consensus.errors import Malformed, Refused
from treaty_io.codes import FlowCode

Json: TypeAlias = Any


class Unsupported(Refused):
    """No value for a parameter satisfies its rule. `details`: of the error message (`parameter`, `requested`, `supported`)."""

    def __init__(self, name: str, requested: Json, supported: Json) -> None:
        super().__init__(FlowCode.PARAMETERS, f"The value that was asked for {name} is not supported.")
        self.details = {"parameter": name, "requested": requested, "supported": supported}


@dataclass(frozen=True)
class Choice:
    """One of `values`, the first preferred."""

    values: Sequence[Json]
    required: bool = False

    def __post_init__(self) -> None:
        if not self.values:
            raise Malformed(FlowCode.OFFER, "A choice has at least one value.")

    @property
    def preferred(self) -> Json:
        """The value to ask for first."""
        return self.values[0]

    @property
    def supported(self) -> Json:
        """The values to name to a peer whose value was refused."""
        return list(self.values)

    def clamp(self, name: str, value: Json) -> Json:
        """`value` if it is one of them. Raises `Unsupported`."""
        if not any(json_equal(value, own) for own in self.values):
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
            raise Malformed(FlowCode.OFFER, "A range goes from a lower to a higher number, and what is wanted is within.")

    @property
    def preferred(self) -> Json:
        """The value to ask for first."""
        return self.high if self.wanted is None else self.wanted

    @property
    def supported(self) -> Json:
        """The values to name to a peer whose value was refused."""
        return {"minimum": self.low, "maximum": self.high}

    def clamp(self, name: str, value: Json) -> Json:
        """`value`, moved into the range. Raises `Unsupported` for a value that is no number."""
        if not _is_number(value):
            raise Unsupported(name, value, self.supported)
        return min(max(value, self.low), self.high)


class Rule(Protocol):
    """The interface of a rule: `Choice`, `Range` and `RoleName`, and `Unkept` where a connection can keep no value."""

    @property
    def required(self) -> bool:
        """Whether the parameter may not be left out."""

    @property
    def preferred(self) -> Json:
        """The value to ask for first."""

    @property
    def supported(self) -> Json:
        """The values to name to a peer whose value was refused."""

    def clamp(self, name: str, value: Json) -> Json:
        """Return the value that satisfies the rule and is nearest to `value`. Raises `Unsupported`."""


Rules: TypeAlias = Mapping[str, Rule]


def preferred(rules: Rules) -> dict[str, Json]:
    """The initiator's first offer."""
    return {name: rule.preferred for name, rule in rules.items()}


def respond(rules: Rules, request: Mapping[str, Json]) -> dict[str, Json]:
    """The responder's answer to an offer. Raises `Unsupported`."""
    for name, rule in rules.items():
        if rule.required and name not in request:
            raise Unsupported(name, None, rule.supported)
    # A parameter without a rule has no meaning here, so agreeing to it would promise nothing.
    return {name: rules[name].clamp(name, value) for name, value in request.items() if name in rules}


def counter(rules: Rules, request: Mapping[str, Json], answered: Mapping[str, Json]) -> dict[str, Json]:
    """The initiator's reaction to an answer: the same values where its rules admit them, else its next offer. Raises
    `Unsupported`."""
    for name, rule in rules.items():
        if rule.required and name not in answered:
            raise Unsupported(name, None, rule.supported)
    # A responder may leave parameters out, and add none.
    return {
        name: _fitted(rules[name], name, request[name], value)
        for name, value in answered.items()
        if name in request and name in rules
    }


def _fitted(rule: Rule, name: str, request: Json, answered: Json) -> Json:
    """Return the answer, moved into the rule. A responder with a range answers with its end nearer to the value asked for. So the
    nearest choice beyond that end is in the range, if any choice is. Raises `Unsupported`."""
    if isinstance(rule, Choice) and _is_number(request) and _is_number(answered):
        beyond = [own for own in rule.values if _is_number(own) and (own <= answered < request or own >= answered > request)]
        if beyond:
            return min(beyond, key=lambda own: abs(own - answered))
    return rule.clamp(name, answered)


def next_offer(rules: Rules, request: Mapping[str, Json], details: Mapping[str, Json]) -> dict[str, Json] | None:
    """The offer after a refusal with these `details`: the refused parameter at the first value that both support. None when
    there is none, or the refusal does not say enough."""
    name, supported = details.get("parameter"), details.get("supported")
    rule = rules.get(name) if isinstance(name, str) else None
    if not isinstance(name, str) or rule is None or name not in request:
        return None
    for value in _values(supported, request[name]):
        try:
            fitted = rule.clamp(name, value)
        except Unsupported:
            continue
        # A value that must be moved is not the one that the responder named, and the refused one is refused again.
        if json_equal(fitted, value) and not json_equal(value, request[name]):
            return {**request, name: value}
    # The last way to agree is to do without the parameter, unless the owner needs it.
    return None if rule.required else {key: value for key, value in request.items() if key != name}


def json_equal(one: Json, other: Json) -> bool:
    """Whether two JSON values are one: as Python compares them, but true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(supported: Json, request: Json) -> list[Json]:
    match supported:
        case list():
            # A stranger wrote the list, and each value is tried.
            return supported[:64]
        case {"minimum": int() | float() as low, "maximum": int() | float() as high} if isinstance(request, int | float):
            return [min(max(request, low), high)]
    return []


CHUNK_SIZE, COMPRESSION, ENCRYPTION = "chunkSize", "compressionFormat", "encryptionLevel"
MIN_CHUNK = 512
"""Bytes. Each chunk costs a signature and an envelope of half a kilobyte, so a peer must not be able to ask for tiny ones."""
NONE = "none"
_ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")
COMPRESSIONS = ("gzip", "deflate", NONE)
CIPHER = "AES-128-GCM"
"""The one cipher of the E2EE profile."""


@dataclass(frozen=True)
class Unkept:
    """The rule of a parameter that this connection cannot keep: no value satisfies it, and it may not be left out."""

    name: str
    required: bool = True

    @property
    def preferred(self) -> Json:
        """Raise `Unsupported`: there is no value to ask for."""
        raise Unsupported(self.name, None, [])

    @property
    def supported(self) -> Json:
        """The values to name to a peer: none."""
        return []

    def clamp(self, name: str, value: Json) -> Json:
        """Raise `Unsupported`."""
        raise Unsupported(name, value, [])


@dataclass(frozen=True)
class RoleName:
    """The rule of the initiator's role: any name that a manifest may give to a role."""

    required: bool = False

    @property
    def preferred(self) -> Json:
        """Raise `Unsupported`: only the initiator names its role."""
        raise Unsupported("role", None, [])

    @property
    def supported(self) -> Json:
        """The values to name to a peer: the manifest has them."""
        return []

    def clamp(self, name: str, value: Json) -> Json:
        """Return the role. Raises `Unsupported`."""
        if not isinstance(value, str) or not _ROLE.fullmatch(value):
            raise Unsupported(name, value, [])
        return value


def check_kept(rules: Rules) -> None:
    """Check that a session can keep all values of an owner's rules. Raises `Malformed` (`flow.offer`)."""
    for name, (holds, fix) in _KEPT.items():
        rule = rules.get(name)
        if rule is not None and not holds(rule):
            raise Malformed(FlowCode.OFFER, f"No session keeps all values of the rule for {name}.", fix=fix)


def kept(rules: Rules, *, encrypted: bool) -> Rules:
    """Return the rules as far as a connection can keep them."""
    rule = rules.get(ENCRYPTION)
    if not isinstance(rule, Choice):
        return rules
    # Without this, a peer that drops the parameter would remove the encryption without a word.
    rule = replace(rule, required=rule.required or NONE not in rule.values)
    # An agreed level that the connection does not have would be a false promise to the owner.
    values = [value for value in rule.values if encrypted or value == NONE]
    return {**rules, ENCRYPTION: replace(rule, values=values) if values else Unkept(ENCRYPTION)}


def _is_chunk_size(rule: Rule) -> bool:
    values = (rule.low, rule.high) if isinstance(rule, Range) else rule.values if isinstance(rule, Choice) else ()
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= MIN_CHUNK for value in values)


def _is_of(allowed: tuple[str, ...]) -> Callable[[Rule], bool]:
    return lambda rule: isinstance(rule, Choice) and all(value in allowed for value in rule.values)


_KEPT: Mapping[str, tuple[Callable[[Rule], bool], str]] = {
    CHUNK_SIZE: (_is_chunk_size, f"Use whole numbers of at least {MIN_CHUNK}."),
    COMPRESSION: (_is_of(COMPRESSIONS), f"Use a Choice of {', '.join(COMPRESSIONS)}."),
    ENCRYPTION: (_is_of((CIPHER, NONE)), f"Use a Choice of {CIPHER} and {NONE}."),
}
