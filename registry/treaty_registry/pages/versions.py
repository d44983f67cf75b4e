"""The page of all versions of a protocol, and the difference of two of them.

Two versions are compared by their manifests: operations that were added or removed, and members that differ. Each version is a
protocol of its own, and two agents agree on one. Beside these facts stands the verdict: whether agents of the two versions would
understand each other, and if not, a value that shows it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from treaty_consensus.errors import Unavailable
from treaty_consensus.handler.comparison import operation_changes
from treaty_consensus.protocol import parse_protocol_uri

from ..catalogue.dates import published
from ..catalogue.packages import PackageView
from ..catalogue.predecessors import Attached
from ..catalogue.resources import Record
from .protocol import chosen_handler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from treaty_consensus.handler.compatibility import Compatibility

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
        "operations": operation_changes(*(package.operations for package in packages)) if len(packages) == 2 else None,
        "compatibility": await _verdict(views, before, after) if len(packages) == 2 else None,
        "packages": (first, second),
    }


async def _verdict(views: Views, before: Record, after: Record) -> Compatibility | None:
    handlers = [(record.uri, chosen_handler(record)) for record in (before, after)]
    old, new = (Attached(uri, handler.filename, handler.wheel) for uri, handler in handlers if handler is not None)
    try:
        return await views.verdict_between(old, new)
    except Unavailable:  # all readers are busy: the page is shown without it
        return None


async def _package(inspection: Inspection, record: Record) -> PackageView | Unreadable | None:
    handler = chosen_handler(record)
    return None if handler is None else await inspection.package(handler)
