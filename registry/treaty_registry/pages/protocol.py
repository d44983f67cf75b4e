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

    from markupsafe import Markup

    from ..serving.views import Views
    from .inspection import Inspection
    from .renderer import Renderer

MAX_FULL = 4
"""Handlers that are shown with their signature and their package. Each is two blobs to read, once."""
MAX_SHOWN = 8
"""Versions, and speakers, on the page itself. Both have lists of their own."""
MAX_STATUSES = 10
MAX_TABLES = 120_000
"""Characters of all tables of a package together. It has at most 64 operations."""
MAX_ERRORS = 24
"""Errors of one operation that are shown."""
USABLE = frozenset({"active", "deprecated"})
"""The states in which an agent fetches a protocol or a handler."""

_STATUSES = """
select p.base, s.index, s.state, s.wheel, encode(l.statement, 'hex') as statement
from protocols p
left join lateral (select * from statuses where uri = p.uri order by index desc limit $2) s on true
left join leaves l on l.index = s.index
where p.uri = $1 order by s.index desc
"""


@dataclass(frozen=True)
class ShownHandler:
    """A handler, the claims of its bundle about its signing, and the contents of its package.

    `operations`, `vectors`: the same contents as parts of the page, if the package could be read.
    """

    view: HandlerView
    signature: SignatureView | Unreadable
    package: PackageView | Unreadable
    operations: Markup | None = None
    vectors: Markup | None = None

    @property
    def is_declarative(self) -> bool:
        """Return whether it runs no code."""
        return self.view.entry_point == DECLARATIVE


async def context(views: Views, inspection: Inspection, renderer: Renderer, uri: str) -> Mapping[str, object]:
    """Return the data of the page of a version. Raises `NotFound`, `Malformed`."""
    stored = await views.catalogue.record(uri)
    record = msgspec.json.decode(stored.json, type=Record)
    chosen = chosen_handler(record)
    ordered = sorted(record.handlers, key=lambda handler: handler is not chosen)
    document, handlers, found, speakers, statuses = await asyncio.gather(
        inspection.document(record.hash),
        asyncio.gather(*(_shown(inspection, renderer, handler) for handler in ordered[:MAX_FULL])),
        views.catalogue.versions(record.namespace, record.name),
        views.standings.speakers(record.hash, None, None),
        views.registry.pool.fetch(_STATUSES, uri, MAX_STATUSES),
    )
    versions, first = found.versions, handlers[0] if handlers else None
    package = first.package if first else None
    published = views.registry.head.published
    evidence = Evidence(
        record,
        chosen,
        not isinstance(document, Unreadable),
        package,
        first.signature if first else None,
        published.size,
        # A note has its text, an empty line, and a line for each signature: the log's, the clock's, then the witnesses'.
        max(0, published.note.count("\n— ".encode()) - 2),
    )
    return {
        "record": record,
        "document": document,
        "package": package,
        "operations": first.operations if first else None,
        "vectors": first.vectors if first else None,
        "chosen": chosen,
        "handlers": handlers,
        "more_handlers": ordered[MAX_FULL:],
        "declarative": DECLARATIVE,
        "steps": trust_steps(evidence),
        "versions": versions[:MAX_SHOWN],
        "version_count": len(versions),
        "newer": _newer(record, versions),
        "aliases": [(alias, is_verified_alias(alias, parse_did(record.publisher))) for alias in record.aliases],
        "base": statuses[0]["base"] if statuses else None,
        "statuses": [status for status in statuses if status["index"] is not None],
        "speakers": speakers.speakers[:MAX_SHOWN],
        "more_speakers": len(speakers.speakers) > MAX_SHOWN or speakers.next is not None,
        "speaker_count": len(speakers.speakers),
        "snippets": _snippets(record, chosen, package),
    }


def chosen_handler(record: Record) -> HandlerView | None:
    """Return the handler whose package is shown: the first that was not taken back, or else the first."""
    usable = (handler for handler in record.handlers if handler.status in USABLE)
    return next(usable, record.handlers[0] if record.handlers else None)


async def _shown(inspection: Inspection, renderer: Renderer, handler: HandlerView) -> ShownHandler:
    signature, package = await asyncio.gather(inspection.signature(handler.bundle), inspection.package(handler))
    if isinstance(package, Unreadable):
        return ShownHandler(handler, signature, package)
    # A wheel never changes, and a long manifest takes longer to show than all the rest of the page.
    key = f"{handler.wheel} {handler.filename}"
    operations = renderer.part("operations.html", key, lambda: {"package": package, "operations": shown_operations(package)})
    return ShownHandler(handler, signature, package, operations, renderer.part("vectors.html", key, lambda: {"package": package}))


def _snippets(record: Record, handler: HandlerView | None, package: PackageView | Unreadable | None) -> Snippets | None:
    """Return the snippets, or None when no agent could fetch the protocol: `treaty fetch` needs a handler that may run."""
    withdrawn = isinstance(package, Unreadable) and package.is_withdrawn
    if handler is None or withdrawn or not {record.status, handler.status} <= USABLE:
        return None
    shown = package if isinstance(package, PackageView) else None
    return snippets(record.uri, record.hash, record.name, handler.by, shown)


def shown_operations(package: PackageView) -> list[Mapping[str, object]]:
    left = MAX_TABLES
    shown: list[Mapping[str, object]] = []
    for operation in package.operations:
        arguments = schemas.table(operation.arguments, left)
        left -= arguments.size
        result = None if operation.result is None else schemas.table(operation.result, left)
        left -= result.size if result else 0
        shown.append({"view": operation, "arguments": arguments, "result": result, "most_errors": MAX_ERRORS})
    return shown


def _newer(record: Record, versions: list[Summary]) -> Summary | None:
    """Return the newest version, if it is newer than this one and not taken back."""
    for summary in versions:
        if summary.status in USABLE:
            return summary if Version(parse_protocol_uri(summary.uri).version) > Version(record.version) else None
    return None
