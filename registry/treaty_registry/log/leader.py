"""Grow the log and sign its head. Only one process, the leader, does this.

The leader writes on the connection that holds the leader's lock. A commit moves the head in the database only if it is still the
head that the leader knows. A head is signed after these steps, in this order: the commit, which waits for the standbys of the
database; the copies of its leaves, as many as receipts promise (`tile_copies`); the record in the fence. A crash before the
commit leaves nothing. A crash after it leaves a head ahead of the record, which was not shown to anyone; the next leader records
and signs it. If the disk is lost too, the copies have every leaf of the recorded head, and at most one commit more.

After any failure the leader trusts no state of its own. It drops the connection, and with it the lock. It leads again only after
`take_over` has read the state from the database and the fence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from treaty_consensus.codes import LogCode
from treaty_consensus.errors import TreatyError, Unavailable, Untrusted
from treaty_consensus.facts import KEYS, Fact, KeysFact
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.durability import Durability
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.tiles import Tile, TreeEdge
from treaty_consensus.log_keys import keys_of_log
from treaty_consensus.statement import Statement
from treaty_io import tracing

from ..codes import DatabaseCode, FenceCode, RegistryLogCode
from ..storage.postgres import DATABASE_ERRORS, Connection, deadline, is_outage, synchronous_standbys
from ..telemetry.measures import STORE_OUTAGES, TAKE_OVERS
from . import leadership, tables
from .checkpoints import CheckpointSigner, Head
from .clock import LogClock, SignedTime
from .entry import Entry
from .fence import HeadRecord, behind, failed
from .tile_copies import TileCopies
from .wheel_names import WheelNames, read_wheel_names

# A connection that does not answer is closed, and a write to a disk is given up. Without a limit every submission
# would hang with a suspended PostgreSQL.
_PATIENCE = 5.0  # seconds for one step
# A whole epoch is one commit, so a large commit gets more time.
_PER_ENTRY = 0.01  # more seconds for each entry of a commit


class Leader:
    """The leader of a log. Call one method at a time. `head` is the newest released head, and may be read at any time."""

    def __init__(
        self,
        *,
        lead: Callable[[float], Awaitable[Connection]],
        apply: Callable[[Connection, Sequence[Entry]], Awaitable[None]],
        addition: Callable[[Sequence[Entry]], tables.Addition | None],
        written: Callable[[Sequence[Entry]], None],
        fence: HeadRecord,
        keys: LogKeys,
        signer_for: Callable[[LogKeys, int], CheckpointSigner],
        clock: LogClock,
        durability: Durability,
        copies: TileCopies,
    ) -> None:
        """`lead(patience)`: return a connection that holds the leader's lock, after waiting at most `patience` seconds. `apply`:
        run the projections in the transaction of each commit. `addition`: return the same for one statement, or None.
        `written` is called with the entries of each commit before its head is released. `keys`: those of the log, as known at
        the start. `signer_for`: return the signer for keys of the log and a time, or raise `Untrusted` if this process does not
        hold them. `durability`: where each leaf is before its head is signed, as the head says. `copies`: they hold so many."""
        self._lead = lead
        self._apply = apply
        self._addition = addition
        self._written = written
        self.fence = fence
        self.keys = keys
        """The keys of the log, as of the newest head that this process has committed or learnt of."""
        self._signer_for = signer_for
        self.signer: CheckpointSigner | None = None
        """Signs with the newest of the keys; None until this process leads."""
        self._clock = clock
        self._durability = durability
        self._copies = copies
        self.term = 0
        """The number of the last take-over of this process."""
        self._connection: Connection | None = None
        self._took_over = False
        self._thread = ThreadPoolExecutor(1, "leader")  # a thread of its own, so that no other work delays a signature
        self.head: Head | None = None
        self.released = asyncio.Event()
        """Set whenever a head is released. The waiting task clears it."""
        self.unpublished = asyncio.Event()
        """Set whenever other nodes should see another head. The waiting task clears it."""
        self.fault: BaseException | None = None
        """The error of the last write if PostgreSQL, a copy, or the record's place failed; None after the next good write."""

    @property
    def leads(self) -> bool:
        """Whether this process may grow the log, as far as it knows. Not before a take-over has checked the database."""
        return self._took_over and self._connection is not None and not self._connection.is_closed()

    @property
    def connection(self) -> Connection:
        """Return the connection that holds the lock. Raises `Unavailable` when this process does not lead."""
        if self._connection is None:
            raise Unavailable(RegistryLogCode.NOT_LEADING, "This registry takes no writes now.", fix="Send again in a while.")
        return self._connection

    async def take_over(self, *, patience: float) -> None:
        """Start to lead: get the lock, check the database against itself and against the fence, and release a checkpoint.

        If a process starts while its clock is wrong or barred, it releases the head with the newest time that was signed before.
        So readers have a head, and no new time is signed until the clock is right. While it is barred, that is the head of the
        record: nobody has seen a later one, and it may be no part of what the other process signed.

        Raises `Unavailable` (no database, another leader, a wrong clock later on), or `Untrusted` when the head of this database
        must not be signed.
        """
        # Before the lock: a process with a wrong clock must not keep another one from leading.
        self._stamp()
        # First, so that nothing of an earlier leadership remains when an attempt fails.
        self.resign()
        try:
            self._connection = await self._lead(patience)
            # Another node may have recorded later heads and times.
            await self._in_thread(self.fence.reread)
            # The head of an empty log is shown to no one, so its time binds no later one (see `Registry.open`).
            self._clock.read(self.fence.signed if self.fence.record.size else None)
            at = self._stamp()
            with deadline(self._connection, _PATIENCE):
                edge = await self._verified_edge(self._connection)
                if self._clock.barred is not None:
                    edge = await tables.load_edge(self._connection, self.fence.record.size)
                await self._take_keys(self._connection, at.time)
                await self._check_standbys(self._connection)
                # After the head is read: everything that was visible then is on every synchronous replica when this commit is.
                self.term = await leadership.take(self._connection)
            await self._release(edge, at, begins=True)
            self._took_over = True
            TAKE_OVERS.labels("led").inc()
        # Also when cancelled: a lock that this process does not know of would keep every other process out.
        except BaseException as error:
            TAKE_OVERS.labels("failed").inc()
            self._fail(error)
            if isinstance(error, DATABASE_ERRORS):
                raise Unavailable(DatabaseCode.UNREACHABLE, "PostgreSQL failed while the log was being opened.") from error
            raise
        if self.fault is not None and not is_outage(self.fault):
            self.fault = None  # the disk works, because the record was written; PostgreSQL's disk is not known yet

    def follow(self, head: Head) -> None:
        """Serve a head that another process has released, unless it is before the one that is served now."""
        # It was read before this process released its own, or heard of a later one.
        if self.head is not None and head.is_before(self.head):
            return
        # A leader that hears of a larger head was replaced. It must not commit on top of a head that it did not make. Nor may one
        # that takes over, and has read the smaller head.
        if self._connection is not None and self.head is not None and head.size > self.head.size:
            self.resign()
        if not self.leads:
            # Of this process's own writes. Another one writes now.
            self.fault = None
        self.head = head.after(self.head)

    def check_clock(self) -> None:
        """Raise `Unavailable` when the clock is wrong, and stop leading then.

        Nothing can be signed here, and another node may have the right time.
        """
        try:
            self._clock.now()
        except Unavailable:
            self.resign()
            raise

    def _stamp(self) -> SignedTime:
        try:
            return self._clock.stamp()
        # The clock is wrong. Readers still need a head after a start, so the newest signed time is used again.
        except Unavailable:
            if self.head is not None or self._clock.newest is None:
                raise
            return self._clock.newest

    def resign(self) -> None:
        """Stop leading at once. PostgreSQL rolls back uncommitted writes and releases the lock."""
        self._took_over = False
        self._copies.end()
        if self._connection is not None:
            # Not `close`, which would wait for a server that may not answer. The lock is freed with the connection.
            self._connection.terminate()
            self._connection = None

    def close(self) -> None:
        """Stop leading permanently."""
        self.resign()
        self._thread.shutdown()

    async def look_up(self, keys: Iterable[str], statements: Collection[bytes]) -> tuple[dict[str, Fact], dict[bytes, int]]:
        """Return the facts under `keys`, and the indexes of the logged ones among `statements` (ids), as of the newest commit."""
        with deadline(self.connection, _PATIENCE):
            return await tables.look_up(self.connection, keys, statements)

    async def wheel_names(self, statements: Iterable[Statement]) -> WheelNames:
        """Return the names that the wheels of `statements` take, as of the newest commit."""
        with deadline(self.connection, _PATIENCE):
            return await read_wheel_names(self.connection, statements)

    async def commit(self, entries: Sequence[Entry], facts: Mapping[str, Fact]) -> Head:
        """Append the entries, which start at the head's size, and release the new head. Returns it.

        On return the entries are durable and in a signed checkpoint. After any error this process no longer leads, and either
        all entries are in the log or none. The exception is a wrong clock (`Unavailable`), which is detected before anything is
        written.
        """
        # The clock is read before anything is written, so a wrong clock leaves no trace.
        connection, before, at = self.connection, self._edge, self._clock.stamp()
        after, tiles = before.appended(leaf_hash(entry.leaf) for entry in entries)
        # Before anything is written: a rotation to keys that this process does not hold leaves no trace.
        keys = keys_of_log(fact) if isinstance(fact := facts.get(KEYS), KeysFact) else self.keys
        signer = self.signer if keys == self.keys and self.signer else self._signer_for(keys, at.time)
        try:
            with tracing.span("transaction"), deadline(connection, _PATIENCE + _PER_ENTRY * len(entries)):
                await self._write(connection, before, after, entries, facts, tiles)
            self._written(entries)
            # A crash here leaves a head ahead of the record. It was not shown to anyone, and the next leader records
            # and signs it, by the keys that its leaves name.
            self.keys, self.signer = keys, signer
            with tracing.span("release"):
                released = await self._release(after, at)
        # Also when cancelled. It is unknown whether the commit happened, so no state of this process is used again.
        except BaseException as error:
            self._fail(error)
            raise
        self.fault = None
        return released

    async def _write(
        self,
        connection: Connection,
        before: TreeEdge,
        after: TreeEdge,
        entries: Sequence[Entry],
        facts: Mapping[str, Fact],
        tiles: Mapping[Tile, bytes],
    ) -> None:
        """Move the head, and write all that follows from the entries, in one transaction."""
        await self._check_standbys(connection)
        # One statement is a transaction of its own. It saves the round trips of the others, for which all writers wait.
        if (addition := self._addition(entries)) is not None:
            if not await tables.append(connection, before, after, entries, facts, tiles, addition):
                raise superseded()
            return
        async with connection.transaction():
            if not await tables.append(connection, before, after, entries, facts, tiles):
                raise superseded()
            # In the same transaction: the rows become visible together with the leaves, or not at all.
            await self._apply(connection, entries)

    async def _check_standbys(self, connection: Connection) -> None:
        # Before each commit: PostgreSQL waits for those that its settings name at that moment, and an operator may change them.
        if self._durability.standbys and (standbys := await synchronous_standbys(connection)) < self._durability.standbys:
            raise Unavailable(
                RegistryLogCode.COPIES,
                f"PostgreSQL waits for {standbys} synchronous standbys, and receipts promise {self._durability.standbys}.",
                fix="Set synchronous_standby_names and synchronous_commit = on, or start with fewer --standbys.",
            )

    async def renew(self) -> None:
        """Cosign the head again with the current time, after checking that it still is the head. Raises as `commit`."""
        connection, at = self.connection, self._clock.stamp()
        try:
            with deadline(connection, _PATIENCE):
                # A leader that lost its lock unawares must not sign an old head with a new time.
                size, root = await tables.read_head(connection)
            if (size, root) != (self._edge.size, self._edge.root()):
                raise superseded()
            await self._release(self._edge, at)
        # Another process may lead, or the connection hangs. Both end this leadership.
        except BaseException as error:
            self._fail(error)
            raise

    async def try_to_write(self) -> None:
        """Test whether a `fault` has passed, without writing to the log. Raises as `commit`."""
        try:
            with deadline(self.connection, _PATIENCE):
                await tables.try_to_write(self.connection)
        except BaseException as error:
            self._fail(error)
            raise
        self.fault = None

    def _fail(self, error: BaseException) -> None:
        """Handle a failure: resign, and store the error if later writes would fail in the same way."""
        self.resign()
        place_failed = isinstance(error, Unavailable) and error.code in (FenceCode.FAILED, RegistryLogCode.COPIES)
        if is_outage(error) or place_failed or isinstance(error, OSError):  # a TimeoutError is one
            self.fault = error

    @property
    def _edge(self) -> TreeEdge:
        assert self.head is not None, "no head before take_over"
        return self.head.edge

    async def _release(self, edge: TreeEdge, at: SignedTime, *, begins: bool = False) -> Head:
        """Have a committed head held by the copies, record it and the time in the fence, then sign both."""
        # Before the record: after a loss of the disk the copies complete a backup up to the recorded head.
        await self._copies.hold(edge, begins=begins)
        await self._in_thread(self.fence.advance, edge.size, edge.root(), at)
        # Recorded before it is signed: after a crash the record shows every time that may have been signed.
        self._clock.signed(at)
        witnessed = self.head.witnessed if self.head else None
        assert self.signer is not None, "take_over made it"
        self.head = replace(self.signer.sign(edge, at.time, self._durability), witnessed=witnessed).after(self.head)
        self.released.set()
        self.unpublished.set()
        return self.head

    async def _in_thread(self, work: Callable[..., None], *arguments: object) -> None:
        loop = asyncio.get_running_loop()
        try:
            # The thread continues; a late record is harmless, because its head is committed.
            async with asyncio.timeout(_PATIENCE):
                await loop.run_in_executor(self._thread, work, *arguments)
        # With a code of its own: PostgreSQL works, and the operator must not be sent there.
        except OSError as error:
            STORE_OUTAGES.labels("head").inc()
            raise failed(self.fence, error) from error

    def witness(self, head: Head) -> None:
        """Publish `head`, which witnesses have cosigned, unless a later witnessed head is published already."""
        assert self.head is not None, "it was released"
        before = self.head.witnessed
        if before is None or not head.is_before(before):
            self.head = replace(self.head, witnessed=head).after(self.head)
            self.unpublished.set()

    async def _verified_edge(self, connection: Connection) -> TreeEdge:
        size, root = await tables.read_head(connection)
        edge = await tables.load_edge(connection, size)
        if edge.root() != root:
            raise Untrusted(
                LogCode.DAMAGED,
                f"The {size} leaves in the database do not hash to the root recorded with them.",
                fix="Restore the database from its newest backup; `treaty-registry audit` tells what is wrong.",
            )
        # A database behind the record is a restored backup. One with another tree is a fork. Signing either would
        # fork the log. The head that this process serves is compared too: the record may have been restored with the database.
        signed = [self.fence.record, *([self.head.signed.checkpoint] if self.head else [])]
        for candidate in signed:
            if size < candidate.size or (await tables.load_edge(connection, candidate.size)).root() != candidate.root:
                raise behind(candidate, size)
        return edge

    async def _take_keys(self, connection: Connection, now: int) -> None:
        # The keys must be those that the leaves name. Otherwise two data directories were mixed up, or a rotation was missed.
        keys = await tables.read_keys(connection) or self.keys
        self.keys, self.signer = keys, self._signer_for(keys, now)


def superseded() -> TreatyError:
    """Return the error for a log that another process has written."""
    return Unavailable(
        RegistryLogCode.NOT_LEADING, "Another process writes this log now.", fix="Send to that one, or again in a while."
    )
