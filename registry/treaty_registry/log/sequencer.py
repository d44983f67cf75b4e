"""The sequencer: gives every admitted leaf its place in the log. What wants to be in the log goes through here.

One task takes whatever has queued up, at most `MAX_BATCH` leaves, and brings it through these steps together:

1. look up the facts that the statements are judged by, and which of them are logged already (one query);
2. judge each by `admit` on top of the ones before it; a refusal concerns one statement and changes nothing;
3. commit leaves, tiles, facts, projections and the new head in one transaction; record the head at the fence; sign and release
   the checkpoint (`leader`);
4. tell those who wait, with proofs made from the tiles at hand.

Nobody is told of a place before it is durable and in a released checkpoint. When a batch as a whole fails, its halves are tried
on their own, so that one statement that trips over a fault of ours takes no other one along; unless PostgreSQL or a disk is out
of order, of which each half would only have to hear again. Those who wait are told before the failure is written to this
process's own log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from treaty_consensus.admit import admit, reads
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.facts import Fact
from treaty_consensus.log.merkle import inclusion_nodes, inclusion_proof
from treaty_consensus.log.tiles import Tile, node_hashes
from treaty_consensus.statement import Verified

from ..storage.postgres import is_outage
from .checkpoints import Head
from .entry import BlobReader, Entry
from .leader import Leader

MAX_BATCH = 256
MAX_QUEUE = 8_192
_BEFOREHAND = ("disk.full", "log.clock-ahead", "log.clock-behind")
"""Refusals that say more than that it failed, and are known before anything is written."""
_AGAIN = 0.5  # seconds; PostgreSQL needs a moment to see that a connection of ours that held the lock is gone

_SLOW = 1.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Place:
    """Where a leaf stands, seen from `head`. `proof`: of its inclusion there, or None when the leaf was logged before."""

    index: int
    head: Head
    proof: list[bytes] | None


@dataclass(eq=False)
class Proposal:
    """A leaf that asks for a place. `verified` is None for a Sigstore leaf, of which no rule of admission speaks."""

    leaf: bytes
    verified: Verified | None = None
    outcome: asyncio.Future[Place | TreatyError] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def id(self) -> bytes | None:
        """The statement's id."""
        return bytes.fromhex(self.verified.statement.id) if self.verified else None

    def settle(self, outcome: Place | TreatyError) -> None:
        """Tell the place, or the refusal, to whoever waits, unless they have gone."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


@dataclass
class Batch:
    """What came of judging proposals. `added`: the ones to commit, in the order of `entries`; `known`: those logged already, or
    added a moment ago under the same id, with their index."""

    entries: list[Entry] = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    added: list[Proposal] = field(default_factory=list)
    known: list[tuple[Proposal, int]] = field(default_factory=list)
    refused: list[tuple[Proposal, TreatyError]] = field(default_factory=list)


def judge(
    proposals: Sequence[Proposal], facts: Mapping[str, Fact], logged: Mapping[bytes, int], size: int, blobs: BlobReader
) -> Batch:
    """Judge proposals in order on top of a log of `size` leaves. `facts` holds what they read, `logged` which ids have places."""
    batch, state, places = Batch(), dict(facts), dict(logged)
    for proposal in proposals:
        index, id_ = size + len(batch.entries), proposal.id
        if id_ in places:
            batch.known.append((proposal, places[id_]))
            continue
        if proposal.verified is not None and id_ is not None:
            try:
                changes = admit(state, proposal.verified, index)
            except TreatyError as error:
                batch.refused.append((proposal, error))
                continue
            state.update(changes)
            batch.facts.update(changes)
            places[id_] = index
        statement = proposal.verified.statement if proposal.verified else None
        batch.entries.append(Entry(index, proposal.leaf, statement, blobs))
        batch.added.append(proposal)
    return batch


class Sequencer:
    """Runs from `start` to `stop` on one event loop; the other methods may be called concurrently in between."""

    def __init__(
        self,
        leader: Leader,
        blobs: BlobReader,
        committed: Callable[[Mapping[str, Fact]], None],
        renewal: float,
        permit: Callable[[], None] = lambda: None,
    ) -> None:
        """`committed` is told the facts that changed, after each commit. `renewal`: seconds until the clock cosigns again.
        `permit` raises `Unavailable` when nothing may be written just now."""
        self._leader = leader
        self._blobs = blobs
        self._committed = committed
        self._renewal = renewal
        self._permit = permit
        self._no_lead_before = 0.0  # by the loop's clock
        self._queue: asyncio.Queue[Proposal | None] = asyncio.Queue()
        self._turn = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def head(self) -> Head:
        """The newest released head."""
        assert self._leader.head is not None, "`start` released one"
        return self._leader.head

    async def start(self, *, patience: float) -> None:
        """Take over the log and begin. Raises as `Leader.take_over`."""
        await self._leader.take_over(patience=patience)
        self._tasks = [asyncio.create_task(self._work()), asyncio.create_task(self._renew())]

    async def stop(self) -> None:
        """Finish what has queued up, take nothing more, and give up the lead."""
        self._stopping = True
        if self._tasks:
            worker, renewer = self._tasks
            self._queue.put_nowait(None)
            renewer.cancel()
            await asyncio.gather(worker, renewer, return_exceptions=True)
        self._leader.close()

    def check(self) -> None:
        """Raises `Unavailable` when it is known already that nothing can be written just now."""
        self._permit()
        if not self._leader.leads and asyncio.get_running_loop().time() < self._no_lead_before:
            raise _unavailable()

    async def submit(self, proposals: Sequence[Proposal]) -> list[Place | TreatyError]:
        """Wait for the outcomes of proposals that keep their order among each other. Raises `Unavailable` when there are too
        many.

        Cancelling it may leave them logged or not.
        """
        if self._stopping or self._queue.qsize() + len(proposals) > MAX_QUEUE:
            raise Unavailable("log.busy", "This registry takes no more statements just now.", fix="Send again in a while.")
        for proposal in proposals:
            self._queue.put_nowait(proposal)
        return [await proposal.outcome for proposal in proposals]

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """The log to oneself: no leaf is added until the block ends, except by the turn. Raises as `Leader.take_over`."""
        async with self._turn:
            self._permit()
            await self._lead()
            yield Turn(self)

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """No leaf is added, and this process does not lead, until the block ends."""
        async with self._turn:
            self._leader.resign()
            yield

    async def append_together(self, proposals: Sequence[Proposal]) -> list[Place]:
        """For `Turn`: all of them become leaves, in order and without a gap, or the first refusal is raised and none does."""
        batch = await self._judge(proposals)
        if batch.refused:
            raise batch.refused[0][1]
        await self._commit(batch)
        return [outcome for proposal in proposals if isinstance(outcome := proposal.outcome.result(), Place)]

    async def _work(self) -> None:
        while True:
            waiting = [await self._queue.get()]
            while len(waiting) < MAX_BATCH and not self._queue.empty():
                waiting.append(self._queue.get_nowait())
            proposals = [proposal for proposal in waiting if proposal is not None]
            if proposals:
                async with self._turn:
                    try:
                        await self._sequence(proposals)
                    except Exception as error:  # a fault of ours; those who wait must hear of it, and the next ones be served
                        _refuse_all(proposals, error)
                        _log.error("batch lost", size=len(proposals), exc_info=error)
            if len(proposals) < len(waiting):
                return  # `stop` queued the None, and nothing comes after it

    async def _renew(self) -> None:
        clock = asyncio.get_running_loop().time
        renewed, complaint = clock(), ""
        while True:
            await asyncio.sleep(min(self._renewal, 1))
            due = clock() - renewed >= self._renewal
            if not (due or self._leader.fault) if self._leader.leads else clock() < self._no_lead_before:
                continue
            async with self._turn:
                try:
                    if not self._leader.leads:
                        await self._lead()
                        renewed = clock()
                    elif due:
                        await self._leader.renew()
                        renewed = clock()
                    if self._leader.fault:
                        self._permit()
                        await self._leader.try_to_write()
                    complaint = ""
                except Exception as error:
                    if complaint != (complaint := f"{type(error).__name__}: {error}"):  # it comes again every second
                        _log.error("checkpoint not renewed", error=complaint)

    async def _lead(self) -> None:
        """Make sure that this process leads. Raises as `Leader.take_over`."""
        clock = asyncio.get_running_loop().time
        if self._leader.leads:
            return
        if clock() < self._no_lead_before:
            raise _unavailable()
        began = clock()
        try:
            await self._leader.take_over(patience=_AGAIN)
        except Exception:
            # Refuse at once for as long as a slow attempt took: the writes that queued up meanwhile have waited enough.
            if clock() - began > _SLOW:
                self._no_lead_before = 2 * clock() - began
            raise

    async def _sequence(self, proposals: Sequence[Proposal]) -> None:
        try:
            self._permit()
            await self._lead()
        except Exception as error:
            _refuse_all(proposals, error)
            _log.error("log not writable", error=str(error))
            return
        try:
            await self._commit(await self._judge(proposals))
        except Exception as error:
            if len(proposals) == 1 or is_outage(error) or isinstance(error, OSError | Unavailable):
                _refuse_all(proposals, error)
                _log.error("batch failed", size=len(proposals), exc_info=error)
                return
            _log.error("batch failed", size=len(proposals), exc_info=error)
            middle = len(proposals) // 2
            await self._sequence(proposals[:middle])
            await self._sequence(proposals[middle:])

    async def _judge(self, proposals: Sequence[Proposal]) -> Batch:
        statements = [proposal.verified.statement for proposal in proposals if proposal.verified]
        keys = {key for statement in statements for key in reads(statement)}
        facts, logged = await self._leader.look_up(keys, [bytes.fromhex(statement.id) for statement in statements])
        return judge(proposals, facts, logged, self.head.size, self._blobs)

    async def _commit(self, batch: Batch) -> None:
        head, tiles = self.head, dict[Tile, bytes]()
        if batch.entries:
            head, tiles = await self._leader.commit(batch.entries, batch.facts)
            self._committed(batch.facts)
        proofs = _proofs(head, tiles, [entry.index for entry in batch.entries])
        for proposal, entry in zip(batch.added, batch.entries, strict=True):
            proposal.settle(Place(entry.index, head, proofs[entry.index]))
        for proposal, index in batch.known:
            proposal.settle(Place(index, head, None))
        for proposal, error in batch.refused:
            proposal.settle(error)


class Turn:
    """The log to oneself, while the block of `Sequencer.turn` lasts."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer

    @property
    def head(self) -> Head:
        """The head that the next leaf follows."""
        return self._sequencer.head

    async def append(self, statements: Sequence[Verified]) -> list[Place]:
        """Log all of them in one commit, in order and next to each other, or raise the first refusal and log none."""
        return await self._sequencer.append_together([Proposal(verified.statement.leaf, verified) for verified in statements])


def _proofs(head: Head, tiles: Mapping[Tile, bytes], indexes: Sequence[int]) -> dict[int, list[bytes]]:
    nodes = {node for index in indexes for node in inclusion_nodes(index, head.size)}
    hashes = node_hashes(nodes, head.size, {**tiles, **head.edge.tiles})
    return {index: inclusion_proof(index, head.size, hashes) for index in indexes}


def _refuse_all(proposals: Sequence[Proposal], error: Exception) -> None:
    for proposal in proposals:
        refusal = _unavailable()
        if isinstance(error, Unavailable) and error.code in _BEFOREHAND:
            refusal = Unavailable(error.code, error.message, fix=error.fix)
        refusal.__cause__ = error
        proposal.settle(refusal)


def _unavailable() -> Unavailable:
    return Unavailable(
        "log.unavailable",
        "The log could not take this statement, or could not confirm it.",
        fix="Send the same statement again: if it was logged after all, you get its receipt.",
    )
