"""Compare the operations of two versions of a protocol, and say what differs.

    result: member latitude removed
    arguments: new member unit (string)

These are facts for people. Whether agents of the two versions understand each other is another question
(`treaty_sandbox.compatibility`).
"""

from __future__ import annotations

import json
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
class OperationChange:
    """An operation of either version. `facts`: sentences without an end about a changed one, at most `MAX_FACTS` and how many
    follow."""

    name: str
    change: Literal["added", "removed", "changed"]
    facts: tuple[str, ...] = ()


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
            rest = len(facts) - most
            left -= len(facts[:most])
            changes.append(OperationChange(name, "changed", (*facts[:most], *([f"and {rest} more"] if rest > 0 else ()))))
    return changes + [OperationChange(name, "removed") for name in before if name not in after]


def _cut(fact: str) -> str:
    return fact if len(fact) <= MAX_FACT else f"{fact[:MAX_FACT]}…"


def _facts(old: OperationView, new: OperationView) -> Iterator[str]:
    if old.kind != new.kind:
        yield f"kind: {old.kind} → {new.kind}"
    if old.is_idempotent != new.is_idempotent:
        yield "may now be repeated" if new.is_idempotent else "may no longer be repeated"
    if old.timeout != new.timeout:
        yield f"timeout: {old.timeout} s → {new.timeout} s"
    if (old.callers, old.providers) != (new.callers, new.providers):
        yield f"roles: {_roles(old)} → {_roles(new)}"
    if old.forms != new.forms:
        yield "its messages have another form"
    before, after = dict(old.errors), dict(new.errors)
    for code in sorted(before.keys() | after.keys()):
        if code not in before:
            yield f"new error {code}: {after[code]}"
        elif code not in after:
            yield f"error {code} removed"
        elif before[code] != after[code]:
            yield f"error {code}: {before[code]} → {after[code]}"
    yield from _members("arguments", old.arguments, new.arguments)
    yield from _members("result", old.result, new.result)


def _roles(operation: OperationView) -> str:
    return f"{', '.join(operation.callers) or 'no role'} calls {', '.join(operation.providers) or 'no role'}"


def _members(where: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[str]:
    if old == new:
        return
    if old is None or new is None:
        yield f"{where}: {'none' if old is None else 'a value'} → {'none' if new is None else 'a value'}"
        return
    tables = schema_table(old), schema_table(new)
    before, after = ({row.path: row for row in table.rows} for table in tables)
    count = 0
    for path in {**before, **after}:
        if before.get(path) != after.get(path):
            count += 1
            yield _member(where, path, before.get(path), after.get(path))
    if not count or any(table.is_cut for table in tables):
        yield f"{where}: the schema differs in places that are not shown"


def _member(where: str, path: str, old: SchemaRow | None, new: SchemaRow | None) -> str:
    if old is None:
        assert new is not None, "the path is of one of the two"
        return f"{where}: new {'required ' if new.required else ''}member {path} ({new.type})"
    if new is None:
        return f"{where}: member {path} removed"
    facts = []
    if old.type != new.type:
        facts.append(f"{old.type} → {new.type}")
    if old.required != new.required:
        facts.append("now required" if new.required else "no longer required")
    if old.limits != new.limits:
        facts.append(f"{'; '.join(old.limits) or 'no limit'} → {'; '.join(new.limits) or 'no limit'}")
    if old.meaning != new.meaning:
        facts.append("another description")
    return f"{where}: {path}: {', '.join(facts)}"
