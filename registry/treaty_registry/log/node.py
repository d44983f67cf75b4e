"""Keep one node of a registry of several processes up to date.

A node that leads publishes the heads that it releases (`leadership`). Any other node follows: it serves the newest published
head, after it has verified the signatures of the note and computed the root from the leaves. It hears of a head at once, by
NOTIFY, or else within `POLL` seconds. A node that does not reach PostgreSQL goes on serving the head that it has.

A node that finds the leader's lock free takes the lead, if its clock is right. A leader whose clock is wrong gives it up.
PostgreSQL frees the lock of a process that died, and of a machine that does not answer. A leader that stands still keeps its
lock, so after `SILENT` seconds without a sign of it the others end its connection. If it goes on later, it can neither commit nor
record a head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from treaty_consensus import statement
from treaty_consensus.codes import LogCode
from treaty_consensus.errors import Conflict, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.tiles import TreeEdge
from treaty_io.repeats import Repeats

from ..codes import RegistryLogCode, SettingsCode
from ..storage.postgres import DATABASE_ERRORS, Connection, Pool, connect_node, deadline
from ..telemetry.redaction import show_address
from . import leadership, tables
from .checkpoints import Head
from .entry import BlobReader, Entry
from .leader import Leader

POLL = 0.2
"""Seconds between two looks of a node that follows."""
SILENT = 5.0
"""Seconds without a beat after which a leader counts as standing still. Its own writes are given up after the same time."""
_BEAT = 1.0
_PAUSE = 0.02  # seconds between two publications: heads in between are skipped
_PATIENCE = 3.0  # seconds for one look, because a suspended PostgreSQL never answers
_CATCH_UP = 4096  # leaves; a node that is further behind loads the edge, and forgets what it knows of the leaves before

_log = structlog.get_logger(__name__)


class Node:
    """This process among others. For one event loop; call `begin`, then `run`."""

    def __init__(
        self,
        *,
        url: str,
        database: str,
        pool: Pool,
        blobs: BlobReader,
        leader: Leader,
        keys: Callable[[], LogKeys],
        lead: Callable[[], Awaitable[None]],
        learned: Callable[[Sequence[Entry] | None], Awaitable[None]],
    ) -> None:
        """`url`: where the others reach this one. `keys`: those of the log. `lead`: try to take the lead, or raise.
        `learned`: called with the entries of each new head before it is served, or with None when they are unknown."""
        self._url = url
        show_address(url)
        self._database = database
        self._pool = pool
        self._blobs = blobs
        self._leader = leader
        self._keys = keys
        self._lead = lead
        self._learned = learned
        self.found: leadership.Leadership | None = None
        """Who leads, as this node read it last; None before, and while PostgreSQL does not answer."""
        self._news = asyncio.Event()
        # Heads come from the row and from the leader's answers, and must be taken in order.
        self._adopting = asyncio.Lock()
        self._led = False
        self._faults = Repeats()
        self._replaced = 0  # the term whose leader stood still

    async def begin(self, patience: float) -> None:
        """Wait until this node leads or follows, so that it has a head to serve. Raises what keeps it from both, and `Conflict`
        (`settings.value`) when another node with its address leads."""
        end = asyncio.get_running_loop().time() + patience
        async with connect_node(self._database) as connection:
            while True:
                try:
                    await self._step(connection)
                # For a moment it is the process before this one, whose connection PostgreSQL still holds.
                except Conflict:
                    if asyncio.get_running_loop().time() >= end:
                        raise
                    await asyncio.sleep(POLL)
                    continue
                except TreatyError:
                    if asyncio.get_running_loop().time() >= end:
                        raise
                if self._leader.head is not None:
                    return
                if asyncio.get_running_loop().time() >= end:
                    raise Unavailable(RegistryLogCode.OTHER_LEADER, "Another process leads this log, and has released no head.")
                await asyncio.sleep(POLL)

    async def run(self) -> None:
        """Publish or follow until cancelled. Failures are logged, each kind once a minute, and tried again."""
        while True:
            try:
                async with connect_node(self._database) as connection:
                    await connection.add_listener(leadership.CHANNEL, lambda *_: self._news.set())
                    while True:
                        await self._wait()
                        await self._attempt(connection)
            # Nothing may end this task: the node would serve an old head for ever.
            except Exception as error:
                self.found = None
                self._report(error)
                await asyncio.sleep(POLL)

    async def adopt(self, note: bytes, witnessed: bytes = b"") -> None:
        """Serve the head of `note` if it is newer than the one that is served now. Raises `Untrusted` or `Unavailable`."""
        async with self._adopting:
            head = self._leader.head
            if head is None or note != head.note:
                signed = self._keys().open(note)
                if head is None or (signed.checkpoint.size, signed.time or 0) > (head.size, head.time):
                    head = await self._take_in(signed)
            if witnessed and not self._leader.leads and (head.witnessed is None or head.witnessed.note != witnessed):
                signed = self._keys().open(witnessed)
                edge = head.edge if signed.checkpoint.size == head.size else await self._load(signed)
                self._leader.follow(replace(head, witnessed=Head(signed, edge)))

    async def _attempt(self, connection: Connection) -> None:
        try:
            await self._step(connection)
        # Of this log and not of the connection, which goes on.
        except TreatyError as error:
            self._report(error)

    async def _step(self, connection: Connection) -> None:
        with deadline(connection, _PATIENCE):
            if self._leader.leads:
                self._leader.check_clock()
                await self._publish(connection)
                return
            state = self.found = await leadership.read(connection)
        show_address(state.url)
        if state.note:
            await self.adopt(state.note, state.witnessed)
        if not state.led:
            # Quickly, because no process writes until then. Of several nodes that try, PostgreSQL gives the lock to one.
            await self._lead()
        elif state.silent > SILENT:
            if state.term != self._replaced:  # once, because it repeats several times a second
                _log.error("the leader stands still and is replaced", url=state.url, seconds=state.silent)
            self._replaced = state.term
            with deadline(connection, _PATIENCE):
                await leadership.end(connection, state, SILENT)
        elif state.url == self._url and state.term != self._leader.term:
            # The others would send their statements here.
            raise Conflict(
                SettingsCode.VALUE,
                f"Another node of this registry leads it at {state.url}, the address of this one.",
                fix="Give each node an address of its own, at which the others reach it: --node",
            )

    async def _publish(self, connection: Connection) -> None:
        self._led = True
        # Cleared before the head is read: a head that is released meanwhile sets it again.
        fresh = self._leader.unpublished.is_set()
        self._leader.unpublished.clear()
        head, term = self._leader.head, self._leader.term
        if fresh and head is not None:
            witnessed = head.witnessed.note if head.witnessed else b""
            current = await leadership.publish(connection, term, self._url, head.note, witnessed)
        else:
            current = await leadership.beat(connection, term)
        # PostgreSQL gave the lock to another process although this connection lives: a pooler may do that. The other may have
        # failed since. Without a resignation this process would lead, and no node would hear of it.
        if not current:
            self._leader.resign()

    async def _wait(self) -> None:
        """Wait for the next look: for a head to publish or to follow, and at most until the beat or the look is due."""
        event, seconds = (self._leader.unpublished, _BEAT) if self._leader.leads else (self._news, POLL)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
        self._news.clear()
        if self._leader.leads:
            await asyncio.sleep(_PAUSE)

    async def _take_in(self, signed: SignedCheckpoint) -> Head:
        head, size = self._leader.head, signed.checkpoint.size
        # What this process recorded while it led may not have been committed.
        if head is None or self._led or size - head.size > _CATCH_UP:
            edge = await self._load(signed)
            await self._learned(None)
        else:
            leaves = [leaf async for part in tables.stream_leaves(self._pool, head.size, size) for leaf in part]
            edge, _ = head.edge.appended(map(leaf_hash, leaves))
            _check(edge, signed)
            await self._learned(await asyncio.to_thread(self._entries, head.size, leaves))
        self._led = False
        new = Head(signed, edge, head.witnessed if head else None)
        self._leader.follow(new)
        return new

    async def _load(self, signed: SignedCheckpoint) -> TreeEdge:
        edge = await tables.load_edge(self._pool, signed.checkpoint.size)
        _check(edge, signed)
        return edge

    def _entries(self, first: int, leaves: Iterable[bytes]) -> list[Entry]:
        return [Entry(first + number, leaf, _parsed(leaf), self._blobs) for number, leaf in enumerate(leaves)]

    def _report(self, error: Exception) -> None:
        # That another node leads is no fault.
        if isinstance(error, Unavailable) and error.code == RegistryLogCode.OTHER_LEADER:
            return
        # Once a minute, because it repeats several times a second, and two faults may take turns.
        if (more := self._faults.admit(f"{type(error).__name__} {getattr(error, 'code', '')}")) is not None:
            unexpected = None if isinstance(error, (TreatyError, *DATABASE_ERRORS)) else error
            _log.error("this node does not keep up", error=f"{type(error).__name__}: {error}", exc_info=unexpected, **more)


def _parsed(leaf: bytes) -> statement.Statement | None:
    try:
        return statement.understand(leaf)
    except TreatyError:
        return None  # a Sigstore leaf


def _check(edge: TreeEdge, signed: SignedCheckpoint) -> None:
    """Raise `Untrusted` (`log.damaged`) when the leaves of the database are not those of a signed head."""
    if edge.root() != signed.checkpoint.root:
        raise Untrusted(
            LogCode.DAMAGED,
            f"The {signed.checkpoint.size} leaves in the database do not hash to the root of the published head.",
            fix="See whether all nodes use the same database and keys; `treaty-registry audit` tells what is wrong.",
        )
