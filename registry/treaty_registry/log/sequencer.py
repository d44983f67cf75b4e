"""Append every admitted leaf to the log, in one sequence.

One task takes the queued proposals, at most `MAX_BATCH`, and processes them together:

1. Look up the facts that the statements depend on, and the statements that are logged already (one query).
2. Judge each statement with `admit`, on top of the ones before it. A refusal affects one statement and changes nothing.
3. Commit leaves, tiles, facts, projections and the new head in one transaction; record the head in the fence; sign and release
   the checkpoint (`leader`).
4. Report the results to the submitters, with proofs made from the new tiles.

A position is reported only when the leaf is durable and in a released checkpoint. When a whole batch fails, its halves are tried
separately, so that a statement that triggers an internal error does not fail the others. When PostgreSQL or a disk is out of
order, all of them are refused without another try. Submitters are informed before the failure is written to this process's own
log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from treaty_client import tracing
from treaty_consensus.admit import admit, reads
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.facts import Fact
from treaty_consensus.log.merkle import inclusion_nodes, inclusion_proof
from treaty_consensus.log.tiles import Tile, node_hashes
from treaty_consensus.statement import Verified

from ..catalogue.handler_facts import HandlerFacts
from ..codes import DiskCode, RegistryLogCode
from ..storage.postgres import is_outage
from ..telemetry.measures import COMMIT_LEAVES, COMMIT_SECONDS, QUEUE_SECONDS, STATEMENTS
from .checkpoints import Head
from .entry import BlobReader, Entry
from .leader import Leader, superseded

MAX_BATCH = 256  # leaves of one commit; larger batches delay the first submitter
MAX_QUEUE = 8_192  # proposals, so that memory is bounded while the database is slow
_BEFOREHAND = (DiskCode.FULL, RegistryLogCode.CLOCK_AHEAD, RegistryLogCode.CLOCK_BEHIND)
"""Refusals that are passed on with their own code, because they are certain before anything is written."""
_AGAIN = 0.5  # seconds to wait for the lock: PostgreSQL needs a moment to notice that our old connection is closed

_SLOW = 1.0  # seconds; a failed attempt that took longer makes later writes fail at once

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class LogPosition:
    """The position of a leaf in the tree of `head`. `proof`: its inclusion proof, or None when the leaf was logged before."""

    index: int
    head: Head
    proof: list[bytes] | None


@dataclass(eq=False)
class Proposal:
    """A leaf to append. `verified` is None for a Sigstore leaf, to which no rule of admission applies. `handler`: see `Entry`."""

    leaf: bytes
    verified: Verified | None = None
    handler: HandlerFacts | None = None
    outcome: asyncio.Future[LogPosition | TreatyError] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    proposed: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    span: tracing.Parent = None
    """The span of its submitter, which the commit names."""

    @property
    def id(self) -> bytes | None:
        """Return the id of the statement, or None."""
        return bytes.fromhex(self.verified.statement.id) if self.verified else None

    def set_result(self, outcome: LogPosition | TreatyError) -> None:
        """Pass the position or the refusal to the submitter, unless it was cancelled."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


@dataclass
class Batch:
    """The results of judging proposals.

    `added`: the proposals to commit, in the order of `entries`. `known`: the proposals that are logged already, or are earlier
    in this batch under the same id, with their index. `refused`: the others.
    """

    entries: list[Entry] = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    added: list[Proposal] = field(default_factory=list)
    known: list[tuple[Proposal, int]] = field(default_factory=list)
    refused: list[tuple[Proposal, TreatyError]] = field(default_factory=list)


def judge(
    proposals: Sequence[Proposal], facts: Mapping[str, Fact], logged: Mapping[bytes, int], size: int, blobs: BlobReader
) -> Batch:
    """Judge proposals in order on top of a log of `size` leaves.

    `facts`: the facts that the proposals read. `logged`: the ids among them that are logged, with their index.
    """
    batch, state, positions = Batch(), dict(facts), dict(logged)
    for proposal in proposals:
        index, id_ = size + len(batch.entries), proposal.id
        # Sending a statement again is harmless: it gets its first position.
        if id_ in positions:
            batch.known.append((proposal, positions[id_]))
            continue
        if proposal.verified is not None and id_ is not None:
            try:
                changes = admit(state, proposal.verified, index)
            except TreatyError as error:
                batch.refused.append((proposal, error))
                continue
            # Later statements of the batch are judged as if this one were logged, because they will follow it.
            state.update(changes)
            batch.facts.update(changes)
            positions[id_] = index
        statement = proposal.verified.statement if proposal.verified else None
        batch.entries.append(Entry(index, proposal.leaf, statement, blobs, proposal.handler))
        batch.added.append(proposal)
    return batch


