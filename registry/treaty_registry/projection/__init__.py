"""Derive the tables of `0002_catalogue.sql` and later migrations from the leaves and the blobs they name.

`apply` runs inside the sequencer's transaction, so readers see leaves and tables change together. It reads only the entries and
these tables. So applying all leaves again, in batches of any size, gives the same rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from treaty_consensus.kinds import Ballot, Body

from ..log.entry import Entry
from ..log.tables import Addition
from ..storage.postgres import AnyConnection
from . import agents, authority, catalogue, election, records, rolls, speakers, vouches


async def apply(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    """Write the changes of `entries`, ascending and without gaps. The caller's transaction commits them or rolls them back.

    It runs one statement per table and batch. Raises what asyncpg raises; the transaction must then be rolled back.
    """
    kinds: defaultdict[type[Body], list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.statement is not None:
            kinds[type(entry.statement.body)].append(entry)
    # The writers run in their order: a status of the same batch finds the protocol that it is about.
    for module in (authority, catalogue, election, vouches, speakers, agents, rolls):
        for kind, write in module.WRITERS.items():
            if kind in kinds:
                await write(connection, kinds[kind])
    statements = [entry for entry in entries if entry.statement is not None]
    await authority.write_clock(connection, statements)
    await agents.write_authors(connection, statements)
    # Last, because records are made from all other tables.
    await records.write(connection, statements)


def addition(entries: Sequence[Entry]) -> Addition | None:
    """Return the same changes as `apply` makes, if one statement can make them: when all entries are ballots. None otherwise."""
    alike = all(entry.statement is not None and isinstance(entry.statement.body, Ballot) for entry in entries)
    return agents.with_ballots(entries) if alike else None
