"""Keep one wheel under one file name of a namespace, as a package index needs it (`catalogue.package_index`).

No rule of the log asks for this: a log of 0.1.0 may have two, and every auditor must go on with it. So the sequencer refuses the
second wheel after `admit`, at the one place where two uploads at once are in an order. In a log that has two, the first one has
the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from treaty_consensus.codes import PublishCode
from treaty_consensus.did import Did
from treaty_consensus.errors import Conflict
from treaty_consensus.handler.wheel import following
from treaty_consensus.kinds import Handler
from treaty_consensus.protocol import owners_of
from treaty_consensus.statement import Statement

from ..storage.postgres import Connection

NEXT = 8
"""Versions after a refused one of which the first free one is named."""

WheelName: TypeAlias = tuple[str, str]
"""A namespace and a file name."""

_FIRST = """
select wanted.place, h.wheel, h.index from unnest($1::text[], $2::text[], $3::bigint[]) as wanted (publisher, filename, place)
cross join lateral (
  select wheel, index from handlers where publisher = wanted.publisher and filename collate "C" = wanted.filename
  order by index limit 1
) h
"""


@dataclass
class WheelNames:
    """The wheels that have the names which some proposals read. `first`: name → SHA-256 of the wheel."""

    first: dict[WheelName, str] = field(default_factory=dict)

    def take(self, statement: Statement) -> None:
        """Give a wheel its name. Call it when a statement is admitted."""
        if (name := _name_of(statement)) is not None and isinstance(statement.body, Handler):
            self.first.setdefault(name, statement.body.wheel.sha256)

    def check(self, statement: Statement) -> None:
        """Raise `Conflict` (`publish.version-exists`) for a wheel whose name another one has. It changes nothing."""
        if (name := _name_of(statement)) is None or not isinstance(statement.body, Handler):
            return
        if self.first.get(name, statement.body.wheel.sha256) != statement.body.wheel.sha256:
            namespace, filename = name
            *taken, last = following(filename, NEXT)
            free = next((version for version, other in taken if (namespace, other) not in self.first), last[0])
            raise Conflict(
                PublishCode.VERSION_EXISTS,
                f"{namespace} has published another wheel named {filename}, and a file name has one content.",
                fix=f'Publish it as the next version: version = "{free}" in [handler] of protocol.toml.',
            )


async def read_wheel_names(connection: Connection, statements: Iterable[Statement]) -> WheelNames:
    """Return the wheels that have the names of these statements' wheels, and of the next versions, as of the newest commit."""
    names: dict[WheelName, None] = {}
    for statement in statements:
        if (name := _name_of(statement)) is not None:
            names |= dict.fromkeys([name, *((name[0], filename) for _, filename in following(name[1], NEXT))])
    if not names:
        return WheelNames()
    places = [*names]
    wanted = [(owner, name[1], place) for place, name in enumerate(places) for owner in owners_of(name[0])]
    rows = await connection.fetch(_FIRST, *(list(column) for column in zip(*wanted, strict=True)))
    # A domain has two DIDs, so a name may have a first wheel of each.
    ordered: Mapping[WheelName, str] = {
        places[row["place"]]: row["wheel"].hex() for row in sorted(rows, key=lambda row: row["index"], reverse=True)
    }
    return WheelNames(dict(ordered))


def _name_of(statement: Statement) -> WheelName | None:
    """Return the name of a statement's wheel, or None. A DID with a port owns no namespace, so it has no index."""
    author: Did = statement.author
    if not isinstance(statement.body, Handler) or author.port is not None:
        return None
    return author.namespace, statement.body.filename
