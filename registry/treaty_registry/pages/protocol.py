"""The page of one version of a protocol."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from treaty_client.registries.replies import Speaker
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Unavailable
from treaty_consensus.handler import DECLARATIVE
from treaty_consensus.handler.schema_table import schema_table
from treaty_consensus.protocol import is_verified_alias, parse_protocol_uri

from ..catalogue.dates import published as published_at
from ..catalogue.gathering import Gathering
from ..catalogue.packages import PackageView
from ..catalogue.queries import ELECTED, MAX_VERSIONS, VERSIONS, in_order, unknown_protocol
from ..catalogue.resources import HandlerView, Record, Summary
from ..catalogue.signatures import SignatureView
from ..catalogue.standing import MAX_RANKED, MAX_SPEAKERS, speakers_by
from .inspection import Unreadable
from .renderer import Gathered
from .snippets import Snippets, snippets
from .trust_steps import ProtocolFacts, trust_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from treaty_consensus.handler.compatibility import Compatibility

    from ..serving.views import Views
    from .inspection import Inspection
    from .prose import Prose
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
select s.index, s.state, s.wheel is not null as is_of_handler, encode(l.statement, 'hex') as statement
from (select * from statuses where uri = $1 order by index desc limit $2) s join leaves l on l.index = s.index
order by s.index desc
"""
_GATHERING = Gathering(
    record="select convert_from(record, 'UTF8')::json as record from records where uri = $1",
    statuses=_STATUSES,
    versions=f"""
select uri, topic, title, summary, tags, encode(document, 'hex') as hash, publisher, state as status, elected as election, pairs
from ({VERSIONS}) of_protocol
""",  # noqa: S608 (constants)
    derived=f"""
select p.uri, p.topic, p.title, p.summary, p.tags, encode(p.document, 'hex') as hash, p.publisher, p.state as status,
       e.state as election, p.pairs
from protocols p {ELECTED} where p.base = $1 order by p.index limit $2
""",  # noqa: S608 (constants)
    speakers=speakers_by("document").replace("$1", "(select document from protocols where uri = $1)"),
)


class StatusChange(msgspec.Struct, frozen=True):
    """A status that was set, of the protocol or of a handler."""

    index: int
    state: str
    is_of_handler: bool
    statement: str


class _Stored(msgspec.Struct):
    record: Record


class _Rows(msgspec.Struct):
    """The rows of `_GATHERING`."""

    record: list[_Stored]
    statuses: list[StatusChange]
    versions: list[Summary]
    derived: list[Summary]
    speakers: list[Speaker]


@dataclass(frozen=True)
class ShownHandler:
    """A handler, the claims of its bundle about its signing, and the contents of its package.

    `operations`, `vectors`, `talks`: the same contents as parts of the page, if the package could be read.
    """

    view: HandlerView
    signature: SignatureView | Unreadable
    package: PackageView | Unreadable
    operations: Markup | None = None
    vectors: Markup | None = None
    talks: Markup | None = None

    @property
    def is_declarative(self) -> bool:
        """Return whether it runs no code."""
        return self.view.entry_point == DECLARATIVE


async def gather(views: Views, inspection: Inspection, renderer: Renderer, uri: str) -> Gathered:
    """Read the page of a version. Raises `NotFound`, `Malformed`."""
    named = parse_protocol_uri(uri)
    read = await _GATHERING.read(
        views.registry.pool,
        record=(uri,),
        statuses=(uri, MAX_STATUSES),
        versions=(named.namespace, named.name, MAX_VERSIONS),
        # One more than are shown or counted, to tell whether there are more.
        derived=(uri, MAX_SHOWN + 1),
        speakers=(uri, None, None, None, MAX_SPEAKERS + 1, MAX_RANKED),
    )
    rows = msgspec.json.decode(read, type=_Rows)
    if not rows.record:
        raise unknown_protocol(uri)
    record = rows.record[0].record
    handler_view = chosen_handler(record)
    ordered = sorted(record.handlers, key=lambda handler: handler is not handler_view)
    compatibility, document, dates, handlers = await asyncio.gather(
        _verdict(views, record),
        inspection.document(record.hash),
        published_at(views.registry.pool, [uri]),
        asyncio.gather(*(_shown(inspection, renderer, handler) for handler in ordered[:MAX_FULL])),
    )
    first = handlers[0] if handlers else None
    published = views.registry.head.published
    evidence = ProtocolFacts(
        record,
        handler_view,
        not isinstance(document, Unreadable),
        first.package if first else None,
        first.signature if first else None,
        record.index < published.size,
        # A note has its text, an empty line, and a line for each signature: the log's, the clock's, then the witnesses'.
        max(0, published.note.count("\n— ".encode()) - 2),
    )
    # What a blob says is known by its digest, which the record has, unless it could not be read.
    blobs = [document, *(blob for handler in handlers for blob in (handler.package, handler.signature))]
    unread = [blob if isinstance(blob, Unreadable) else None for blob in blobs]
    data = (read, unread, evidence.is_published, evidence.witnesses, compatibility)
    # The time of a leaf never changes, so the data need not have it.
    beside = {"dates": dates, "compatibility": compatibility}
    return Gathered(data, lambda: {**_context(record, document, handlers, ordered[MAX_FULL:], evidence, rows), **beside})


