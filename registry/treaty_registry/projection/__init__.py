"""Views of the log in PostgreSQL: the tables of `0002_catalogue.sql` and later, filled from leaves and the blobs they name.

`apply` runs inside the sequencer's transaction, so readers see leaves and views change together. It looks at the entries and at
these tables only, so applying all leaves anew, in batches of whatever size, arrives at the same rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from treaty_consensus.kinds import Body

from ..log.entry import Entry
from ..storage.postgres import AnyConnection
from . import authority, catalogue, election, records, rolls, speakers, vouches


async def apply(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    """Write what `entries`, ascending and without gaps, change. The caller's transaction makes it visible or undoes it.

    One statement a table and batch, not a leaf. Raises what asyncpg raises; then the transaction is to be rolled back.
    """
    kinds: defaultdict[type[Body], list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.statement is not None:
            kinds[type(entry.statement.body)].append(entry)
    for module in (authority, catalogue, election, vouches, speakers, rolls):
        for kind, write in module.WRITERS.items():
            if kind in kinds:
                await write(connection, kinds[kind])
    statements = [entry for entry in entries if entry.statement is not None]
    await authority.write_clock(connection, statements)
    await records.write(connection, statements)
