"""The page of all versions of a protocol, and the difference of two of them.

Two versions are compared by their manifests: operations that were added or removed, and members that differ. Treaty has no rule
by which one version may stand in for another: each version is a protocol of its own, and two agents agree on one. So a change
is stated as a fact, and not called compatible or breaking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from treaty_consensus.protocol import parse_protocol_uri

from ..catalogue.dates import published
from ..catalogue.packages import PackageOperation, PackageView
from ..catalogue.resources import Record
from . import schemas
from .protocol import chosen_handler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..serving.views import Views
    from .inspection import Inspection, Unreadable


MAX_DATED = 200
"""Versions that the page shows."""


async def context(
    views: Views, inspection: Inspection, namespace: str, name: str, pair: tuple[str, str] | None
) -> Mapping[str, object]:
    """Return the data of the page of all versions. `pair`: the versions to compare.

    Raises as `Catalogue.versions`, and `NotFound` for a version that is not published.
    """
    page = await views.catalogue.versions(namespace, name)
    numbers = [parse_protocol_uri(summary.uri).version for summary in page.versions]
    # Without a choice the form proposes the newest change.
    old, new = pair or (numbers[min(1, len(numbers) - 1)], numbers[0])
    at = views.uri(f"/protocols/{namespace}/{name}")
    difference = await _difference(views, inspection, f"{at}/{old}", f"{at}/{new}") if pair else None
    dates = await published(views.registry.pool, [summary.uri for summary in page.versions[:MAX_DATED]])
    return {"page": page, "numbers": numbers, "old": old, "new": new, "difference": difference, "dates": dates}


async def _difference(views: Views, inspection: Inspection, old: str, new: str) -> Mapping[str, object]:
    before, after = [msgspec.json.decode((await views.catalogue.record(uri)).json, type=Record) for uri in (old, new)]
    comparison, first, second = await asyncio.gather(
        inspection.comparison(before.hash, after.hash), _package(inspection, before), _package(inspection, after)
    )
    packages = [package for package in (first, second) if isinstance(package, PackageView)]
    return {
        "before": before,
        "after": after,
        "document": comparison,
        "same_document": before.hash == after.hash,
        "operations": operation_changes(*packages) if len(packages) == 2 else None,
        "packages": (first, second),
    }


async def _package(inspection: Inspection, record: Record) -> PackageView | Unreadable | None:
    handler = chosen_handler(record)
    return None if handler is None else await inspection.package(handler)


MAX_FACTS = 24
MAX_FACT = 600
"""Characters of a fact."""
MAX_CHANGED = 200
"""Facts about all operations together."""


@dataclass(frozen=True)
class OperationChange:
    """An operation of either version. `facts`: sentences about a changed one, at most `MAX_FACTS` and how many follow."""

    name: str
    change: Literal["added", "removed", "changed"]
    facts: tuple[str, ...] = ()


def operation_changes(old: PackageView, new: PackageView) -> list[OperationChange]:
    """Return the operations that differ, in the order of the newer version, then the removed ones."""
    before = {operation.name: operation for operation in old.operations}
    after = {operation.name: operation for operation in new.operations}
    changes: list[OperationChange] = []
    left = MAX_CHANGED
    for name, operation in after.items():
        if name not in before:
            changes.append(OperationChange(name, "added"))
        elif facts := [fact if len(fact) <= MAX_FACT else f"{fact[:MAX_FACT]}…" for fact in _facts(before[name], operation)]:
            most = min(MAX_FACTS, left)
            cut = (*facts[:most], f"and {len(facts) - most} more") if len(facts) > most else tuple(facts)
            left -= len(facts[:most])
            changes.append(OperationChange(name, "changed", cut))
    return changes + [OperationChange(name, "removed") for name in before if name not in after]


def _facts(old: PackageOperation, new: PackageOperation) -> Iterator[str]:
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


def _roles(operation: PackageOperation) -> str:
    return f"{', '.join(operation.callers) or 'no role'} calls {', '.join(operation.providers) or 'no role'}"


def _members(where: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[str]:
    if old == new:
        return
    if old is None or new is None:
        yield f"{where}: {'none' if old is None else 'a value'} → {'none' if new is None else 'a value'}"
        return
    before = {row.path: row for row in schemas.table(old).rows}
    after = {row.path: row for row in schemas.table(new).rows}
    count = 0
    for path in {**before, **after}:
        if before.get(path) != after.get(path):
            count += 1
            yield _member(where, path, before.get(path), after.get(path))
    if not count:
        yield f"{where}: the schema differs"


def _member(where: str, path: str, old: schemas.SchemaRow | None, new: schemas.SchemaRow | None) -> str:
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
