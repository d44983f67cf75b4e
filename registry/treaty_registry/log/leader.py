"""The leader: the one process that may grow the log and sign its head.

It writes on the connection that holds the leader's lock, and a commit moves the head in the database only if that is still the
one it knows. A head is signed after three things, in this order: the commit; the fence's record of it; both still true. What a
crash leaves: before the commit, nothing; after it, a head ahead of the record, which nobody has heard of and which the next
leader records and signs.

After any failure the leader knows nothing for sure. It drops the connection, and with it the lock, and leads again only by
taking over from what the database and the fence say.

No step waits without end: a connection that does not answer is cut off, and a disk that does not is given up on, after
`_PATIENCE` seconds (and `_PER_ENTRY` for each entry: a whole epoch is one commit).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from treaty_consensus import statement
from treaty_consensus.errors import TreatyError, Unavailable, Untrusted
from treaty_consensus.facts import Fact
from treaty_consensus.kinds import Genesis
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.tiles import Tile, TreeEdge

from ..storage.postgres import DATABASE_ERRORS, Connection, deadline, is_outage
from . import tables
from .checkpoints import CheckpointSigner, Head
from .clock import LogClock, SignedTime
from .entry import Entry
from .fence import Fence, behind

_PATIENCE = 5.0
_PER_ENTRY = 0.01


class Leader:
    """Call one method at a time. `head` may be read at any time; it is the newest one that was released."""

    def __init__(
        self,
        *,
        lead: Callable[[float], Awaitable[Connection]],
        apply: Callable[[Connection, Sequence[Entry]], Awaitable[None]],
        fence: Fence,
        signer: CheckpointSigner,
        clock: LogClock,
    ) -> None:
        """`lead(patience)`: a connection that holds the leader's lock, waiting for it at most so many seconds. `apply`: the
        projections, run in the transaction of each commit."""
        self._lead = lead
        self._apply = apply
        self._fence = fence
        self._signer = signer
        self._clock = clock
        self._connection: Connection | None = None
        self._thread = ThreadPoolExecutor(1, "leader")  # of its own: nothing else may keep a head from being signed
        self.head: Head | None = None
        self.released = asyncio.Event()
        """Set whenever a head is released; whoever waits for it clears it."""
        self.fault: BaseException | None = None
        """Why the last write failed, if that was the fault of a disk or of PostgreSQL as a whole, until one succeeds again."""

    @property
    def leads(self) -> bool:
        """Whether this process may grow the log, as far as it knows."""
        return self._connection is not None and not self._connection.is_closed()

    @property
    def connection(self) -> Connection:
        """The connection that holds the lock. Raises `Unavailable` when this process does not lead."""
        if self._connection is None:
            raise Unavailable("log.not-leading", "This registry takes no writes just now.", fix="Send again in a while.")
        return self._connection

    async def take_over(self, *, patience: float) -> None:
        """Begin to lead: get the lock, check the database against itself and against the fence, release a checkpoint.

        A process that starts while its clock is wrong releases the head with the newest time that was signed before: so there is
        something to read, and nothing is dated until the clock is right.

        Raises `Unavailable` (no database, another leader, a wrong clock later on), or `Untrusted` when signing this database's
        head would be wrong.
        """
        try:
            at = self._clock.stamp()
        except Unavailable:
            if self.head is not None or self._clock.newest is None:
                raise
            at = self._clock.newest
        self.resign()
        try:
            self._connection = await self._lead(patience)
            with deadline(self._connection, _PATIENCE):
                edge = await self._verified_edge(self._connection)
            await self._release(edge, at)
        except BaseException as error:
            self._fail(error)
            if isinstance(error, DATABASE_ERRORS):
                raise Unavailable("database.failed", "PostgreSQL or a disk failed while the log was being opened.") from error
            raise
        if self.fault is not None and not is_outage(self.fault):
            self.fault = None  # the record has been written; whether PostgreSQL can write is not known yet

    def resign(self) -> None:
        """Stop leading at once. PostgreSQL rolls back what was not committed and gives the lock away."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def close(self) -> None:
        """Stop leading for good."""
        self.resign()
        self._thread.shutdown()

    async def look_up(self, keys: Iterable[str], statements: Collection[bytes]) -> tuple[dict[str, Fact], dict[bytes, int]]:
        """The facts under `keys` and the places of those `statements` (ids) that are logged, as of the newest commit."""
        with deadline(self.connection, _PATIENCE):
            return await tables.look_up(self.connection, keys, statements)

    async def commit(self, entries: Sequence[Entry], facts: Mapping[str, Fact]) -> tuple[Head, dict[Tile, bytes]]:
        """Append the entries, which begin at the head's size, and release the new head; returns it and the tiles that changed.

        Durable and in a signed checkpoint when it returns. When it raises, whatever it is, this process no longer leads, and the
        entries are in the log as a whole or not at all; except for a wrong clock (`Unavailable`), which is found out beforehand.
        """
        connection, before, at = self.connection, self._edge, self._clock.stamp()
        after, tiles = before.appended(leaf_hash(entry.leaf) for entry in entries)
        try:
            with deadline(connection, _PATIENCE + _PER_ENTRY * len(entries)):
                async with connection.transaction():
                    if not await tables.append(connection, before, after, entries, facts, tiles):
                        raise superseded()
                    await self._apply(connection, entries)
            released = await self._release(after, at)
        except BaseException as error:
            self._fail(error)
            raise
        self.fault = None
        return released, tiles

    async def renew(self) -> None:
        """Let the clock cosign the head again, after making sure that it still is the head. Raises as `commit`."""
        connection, at = self.connection, self._clock.stamp()
        try:
            with deadline(connection, _PATIENCE):
                size, root = await tables.read_head(connection)
            if (size, root) != (self._edge.size, self._edge.root()):
                raise superseded()
            await self._release(self._edge, at)
        except BaseException as error:
            self._fail(error)
            raise

    async def try_to_write(self) -> None:
        """Find out whether a `fault` has passed, without a word in the log. Raises as `commit`."""
        try:
            with deadline(self.connection, _PATIENCE):
                await tables.try_to_write(self.connection)
        except BaseException as error:
            self._fail(error)
            raise
        self.fault = None

    def _fail(self, error: BaseException) -> None:
        """After a failure: resign, and remember what a later write would meet as well."""
        self.resign()
        if is_outage(error) or isinstance(error, OSError):  # a TimeoutError is one
            self.fault = error

    @property
    def _edge(self) -> TreeEdge:
        assert self.head is not None, "no head before take_over"
        return self.head.edge

    async def _release(self, edge: TreeEdge, at: SignedTime) -> Head:
        """Record a committed head and the time at the fence, then sign both."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_PATIENCE):  # the thread goes on; a record that comes late is of a committed head all the same
            await loop.run_in_executor(self._thread, self._fence.advance, edge.size, edge.root(), at)
        self._clock.signed(at)
        witnessed = self.head.witnessed if self.head else None
        self.head = replace(self._signer.sign(edge, at.time), witnessed=witnessed)
        self.released.set()
        return self.head

    def witness(self, head: Head) -> None:
        """Let readers have `head`, which witnesses have cosigned, unless they have a later one."""
        assert self.head is not None, "it was released"
        before = self.head.witnessed
        if before is None or (before.size, before.time) <= (head.size, head.time):
            self.head = replace(self.head, witnessed=head)

    async def _verified_edge(self, connection: Connection) -> TreeEdge:
        size, root = await tables.read_head(connection)
        edge = await tables.load_edge(connection, size)
        if edge.root() != root:
            raise Untrusted(
                "log.damaged",
                f"The {size} leaves in the database do not hash to the root recorded with them.",
                fix="Restore the database from its newest backup; `treaty-registry audit` tells what is wrong.",
            )
        record = self._fence.record
        if size < record.size or (await tables.load_edge(connection, record.size)).root() != record.root:
            raise behind(record, size)
        if size:
            self._check_genesis((await tables.read_leaves(connection, [0]))[0])
        return edge

    def _check_genesis(self, leaf: bytes) -> None:
        body = statement.parse(leaf).body
        keys = str(self._signer.log_key.verifier), str(self._signer.clock_key.verifier)
        if not isinstance(body, Genesis) or (body.log_key, body.clock_key) != keys:
            raise Untrusted(
                "log.other",
                "The log in this database has other keys than the ones in the data directory.",
                fix="Start with the data directory and the database that belong together.",
            )


def superseded() -> TreatyError:
    """Another process has written the log."""
    return Unavailable("log.superseded", "Another process writes this log now.", fix="Send to that one, or again in a while.")
