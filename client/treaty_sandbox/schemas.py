"""Check values against the schemas of a manifest, in bounded time for every schema and value.

Validation runs in the host's process and cannot be interrupted, so its time is bounded in advance. The rules are in
docs/specification/handler-packages.md, section "Cost of a schema":

    a value          at most 20,000 values, 4 MiB of text, 32 levels (`measure`)
    a schema         `treaty_consensus.handler.schema` computes the work for each value, text and name
    both together    work times size is at most `MAX_CHECKS`; a larger value is refused before it is checked
    a pattern        is matched with one text at a time: its weight times the text's bytes is at most `MAX_MATCH`; after
                     `PATTERN_SECONDS` of processor time the whole value is refused
    several values   of one event share one `ValidationBudget`: `MAX_CHECKS` and `PATTERN_SECONDS` are for all together

`pattern`, `uniqueItems` and `multipleOf` are implemented here, because the library's versions are not bounded. The library
matches a pattern with all texts in one call, compares lists pair by pair if their hashes collide (`[[],[]]` and `[[[]]]` do), and
divides fractions of a thousand bits.

The worst case for one budget is about 0.1 s; `tests/attack/test_costly_schemas.py` searches for it and prints it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DivisionByZero, InvalidOperation
from math import isfinite
from typing import Any, NamedTuple, NoReturn

import jsonschema_rs
import msgspec

from treaty_consensus.codes import HandlerCode
from treaty_consensus.errors import Malformed, Refused
from treaty_consensus.handler.schema import pattern_weight, patterns, work_of
from treaty_consensus.printable import printable
from treaty_handler import Value
from treaty_handler.values import MAX_DEPTH, MAX_INTEGER, MAX_VALUES

MAX_TEXT = 4 * 1024 * 1024
"""Bytes of all texts and names of one value."""
MAX_CHECKS = 2_000_000
"""Keywords times values, about 20 ns each; for texts, keywords times 64 bytes. The limit of one `ValidationBudget`."""
MAX_MATCH = 512 * 1024
"""Weight of a pattern times bytes of a text. It bounds a single match to about 20 ms."""
PATTERN_SECONDS = 0.03
"""Processor time for the patterns of one `ValidationBudget`."""
MAX_EXPLAINED = 50_000
"""The limit, in the unit of `MAX_CHECKS`, up to which an error names the wrong place. An explanation quotes the value once for
each keyword, so it costs more than the check."""

_REGEX_BASE, _REGEX_BYTES = 8 * 1024, 256  # memory of a compiled pattern: the base, and the bytes for each unit of weight
# The engine builds its automaton while it matches. Beyond this size it starts anew, which is slower but not larger.
_DFA_BYTES = 1024 * 1024
# Enough digits for the quotient of the largest number by the smallest divisor.
_EXACT = Context(prec=400, traps=[DivisionByZero, InvalidOperation])


class ValueTooLarge(Malformed):
    """A value is too large to be carried or checked."""


class Size(NamedTuple):
    """The size of a value: the number of its values, the bytes of its texts and the bytes of its names."""

    values: int
    text: int
    names: int


def measure(value: Value, code: str, what: str) -> Size:
    """Return the size of a JSON value within the caps of `treaty_handler.Value`.

    Raises `Malformed` with `code`; its message begins with the noun `what`.
    """
    count, text, names = 1, 0, 0
    # Level by level instead of by recursion: a deep value must give an error, not exhaust the stack.
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        deeper: list[object] = []
        for item in level:
            if type(item) is str:
                text += len(item) if item.isascii() else _bytes(item, code, what)
            elif type(item) is dict:
                count += len(item)
                _check_count(count, code, what)  # before the loops over all items, so that these stay bounded
                for name in item:
                    names += len(name) if type(name) is str and name.isascii() else _bytes(name, code, what)
                deeper.extend(item.values())
            elif type(item) is list:
                count += len(item)
                _check_count(count, code, what)
                deeper.extend(item)
            elif not _is_scalar(item):
                raise Malformed(code, f"{what} have a {type(item).__name__} that JSON cannot carry.")
        if text + names > MAX_TEXT:
            raise ValueTooLarge(code, f"{what} have more than {MAX_TEXT} bytes of text.")
        if not deeper:
            return Size(count, text, names)
        level = deeper
    raise Malformed(code, f"{what} are nested deeper than {MAX_DEPTH} levels.")


class ValidationBudget:
    """The work that the checks of all values of one event may take together. Each check takes its cost from the budget.

    `exhausted`: a check was refused because too little was left. Every later check with this budget is refused too.
    """

    def __init__(self) -> None:
        self.exhausted = False
        self._checks, self._seconds = MAX_CHECKS, PATTERN_SECONDS

    def take_checks(self, count: int) -> bool:
        """Take keywords times values, before the check. Return whether enough was left."""
        self._checks -= count
        self.exhausted = self.exhausted or self._checks < 0
        return not self.exhausted

    def take_seconds(self, seconds: float) -> bool:
        """Take processor time that patterns used. Return whether enough was left."""
        self._seconds -= seconds
        self.exhausted = self.exhausted or self._seconds < 0
        return not self.exhausted


class Schemas:
    """Compile the schemas of one manifest. They share their compiled patterns."""

    def __init__(self) -> None:
        self._meter = _Meter()
        self._patterns: dict[str, _Pattern] = {}

    def compile(self, schema: Mapping[str, object], operation: str) -> CompiledSchema:
        """Compile an accepted schema of an operation. Raises `Refused` (`handler.manifest`) for an invalid schema."""
        try:
            for pattern in patterns(dict(schema)):
                if pattern not in self._patterns:
                    self._patterns[pattern] = _Pattern(pattern)
            validator = jsonschema_rs.Draft202012Validator(
                dict(schema),
                validate_formats=True,
                # A stranger's `$ref` must not make the host fetch an address.
                retriever=_no_retrieval,
                pattern_options=_regex_options(max((item.weight for item in self._patterns.values()), default=0)),
                keywords=_keywords(self._meter, self._patterns),
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            reason = printable(str(error).split("\n", 1)[0], 300)
            raise Refused(HandlerCode.MANIFEST, f"A schema of {operation} is not valid: {reason}.") from error
        return CompiledSchema(schema, validator, self._meter)


class CompiledSchema:
    """A compiled schema that checks values. Made by `Schemas.compile`. For one thread."""

    def __init__(self, schema: Mapping[str, object], validator: jsonschema_rs.Draft202012Validator, meter: _Meter) -> None:
        self._work = work_of(schema)
        self._validator, self._meter = validator, meter

    def check(self, value: Value, code: str, what: str, budget: ValidationBudget | None = None) -> None:
        """Check a value. Raises `Malformed` with `code`; its message begins with the noun `what`.

        `budget`: the budget of the event, if several values share it. Without it, the value has a budget of its own.
        """
        budget = budget or ValidationBudget()
        valid, size = self._judge(value, code, what, budget)
        if not valid:
            raise Malformed(code, f"{what} break the schema{self._explain(value, size, budget)}.")

    def accepts(self, value: Value) -> bool:
        """Return whether `check` would accept a value. It does not look for the reason, which costs more than the check."""
        try:
            return self._judge(value, "", "", ValidationBudget())[0]
        except Malformed:
            return False

    def _judge(self, value: Value, code: str, what: str, budget: ValidationBudget) -> tuple[bool, Size]:
        """Return whether a value is valid, and its size. Raises `Malformed` for one that is too large or takes too long."""
        # First: it is linear in the value, and the bounds below need the size.
        size = measure(value, code, what)
        work, text = self._work, size.text + size.names
        spent = max(work.checks * size.values, work.text * text // 64, work.names * size.names)
        if spent > MAX_CHECKS:
            raise ValueTooLarge(
                code,
                f"{what} are too large for their schema: {size.values} values and {size.text} bytes of text.",
                fix="Send less at once, or have the protocol's author apply fewer keywords to each value.",
            )
        if not budget.take_checks(spent):
            raise Malformed(
                code,
                f"{what} are too large for their schema, together with the values before them.",
                fix="Send less at once, or have the protocol's author apply fewer keywords to each value.",
            )
        self._meter.begin(budget)
        valid = self._validator.is_valid(value)
        # Before the verdict: below a `not`, a pattern that was refused would make the value valid.
        if self._meter.refusal:
            raise Malformed(code, f"{what} {self._meter.refusal}.")
        return valid, size

    def _explain(self, value: Value, size: Size, budget: ValidationBudget) -> str:
        """Return the place and the reason of a schema violation, if finding them is cheap."""
        if self._work.total * (size.values + size.text // 64) > MAX_EXPLAINED:
            return "; they are too large to say where"
        self._meter.begin(budget)
        try:
            self._validator.validate(value)
        except (ValueError, jsonschema_rs.ValidationError) as error:
            if self._meter.refusal:
                return "; it would take too long to say where"
            place = "".join(f".{step}" for step in getattr(error, "instance_path", []))
            return f" at {printable(f'${place}', 100)}: {printable(getattr(error, 'message', str(error))[:600], 300)}"
        return ""


class _Meter:
    """Stop the patterns of one check when its budget is used up."""

    def __init__(self) -> None:
        self.refusal = ""
        self._budget = ValidationBudget()

    def begin(self, budget: ValidationBudget) -> None:
        """Begin a check that takes from `budget`."""
        self.refusal = ""
        self._budget = budget

    def matches(self, pattern: _Pattern, text: str, size: int) -> bool:
        """Return whether a text of this size in bytes may be matched and matches.

        After one refusal, no text matches until the next check.
        """
        # The validator goes on with the other texts of the value. They must cost nothing more.
        if self.refusal:
            return False
        if pattern.weight * size > MAX_MATCH:
            self.refusal = f"have a text of {size} bytes, which is too long for its pattern"
            return False
        # Only the match is timed: other work on an event with many values must not use up the budget of its patterns.
        started = time.thread_time()
        matched = pattern.matches(text)
        if not self._budget.take_seconds(time.thread_time() - started):
            self.refusal = "take too long to match with their patterns"
        return matched and not self.refusal


class _Pattern:
    """A pattern, compiled by the engine without backtracking."""

    def __init__(self, pattern: str) -> None:
        self.weight = pattern_weight(pattern)
        validator = jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=_regex_options(self.weight))
        self.matches: Callable[[str], bool] = validator.is_valid


def _keywords(meter: _Meter, compiled: Mapping[str, _Pattern]) -> dict[str, type]:
    """Return the keywords that are implemented here. Each raises `ValueError` for a value that breaks it."""

    class Pattern:
        def __init__(self, parent: object, value: str, path: object) -> None:
            self._pattern = compiled[value]
            self._wrong = f"It does not match {ascii(value)[:200]}"  # built once: many texts may fail

        def validate(self, instance: object) -> None:
            if type(instance) is not str:
                return
            size = len(instance) if instance.isascii() else len(instance.encode())
            if not meter.matches(self._pattern, instance, size):
                raise ValueError(self._wrong)

    return {"pattern": Pattern, "uniqueItems": _UniqueItems, "multipleOf": _MultipleOf}


class _UniqueItems:
    def __init__(self, parent: object, value: object, path: object) -> None:
        self._wanted = value is True

    def validate(self, instance: object) -> None:
        # Hash encoded texts: an attacker can make Python's hashes of numbers and tuples collide, but not those of texts.
        if self._wanted and type(instance) is list and len(set(map(_encoded, instance))) != len(instance):
            raise ValueError("An item occurs twice.")


class _MultipleOf:
    def __init__(self, parent: object, value: Any, path: object) -> None:
        self._divisor = value
        # By the shortest decimal form, so that 0.3 is a multiple of 0.1, as its author means it.
        self._exact = Decimal(repr(value))
        self._wrong = f"It is not a multiple of {value!r}"

    def validate(self, instance: object) -> None:
        if type(instance) is int and type(self._divisor) is int:
            remainder: object = instance % self._divisor
        elif type(instance) in (int, float):
            remainder = _EXACT.remainder(Decimal(repr(instance)), self._exact)
        else:
            return
        if remainder != 0:
            raise ValueError(self._wrong)


def _encoded(item: object) -> bytes:
    """Encode a value so that equal JSON values, such as 1 and 1.0, give equal bytes and others give different bytes."""
    encoded = msgspec.json.encode(item, order="deterministic")
    if type(item) in (str, int) or not (b"." in encoded or b"e" in encoded):
        return encoded  # no number in it is written as a fraction
    return msgspec.json.encode(_normal(item), order="deterministic")


def _normal(item: object) -> object:
    """Return the value with integral floats as integers."""
    if type(item) is float and item.is_integer() and abs(item) <= MAX_INTEGER:
        return int(item)
    if type(item) is dict:
        return {name: _normal(child) for name, child in item.items()}
    return [_normal(child) for child in item] if type(item) is list else item


def _regex_options(weight: int) -> jsonschema_rs.RegexOptions:
    """Return options for the engine without backtracking, with memory for a pattern of this weight.

    A pattern that needs more memory than its weight allows is refused when it is compiled.
    """
    return jsonschema_rs.RegexOptions(size_limit=_REGEX_BASE + _REGEX_BYTES * weight, dfa_size_limit=_DFA_BYTES)


def _check_count(count: int, code: str, what: str) -> None:
    if count > MAX_VALUES:
        raise ValueTooLarge(code, f"{what} have more than {MAX_VALUES} values.")


def _bytes(text: object, code: str, what: str) -> int:
    if type(text) is not str:
        raise Malformed(code, f"{what} have a name that is not a text.")
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Malformed(code, f"{what} have a text with a lone surrogate.") from error


def _is_scalar(item: object) -> bool:
    if type(item) is int:
        return -MAX_INTEGER <= item <= MAX_INTEGER
    if type(item) is float:
        return isfinite(item)
    return item is None or type(item) is bool


def _no_retrieval(uri: str, /) -> NoReturn:
    raise ValueError("schemas are not fetched")
