"""The page of one version of a protocol."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from treaty_consensus.did import parse_did
from treaty_consensus.handler import DECLARATIVE
from treaty_consensus.protocol import is_verified_alias, parse_protocol_uri

from ..catalogue.packages import PackageView
from ..catalogue.resources import HandlerView, Record, Summary
from ..catalogue.signatures import SignatureView
from . import schemas
from .inspection import Unreadable
from .snippets import Snippets, snippets
from .trust_steps import Evidence, trust_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..serving.views import Views
    from .inspection import Inspection

MAX_SIGNED = 8
"""Handlers whose signature is shown. Each is a blob to read."""
MAX_SHOWN = 8
"""Versions, and speakers, on the page itself. Both have lists of their own."""
MAX_STATUSES = 10
USABLE = frozenset({"active", "deprecated"})
"""The states in which an agent fetches a protocol or a handler."""

_BASE = "select base from protocols where uri = $1"
_STATUSES = """
select s.index, s.state, s.wheel, encode(l.statement, 'hex') as statement
from statuses s join leaves l using (index) where s.uri = $1 order by s.index desc limit $2
"""


@dataclass(frozen=True)
class ShownHandler:
    """A handler, and the claims of its bundle about its signing; None for those beyond `MAX_SIGNED`."""

    view: HandlerView
    is_declarative: bool
    signature: SignatureView | Unreadable | None


async def context(views: Views, inspection: Inspection, uri: str) -> Mapping[str, object]:
    """Return the data of the page of a version. Raises `NotFound`, `Malformed`."""
    stored = await views.catalogue.record(uri)
    record = msgspec.json.decode(stored.json, type=Record)
    chosen = chosen_handler(record)
    document, package = await asyncio.gather(inspection.document(record.hash), _package(inspection, chosen))
    signed = record.handlers[:MAX_SIGNED]
    signatures = await asyncio.gather(*(inspection.signature(handler.bundle) for handler in signed))
    handlers = [
        ShownHandler(handler, handler.entry_point == DECLARATIVE, signatures[number] if number < len(signatures) else None)
        for number, handler in enumerate(record.handlers)
    ]
    published = views.registry.head.published
    evidence = Evidence(
        record,
        chosen,
        not isinstance(document, Unreadable),
        package,
        next((handler.signature for handler in handlers if handler.view is chosen), None),
        published.size,
        # A note has its text, an empty line, and a line for each signature: the log's, the clock's, then the witnesses'.
        max(0, published.note.count("\n— ".encode()) - 2),
    )
    versions = (await views.catalogue.versions(record.namespace, record.name)).versions
    speakers = await views.standings.speakers(record.hash, None, None)
    shown = package if isinstance(package, PackageView) else None
    return {
        "record": record,
        "document": document,
        "package": package,
        "operations": [] if shown is None else _operations(shown),
        "chosen": chosen,
        "handlers": handlers,
        "steps": trust_steps(evidence),
        "versions": versions[:MAX_SHOWN],
        "version_count": len(versions),
        "newer": _newer(record, versions),
        "aliases": [(alias, is_verified_alias(alias, parse_did(record.publisher))) for alias in record.aliases],
        "base": await views.registry.pool.fetchval(_BASE, uri),
        "statuses": await views.registry.pool.fetch(_STATUSES, uri, MAX_STATUSES),
        "speakers": speakers.speakers[:MAX_SHOWN],
        "more_speakers": len(speakers.speakers) > MAX_SHOWN or speakers.next is not None,
        "speaker_count": len(speakers.speakers),
        "snippets": _snippets(record, chosen, package),
    }


def chosen_handler(record: Record) -> HandlerView | None:
    """Return the handler whose package is shown: the first that was not taken back, or else the first."""
    usable = (handler for handler in record.handlers if handler.status in USABLE)
    return next(usable, record.handlers[0] if record.handlers else None)


async def _package(inspection: Inspection, handler: HandlerView | None) -> PackageView | Unreadable | None:
    return None if handler is None else await inspection.package(handler)


def _snippets(record: Record, handler: HandlerView | None, package: PackageView | Unreadable | None) -> Snippets | None:
    """Return the snippets, or None when no agent could fetch the protocol: `treaty fetch` needs a handler that may run."""
    withdrawn = isinstance(package, Unreadable) and package.is_withdrawn
    if handler is None or withdrawn or not {record.status, handler.status} <= USABLE:
        return None
    shown = package if isinstance(package, PackageView) else None
    return snippets(record.uri, record.hash, record.name, handler.by, shown)


def _operations(package: PackageView) -> list[Mapping[str, object]]:
    return [
        {
            "view": operation,
            "arguments": schemas.table(operation.arguments),
            "result": None if operation.result is None else schemas.table(operation.result),
        }
        for operation in package.operations
    ]


def _newer(record: Record, versions: list[Summary]) -> Summary | None:
    """Return the newest version, if it is newer than this one and not taken back."""
    for summary in versions:
        if summary.status in USABLE:
            return summary if Version(parse_protocol_uri(summary.uri).version) > Version(record.version) else None
    return None
