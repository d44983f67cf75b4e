"""Compare the operations of two versions of a protocol, and say which changes break an agent of the older version.

    result: member latitude removed                  breaking
    arguments: new member unit (string)              not breaking: an older caller leaves it out

A change breaks if an agent of the older version could send something that the newer one refuses, or would miss something that the
newer one no longer sends. A change of this kind belongs into a version that `ProtocolUri.continues` does not call compatible. A
difference that the rules here cannot judge counts as breaking.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from .manifest import Manifest
from .schema_table import SchemaRow, schema_table

MAX_FACTS = 24
MAX_FACT = 600
"""Characters of a fact."""
MAX_CHANGED = 200
"""Facts about all operations together."""
_NUMBER = re.compile(r"(at least|at most|≥|>|≤|<) (-?[0-9.e+-]+)( .*)?")
_LOWER = ("at least", "≥", ">")


class OperationView(msgspec.Struct, frozen=True):
    """An operation of a manifest. `result` is null for an event. `callers`, `providers`: roles. `forms`: its messages as JSON,
    empty when code makes them."""

    name: str
    kind: str
    arguments: dict[str, Any]
    result: dict[str, Any] | None
    errors: list[tuple[int, str]]
    is_idempotent: bool
    timeout: int
    window: int
    callers: list[str]
    providers: list[str]
    forms: str


@dataclass(frozen=True)
class Fact:
    """One difference of an operation, as a sentence without its end."""

    text: str
    is_breaking: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class OperationChange:
    """An operation of either version. `facts`: about a changed one, at most `MAX_FACTS` and how many follow."""

    name: str
    change: Literal["added", "removed", "changed"]
    facts: tuple[Fact, ...] = ()

    @property
    def is_breaking(self) -> bool:
        """Whether an agent of the older version can no longer speak to one of the newer version."""
        return self.change == "removed" or any(fact.is_breaking for fact in self.facts)


def operation_views(manifest: Manifest) -> list[OperationView]:
    """Return the operations of a manifest, in its order."""
    return [
        OperationView(
            name=name,
            kind=operation.kind.value,
            arguments=dict(operation.arguments),
            result=None if operation.result is None else dict(operation.result),
            errors=sorted(operation.errors.items()),
            is_idempotent=operation.idempotent,
            timeout=operation.timeout,
            window=operation.window,
            callers=[role.name for role in manifest.roles.values() if name in role.calls],
            providers=[role.name for role in manifest.roles.values() if name in role.invokes],
            forms=_json({kind: dict(form) for kind, form in manifest.messages.get(name, {}).items()}),
        )
        for name, operation in manifest.operations.items()
    ]


def _json(forms: Mapping[str, Any]) -> str:
    return json.dumps(forms, ensure_ascii=False, indent=2) if forms else ""


def operation_changes(old: Sequence[OperationView], new: Sequence[OperationView]) -> list[OperationChange]:
    """Return the operations that differ, in the order of the newer version, then the removed ones."""
    before = {operation.name: operation for operation in old}
    after = {operation.name: operation for operation in new}
    changes: list[OperationChange] = []
    left = MAX_CHANGED
    for name, operation in after.items():
        if name not in before:
            changes.append(OperationChange(name, "added"))
        elif facts := [_cut(fact) for fact in _facts(before[name], operation)]:
            most = min(MAX_FACTS, left)
            rest = facts[most:]
            more = (Fact(f"and {len(rest)} more", any(fact.is_breaking for fact in rest)),) if rest else ()
            left -= len(facts[:most])
            changes.append(OperationChange(name, "changed", (*facts[:most], *more)))
    return changes + [OperationChange(name, "removed") for name in before if name not in after]


def _cut(fact: Fact) -> Fact:
    return fact if len(fact.text) <= MAX_FACT else Fact(f"{fact.text[:MAX_FACT]}…", fact.is_breaking)


def _facts(old: OperationView, new: OperationView) -> Iterator[Fact]:
    if old.kind != new.kind:
        yield Fact(f"kind: {old.kind} → {new.kind}", is_breaking=True)
    if old.is_idempotent != new.is_idempotent:
        yield Fact("may now be repeated" if new.is_idempotent else "may no longer be repeated", old.is_idempotent)
    if old.timeout != new.timeout:
        yield Fact(f"timeout: {old.timeout} s → {new.timeout} s")
    if (old.callers, old.providers) != (new.callers, new.providers):
        is_kept = {*old.callers} <= {*new.callers} and {*old.providers} <= {*new.providers}
        yield Fact(f"roles: {_roles(old)} → {_roles(new)}", not is_kept)
    if old.forms != new.forms:
        yield Fact("its messages have another form", not _is_longer(old.forms, new.forms))
    before, after = dict(old.errors), dict(new.errors)
    for code in sorted(before.keys() | after.keys()):
        if code not in before:
            yield Fact(f"new error {code}: {after[code]}")
        elif code not in after:
            yield Fact(f"error {code} removed", is_breaking=True)
        elif before[code] != after[code]:
            yield Fact(f"error {code}: {before[code]} → {after[code]}")
    yield from _members("arguments", old.arguments, new.arguments)
    yield from _members("result", old.result, new.result)


def _roles(operation: OperationView) -> str:
    return f"{', '.join(operation.callers) or 'no role'} calls {', '.join(operation.providers) or 'no role'}"


def _is_longer(old: str, new: str) -> bool:
    try:
        return bool(old and new) and _continues(json.loads(old), json.loads(new))
    except ValueError:  # a page has only the beginning of long forms
        return False


def _continues(old: Any, new: Any) -> bool:
    """Tell whether forms have all members of the older ones at their places, and beside them only slots of optional members."""
    if isinstance(old, dict) and isinstance(new, dict):
        added = all(isinstance(new[name], str) and re.match(r"\$[a-z]+\.", new[name]) for name in new.keys() - old.keys())
        return added and all(name in new and _continues(old[name], new[name]) for name in old)
    return type(old) is type(new) and bool(old == new)


def _members(where: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[Fact]:
    if old == new:
        return
    if old is None or new is None:
        yield Fact(f"{where}: {'none' if old is None else 'a value'} → {'none' if new is None else 'a value'}", is_breaking=True)
        return
    tables = schema_table(old), schema_table(new)
    before, after = ({row.path: row for row in table.rows} for table in tables)
    count = 0
    for path in {**before, **after}:
        if before.get(path) != after.get(path):
            count += 1
            yield _member(where, path, before.get(path), after.get(path))
    if not count or any(table.is_cut for table in tables):
        yield Fact(f"{where}: the schema differs in places that are not compared", is_breaking=True)


def _member(where: str, path: str, old: SchemaRow | None, new: SchemaRow | None) -> Fact:
    is_sent = where == "arguments"
    if old is None:
        assert new is not None, "the path is of one of the two"
        text = f"{where}: new {'required ' if new.required else ''}member {path} ({new.type})"
        # Else the row narrows a value that older agents send or expect.
        is_member = new.required is not None
        return Fact(text, not is_member or (is_sent and bool(new.required)))
    if new is None:
        return Fact(f"{where}: member {path} removed", is_breaking=True)
    facts, is_breaking = [], False
    if old.type != new.type:
        facts.append(f"{old.type} → {new.type}")
        is_breaking = True
    if old.required != new.required:
        facts.append("now required" if new.required else "no longer required")
        is_breaking |= bool(new.required) == is_sent
    if old.limits != new.limits:
        facts.append(f"{'; '.join(old.limits) or 'no limit'} → {'; '.join(new.limits) or 'no limit'}")
        is_breaking |= not (_is_within(old.limits, new.limits) if is_sent else _is_within(new.limits, old.limits))
    if old.meaning != new.meaning:
        facts.append("another description")
    return Fact(f"{where}: {path}: {', '.join(facts)}", is_breaking)


def _is_within(narrow: tuple[str, ...], wide: tuple[str, ...]) -> bool:
    """Tell whether each value within the limits `narrow` is within the limits `wide`."""
    return all(any(limit == other or _is_tighter(other, limit) for other in narrow) for limit in wide)


def _is_tighter(limit: str, other: str) -> bool:
    first, second = _NUMBER.fullmatch(limit), _NUMBER.fullmatch(other)
    if first is None or second is None or (first[1], (first[3] or "").rstrip("s")) != (second[1], (second[3] or "").rstrip("s")):
        return False
    return float(first[2]) >= float(second[2]) if first[1] in _LOWER else float(first[2]) <= float(second[2])
