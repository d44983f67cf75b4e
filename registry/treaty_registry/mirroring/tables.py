"""Write verified leaves into the tables of a mirror, by the code that a registry uses.

One process writes: it holds the leader's lock of the database, and each commit is conditional on the head that it expects.
Leaves, tiles, facts and the rows derived from them become visible together. A crash leaves all of a commit or none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treaty_consensus.codes import LogCode
from treaty_consensus.errors import Untrusted
from treaty_consensus.facts import Fact
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.tiles import TreeEdge

from .. import projection
from ..log import tables
from ..log.changes import Changes
from ..log.entry import Entry
from ..log.leader import superseded
from ..storage.postgres import Connection, deadline, lead

_PATIENCE = 30.0  # seconds for one step: no reader waits for the answer, and a lost connection is made anew
_LOCK = 10.0  # seconds to wait for the lock of a process that is just ending


class MirrorTables:
    """The tables, for one writer. After an error the connection is dropped; `connect` reads the state again."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._connection: Connection | None = None
        self.edge = TreeEdge()
        """The right edge of the tree of all stored leaves."""
        self.changes = Changes()

    async def connect(self) -> None:
        """Take the writer's lock and read the head, unless this is done already.

        Raises `Unavailable`, and `Untrusted` (`log.damaged`) when the leaves do not have the recorded root.
        """
        if self._connection is not None and not self._connection.is_closed():
            return
        self._connection = await lead(self._database, patience=_LOCK)
        with deadline(self._connection, _PATIENCE):
            size, root = await tables.read_head(self._connection)
            self.edge = await tables.load_edge(self._connection, size)
        # Changes of a commit whose outcome was unknown may be missing.
        self.changes = Changes()
        if self.edge.root() != root:
            raise Untrusted(
                LogCode.DAMAGED,
                f"The {size} leaves in the database do not hash to the root recorded with them.",
                fix="Delete the database of this mirror and start it again: it is made from the log anew.",
            )

    async def edge_at(self, size: int) -> TreeEdge:
        """Return the right edge of the tree of the first `size` leaves."""
        assert self._connection is not None, "connected"
        with deadline(self._connection, _PATIENCE):
            return self.edge if size == self.edge.size else await tables.load_edge(self._connection, size)

    async def append(self, entries: Sequence[Entry], facts: Mapping[str, Fact]) -> None:
        """Append entries, which start at the edge, in one commit. Durable on return."""
        assert self._connection is not None, "connected"
        after, tiles = self.edge.appended(leaf_hash(entry.leaf) for entry in entries)
        try:
            with deadline(self._connection, _PATIENCE):
                async with self._connection.transaction():
                    if not await tables.append(self._connection, self.edge, after, entries, facts, tiles):
                        raise superseded()
                    await projection.apply(self._connection, entries)
        # It is unknown whether the commit happened, so nothing of this connection is used again.
        except BaseException:
            self.close()
            raise
        self.edge = after
        self.changes.record(entries)

    def close(self) -> None:
        """Drop the connection, and the lock with it. PostgreSQL rolls back what is not committed."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