class Sequencer:
    """Runs from `start` to `stop` on one event loop. The other methods may be called concurrently in between."""

    def __init__(
        self,
        leader: Leader,
        blobs: BlobReader,
        committed: Callable[[Mapping[str, Fact]], None],
        renewal: float,
        permit: Callable[[], None] = lambda: None,
    ) -> None:
        """`committed` is called with the changed facts after each commit. `renewal`: seconds until the clock cosigns again.
        `permit` raises `Unavailable` while nothing may be written."""
        self._leader = leader
        self._blobs = blobs
        self._committed = committed
        self._renewal = renewal
        self._permit = permit
        self._no_lead_before = 0.0  # by the loop's clock
        self._queue: asyncio.Queue[Proposal | None] = asyncio.Queue()
        # The head, the database and the fence change together, so writers must not interleave.
        self._lock = asyncio.Lock()  # one writer at a time: the worker, the renewal, or an exclusive block
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Return the proposals that wait for a commit."""
        return self._queue.qsize()

    @property
    def head(self) -> Head:
        """Return the newest released head."""
        assert self._leader.head is not None, "`start` released one"
        return self._leader.head

    async def start(self, *, patience: float) -> None:
        """Take over the log and start the tasks. Raises as `Leader.take_over`."""
        await self._leader.take_over(patience=patience)
        self._tasks = [
            asyncio.create_task(self._work(), name="sequencer"),
            asyncio.create_task(self._renew(), name="log renewal"),
        ]

    async def stop(self) -> None:
        """Finish the queued proposals, accept no more, and stop leading."""
        self._stopping = True
        if self._tasks:
            worker, renewer = self._tasks
            self._queue.put_nowait(None)
            # The worker ends at the None, after everything that was queued before it. The renewal has nothing to
            # finish.
            renewer.cancel()
            await asyncio.gather(worker, renewer, return_exceptions=True)
        # Last, because the worker still writes on the leader's connection.
        self._leader.close()

    def check(self) -> None:
        """Raise `Unavailable` when a write is known to fail now."""
        self._permit()
        if not self._leader.leads and asyncio.get_running_loop().time() < self._no_lead_before:
            raise _unavailable()

    async def submit(self, proposals: Sequence[Proposal]) -> list[LogPosition | TreatyError]:
        """Append proposals in their order, and wait for their results. Raises `Unavailable` when too many are queued.

        If the call is cancelled, they may be logged or not.
        """
        if self._stopping or self._queue.qsize() + len(proposals) > MAX_QUEUE:
            raise Unavailable(RegistryLogCode.BUSY, "This registry takes no more statements now.", fix="Send again in a while.")
        with tracing.span("sequence", treaty_leaves=len(proposals)):
            for proposal in proposals:
                proposal.span = tracing.current()
                self._queue.put_nowait(proposal)
            return [await proposal.outcome for proposal in proposals]

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[ExclusiveWriter]:
        """Take exclusive write access: until the block ends, only the yielded writer can append. Raises as `Leader.take_over`."""
        async with self._lock:
            self._permit()
            await self._lead()
            yield ExclusiveWriter(self)

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """Stop leading and append nothing until the block ends."""
        async with self._lock:
            self._leader.resign()
            yield

    async def append_together(self, proposals: Sequence[Proposal]) -> list[LogPosition]:
        """Append all proposals in order and without a gap, or raise the first refusal and append none. For `ExclusiveWriter`."""
        batch = await self._judge(proposals)
        if batch.refused:
            raise batch.refused[0][1]
        await self._commit(batch)
        return [outcome for proposal in proposals if isinstance(outcome := proposal.outcome.result(), LogPosition)]

    async def _work(self) -> None:
        while True:
            waiting = [await self._queue.get()]
            while len(waiting) < MAX_BATCH and not self._queue.empty():
                waiting.append(self._queue.get_nowait())
            proposals = [proposal for proposal in waiting if proposal is not None]
            if proposals:
                # For each batch, so that a renewal or an exclusive block waits for one batch and not for the queue.
                async with self._lock:
                    try:
                        await self._sequence(proposals)
                    except Exception as error:  # an internal error: report it to the submitters, and serve the next ones
                        _refuse_all(proposals, error)
                        _log.error("batch lost", size=len(proposals), exc_info=error)
            if len(proposals) < len(waiting):
                return  # `stop` queued the None, which is the last item

    async def _renew(self) -> None:
        clock = asyncio.get_running_loop().time
        renewed, reported = clock(), ""
        while True:
            # Each second, so that a lost connection or a failed disk is tried again soon, also without submissions.
            await asyncio.sleep(min(self._renewal, 1))
            due = clock() - renewed >= self._renewal
            if not (due or self._leader.fault) if self._leader.leads else clock() < self._no_lead_before:
                continue
            async with self._lock:
                try:
                    if not self._leader.leads:
                        await self._lead()
                        renewed = clock()
                    elif due:
                        await self._leader.renew()
                        renewed = clock()
                    # Tried without a write to the log, so that the registry recovers by itself.
                    if self._leader.fault:
                        self._permit()
                        await self._leader.try_to_write()
                    reported = ""
                # Without this task the checkpoint would go stale and the lead would not be regained.
                except Exception as error:
                    if reported != (reported := f"{type(error).__name__}: {error}"):  # log once, because it repeats every second
                        _log.error("checkpoint not renewed", error=reported)

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
            # After a slow attempt refuse at once for the same time: the queued writes have already waited once.
            if clock() - began > _SLOW:
                self._no_lead_before = 2 * clock() - began
            raise

    async def _sequence(self, proposals: Sequence[Proposal]) -> None:
        try:
            self._permit()
            await self._lead()
        # Nothing was begun, so all of them get the same refusal.
        except Exception as error:
            _refuse_all(proposals, error)
            _log.error("log not writable", error=str(error))
            return
        now = asyncio.get_running_loop().time()
        for proposal in proposals:
            QUEUE_SECONDS.observe(now - proposal.proposed)
        try:
            # Below the span of the first one, so that the trace of a single statement is whole. The others are linked.
            first, *others = [proposal.span for proposal in proposals]
            with tracing.span("commit", parent=first, links=others, treaty_leaves=len(proposals)) as span:
                batch = await self._judge(proposals)
                await self._commit(batch)
                span.set(treaty_logged=len(batch.added), treaty_refused=len(batch.refused), treaty_log_size=self.head.size)
        except Exception as error:
            # In an outage the halves would fail too, each after its own timeout.
            if len(proposals) == 1 or is_outage(error) or isinstance(error, OSError | Unavailable):
                _refuse_all(proposals, error)
                _log.error("batch failed", size=len(proposals), exc_info=error)
                return
            _log.error("batch failed", size=len(proposals), exc_info=error)
            # One statement may have caused an internal error. The others are committed without it.
            middle = len(proposals) // 2
            await self._sequence(proposals[:middle])
            await self._sequence(proposals[middle:])

    async def _judge(self, proposals: Sequence[Proposal]) -> Batch:
        statements = [proposal.verified.statement for proposal in proposals if proposal.verified]
        keys = {key for statement in statements for key in reads(statement)}
        facts, logged = await self._leader.look_up(keys, [bytes.fromhex(statement.id) for statement in statements])
        # Another process has written leaves that this one has not released: it cannot prove where they are.
        if any(index >= self.head.size for index in logged.values()):
            self._leader.resign()
            raise superseded()
        return judge(proposals, facts, logged, self.head.size, self._blobs)

    async def _commit(self, batch: Batch) -> None:
        # Without new leaves the current head answers the repetitions.
        head, tiles = self.head, dict[Tile, bytes]()
        if batch.entries:
            with COMMIT_SECONDS.time():
                head, tiles = await self._leader.commit(batch.entries, batch.facts)
            COMMIT_LEAVES.observe(len(batch.entries))
            # Before the results: a submitter's next statement must find these facts in the caches.
            self._committed(batch.facts)
        proofs = _proofs(head, tiles, [entry.index for entry in batch.entries])
        for proposal, entry in zip(batch.added, batch.entries, strict=True):
            proposal.set_result(LogPosition(entry.index, head, proofs[entry.index]))
        for proposal, index in batch.known:
            proposal.set_result(LogPosition(index, head, None))
        for proposal, error in batch.refused:
            proposal.set_result(error)
        for outcome, count in (("logged", len(batch.added)), ("known", len(batch.known)), ("refused", len(batch.refused))):
            STATEMENTS.labels(outcome).inc(count)


class ExclusiveWriter:
    """Exclusive write access to the log, valid inside the block of `Sequencer.exclusive`."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer

    @property
    def head(self) -> Head:
        """Return the head that the next leaf follows."""
        return self._sequencer.head

    async def append(self, statements: Sequence[Verified]) -> list[LogPosition]:
        """Log all statements in one commit, in order and adjacent, or raise the first refusal and log none."""
        return await self._sequencer.append_together([Proposal(verified.statement.leaf, verified) for verified in statements])


def _proofs(head: Head, tiles: Mapping[Tile, bytes], indexes: Sequence[int]) -> dict[int, list[bytes]]:
    nodes = {node for index in indexes for node in inclusion_nodes(index, head.size)}
    hashes = node_hashes(nodes, head.size, {**tiles, **head.edge.tiles})
    return {index: inclusion_proof(index, head.size, hashes) for index in indexes}


def _refuse_all(proposals: Sequence[Proposal], error: Exception) -> None:
    STATEMENTS.labels("failed").inc(len(proposals))
    for proposal in proposals:
        # A new object for each: one exception raised in several tasks would mix their tracebacks.
        refusal = _unavailable()
        if isinstance(error, Unavailable) and error.code in _BEFOREHAND:
            refusal = Unavailable(error.code, error.message, fix=error.fix)
        refusal.__cause__ = error
        proposal.set_result(refusal)


def _unavailable() -> Unavailable:
    return Unavailable(
        RegistryLogCode.UNAVAILABLE,
        "The log could not take this statement, or could not confirm it.",
        fix="Send the same statement again. If it was logged, the answer is its receipt.",
    )