async def _verdict(views: Views, record: Record) -> Compatibility | None:
    try:
        return await views.verdict(record)
    except Unavailable:  # all readers are busy: the page is shown without it
        return None


def _context(
    record: Record,
    document: Prose | Unreadable,
    handlers: Sequence[ShownHandler],
    more: Sequence[HandlerView],
    evidence: ProtocolFacts,
    rows: _Rows,
) -> Mapping[str, object]:
    versions, first = in_order(rows.versions), handlers[0] if handlers else None
    handler, package = evidence.handler, evidence.package
    return {
        "record": record,
        "document": document,
        "package": package,
        "operations": first.operations if first else None,
        "vectors": first.vectors if first else None,
        "talks": first.talks if first and isinstance(package, PackageView) and package.conversations else None,
        "is_playable": isinstance(package, PackageView) and bool(package.source and package.conversations),
        "chosen": handler,
        "handlers": handlers,
        "more_handlers": more,
        "declarative": DECLARATIVE,
        "steps": trust_steps(evidence),
        "versions": versions[:MAX_SHOWN],
        "version_count": len(versions),
        "newer": _newer(record, versions),
        "aliases": [(alias, is_verified_alias(alias, parse_did(record.publisher))) for alias in record.aliases],
        "derived": rows.derived[:MAX_SHOWN],
        "more_derived": len(rows.derived) > MAX_SHOWN,
        "statuses": rows.statuses,
        "speakers": rows.speakers[:MAX_SHOWN],
        "more_speakers": len(rows.speakers) > MAX_SHOWN,
        "speaker_count": min(len(rows.speakers), MAX_SPEAKERS),
        "snippets": _snippets(record, handler, package),
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
    vectors, talks = (renderer.part(part, key, lambda: {"package": package}) for part in ("vectors.html", "talks.html"))
    return ShownHandler(handler, signature, package, operations, vectors, talks)


def _snippets(record: Record, handler: HandlerView | None, package: PackageView | Unreadable | None) -> Snippets | None:
    """Return the snippets, or None when no agent could fetch the protocol: `treaty fetch` needs a handler that may run."""
    withdrawn = isinstance(package, Unreadable) and package.is_withdrawn
    if handler is None or withdrawn or not {record.status, handler.status} <= USABLE:
        return None
    view = package if isinstance(package, PackageView) else None
    return snippets(record.uri, record.hash, record.name, handler.by, view)


def shown_operations(package: PackageView) -> list[Mapping[str, object]]:
    left = MAX_TABLES
    operations: list[Mapping[str, object]] = []
    for operation in package.operations:
        arguments = schema_table(operation.arguments, left)
        left -= arguments.size
        result = None if operation.result is None else schema_table(operation.result, left)
        left -= result.size if result else 0
        operations.append({"view": operation, "arguments": arguments, "result": result, "most_errors": MAX_ERRORS})
    return operations


def _newer(record: Record, versions: list[Summary]) -> Summary | None:
    """Return the newest version, if it is newer than this one and not taken back."""
    for summary in versions:
        if summary.status in USABLE:
            return summary if Version(parse_protocol_uri(summary.uri).version) > Version(record.version) else None
    return None
