"""Append every admitted leaf to the log, in one sequence.

One task takes the queued proposals, at most `MAX_BATCH`, and processes them together:

1. Look up the facts that the statements depend on, and the statements that are logged already (one query). Of handlers also the
   names of their wheels (`wheel_names`).
2. Judge each statement with `admit`, on top of the ones before it. A refusal affects one statement and changes nothing.
3. Commit leaves, tiles, facts, projections and the new head in one transaction; record the head in the fence; sign and release
   the checkpoint (`leader`).
4. Report the results to the submitters, with proofs made from the new nodes.

A position is reported only when the leaf is durable and in a released checkpoint. When a whole batch fails, its halves are tried
separately, so that a statement that triggers an internal error does not fail the others. When PostgreSQL or a disk is out of
order, all of them are refused without another try. Submitters are informed before the failure is written to this process's own
log.

A node that does not lead sends its batches to the node that does (`forwarding`). While no node leads, it waits some seconds for
the next leader, which may be itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import structlog

from treaty_consensus.admit import reads
from treaty_consensus.codes import RegistryCode
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.facts import Fact
from treaty_consensus.log.merkle import inclusion_proof
from treaty_consensus.statement import Verified
from treaty_io import tracing
from treaty_io.repeats import Repeats

from ..codes import DiskCode, RegistryLogCode
from ..storage.postgres import is_outage
from ..telemetry.measures import COMMIT_LEAVES, COMMIT_SECONDS, QUEUE_SECONDS, STATEMENTS
from .checkpoints import Head
from .entry import BlobReader
from .leader import Leader, superseded
from .proposals import Batch, LogPosition, Proposal, judge

MAX_BATCH = 256  # leaves of one commit; larger batches delay the first submitter
MAX_QUEUE = 8_192  # proposals, so that memory is bounded while the database is slow
_BEFOREHAND = (DiskCode.FULL, RegistryLogCode.CLOCK, RegistryLogCode.SIGNED_ELSEWHERE)
"""Refusals that are passed on with their own code, because they are certain before anything is written."""
_AGAIN = 0.5  # seconds to wait for the lock: PostgreSQL needs a moment to notice that our old connection is closed

_WITHOUT_LEADER = 8.0
"""Seconds that a node's proposals wait for a leader, which is longer than it takes to replace one that stands still."""
_LOOK = 0.1  # seconds between two tries to reach a leader
_MOST_SENT = 3 * 1024 * 1024  # bytes of leaves that are sent to the leader together, in a request of 4 MiB
_SLOW = 1.0  # seconds; a failed attempt that took longer makes later writes fail at once

_log = structlog.get_logger(__name__)


class Uncertain(Exception):
    """The leader was asked to place proposals, and it is unknown whether it did."""


Forward: TypeAlias = Callable[[Sequence[Proposal]], Awaitable["list[LogPosition | TreatyError]"]]
"""Have another node place proposals. Raises `Unavailable` when none took them, and `Uncertain`."""


class Sequencer:
    """Runs from `start` to `stop` on one event loop. The other methods may be called concurrently in between."""

    def __init__(
        self,
        leader: Leader,
        blobs: BlobReader,
        committed: Callable[[Mapping[str, Fact]], None],
        renewal: float,
        permit: Callable[[], None] = lambda: None,
        forward: Forward | None = None,
    ) -> None:
        """`committed` is called with the changed facts after each commit. `renewal`: seconds until the clock cosigns again.
        `permit` raises `Unavailable` while nothing may be written. `forward`: for one node among others; it then leads when
        `lead` is called, and not by itself."""
        self._leader = leader
        self._blobs = blobs
        self._committed = committed
        self._renewal = renewal
        self._permit = permit
        self._forward = forward
        self._no_lead_before = 0.0  # by the loop's clock
        self._queue: asyncio.Queue[Proposal | None] = asyncio.Queue()
        # The head, the database and the fence change together, so writers must not interleave.
        self._lock = asyncio.Lock()  # one writer at a time: the worker, the renewal, or an exclusive block
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._refusals = Repeats()
        """Lines about batches that were refused, by cause: each request of a stranger would write one."""

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
        """Take over the log, unless other nodes may lead it, and start the tasks. Raises as `Leader.take_over`."""
        if self._forward is None:
            await self._leader.take_over(patience=patience)
            self._tell_lead()
        self._tasks = [
            asyncio.create_task(self._work(), name="sequencer"),
            asyncio.create_task(self._renew(), name="log renewal"),
        ]

    async def lead(self) -> None:
        """Lead from now on. Raises as `Leader.take_over`, and `Unavailable` while nothing may be written."""
        async with self._lock:
            # Not at a start: readers need a head also while the clock is wrong, and the operator a process that can accept it.
            if self._leader.head is not None:
                self._permit()
            await self._lead()

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
        # Among several nodes another one may lead.
        alone = self._forward is None
        if alone and not self._leader.leads and asyncio.get_running_loop().time() < self._no_lead_before:
            raise unavailable()

    async def submit(self, proposals: Sequence[Proposal]) -> list[LogPosition | TreatyError]:
        """Append proposals in their order, and wait for their results. Raises `Unavailable` when too many are queued.

        If the call is cancelled, they may be logged or not.
        """
        if self._stopping or self._queue.qsize() + len(proposals) > MAX_QUEUE:
            raise Unavailable(RegistryCode.BUSY, "This registry takes no more statements now.", fix="Send again in a while.")
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
            if self._forward is not None and not self._leader.leads:
                raise _led_elsewhere()
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
                try:
                    await self._place(proposals)
                except Exception as error:  # an internal error: report it to the submitters, and serve the next ones
                    _refuse_all(proposals, error)
                    _log.error("batch lost", size=len(proposals), exc_info=error)
            if len(proposals) < len(waiting):
                return  # `stop` queued the None, which is the last item

    async def _place(self, proposals: Sequence[Proposal]) -> None:
        """Have proposals logged by this process if it leads, or by the node that does."""
        clock = asyncio.get_running_loop().time
        end = clock() + _WITHOUT_LEADER
        while True:
            # For each batch, so that a renewal or an exclusive block waits for one batch and not for the queue.
            async with self._lock:
                if self._forward is None or self._leader.leads:
                    await self._sequence(proposals)
                    return
            try:
                self._permit()
                await self._send(proposals, self._forward)
                return
            except (Uncertain, Unavailable) as error:
                # A Sigstore leaf has no id, so a second try could log it twice.
                lost = [proposal for proposal in proposals if isinstance(error, Uncertain) and proposal.verified is None]
                _refuse_all(lost, error)
                proposals = [proposal for proposal in proposals if not proposal.outcome.done()]
                if clock() >= end or (isinstance(error, Unavailable) and error.code in _BEFOREHAND):
                    _refuse_all(proposals, error)
                    self._report_refusal("no leader takes the log's statements", error, proposals)
                    return
            # Without the lock, so that this node can take the lead meanwhile.
            await asyncio.sleep(_LOOK)

    async def _send(self, proposals: Sequence[Proposal], forward: Forward) -> None:
        part: list[Proposal] = []
        for proposal in proposals:
            # Parts, because a request has a limit.
            if part and sum(len(other.leaf) for other in part) + len(proposal.leaf) > _MOST_SENT:
                await self._send(part, forward)
                part = []
            part.append(proposal)
        first, *others = [proposal.span for proposal in part]
        with tracing.span("forward", "client", parent=first, links=others, treaty_leaves=len(part)):
            outcomes = await forward(part)
        for proposal, outcome in zip(part, outcomes, strict=True):
            proposal.set_result(outcome)

    async def _renew(self) -> None:
        clock = asyncio.get_running_loop().time
        renewed, reported = clock(), ""
        # Not only until it is cancelled: a transaction whose connection is lost at that moment raises its own error instead.
        while not self._stopping:
            # Each second, so that a lost connection or a failed disk is tried again soon, also without submissions.
            await asyncio.sleep(min(self._renewal, 1))
            due = clock() - renewed >= self._renewal
            if not (due or self._leader.fault) if self._leader.leads else clock() < self._no_lead_before:
                continue
            # Among several nodes the lead is taken by `lead`.
            if self._forward is not None and not self._leader.leads:
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
            raise unavailable()
        began = clock()
        try:
            await self._leader.take_over(patience=_AGAIN)
            self._tell_lead()
        except Exception:
            # After a slow attempt refuse at once for the same time: the queued writes have already waited once.
            if clock() - began > _SLOW:
                self._no_lead_before = 2 * clock() - began
            raise

    def _tell_lead(self) -> None:
        _log.info("leads the log", term=self._leader.term, size=self.head.size)

    async def _sequence(self, proposals: Sequence[Proposal]) -> None:
        try:
            self._permit()
            await self._lead()
        # Nothing was begun, so all of them get the same refusal.
        except Exception as error:
            _refuse_all(proposals, error)
            self._report_refusal("log not writable", error, proposals)
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
            if (left_out := self._refusals.end()) is not None:
                _log.info("statements are logged again", size=self.head.size, repeated=left_out)
        except Exception as error:
            # In an outage the halves would fail too, each after its own timeout.
            if len(proposals) == 1 or is_outage(error) or isinstance(error, OSError | Unavailable):
                _refuse_all(proposals, error)
                # A fault of one statement is an internal error, and each of them has its line.
                if is_outage(error) or isinstance(error, OSError | Unavailable):
                    self._report_refusal("batch failed", error, proposals, exc_info=error)
                else:
                    _log.error("batch failed", size=len(proposals), exc_info=error)
                return
            _log.error("batch failed", size=len(proposals), exc_info=error)
            # One statement may have caused an internal error. The others are committed without it.
            middle = len(proposals) // 2
            await self._sequence(proposals[:middle])
            await self._sequence(proposals[middle:])

    def _report_refusal(
        self, event: str, error: Exception, proposals: Sequence[Proposal], exc_info: Exception | None = None
    ) -> None:
        """Log that proposals were refused: at once, and then once a minute with the number of the lines that were left out."""
        if (more := self._refusals.admit(f"{event} {type(error).__name__} {getattr(error, 'code', '')}")) is None:
            return
        _log.error(event, size=len(proposals), error=f"{type(error).__name__}: {error}", exc_info=exc_info, **more)

    async def _judge(self, proposals: Sequence[Proposal]) -> Batch:
        statements = [proposal.verified.statement for proposal in proposals if proposal.verified]
        keys = {key for statement in statements for key in reads(statement)}
        facts, logged = await self._leader.look_up(keys, [bytes.fromhex(statement.id) for statement in statements])
        # Another process has written leaves that this one has not released: it cannot prove where they are.
        if any(index >= self.head.size for index in logged.values()):
            self._leader.resign()
            raise superseded()
        names = await self._leader.wheel_names(statements)
        return judge(proposals, facts, logged, names, self.head.size, self._blobs)

    async def _commit(self, batch: Batch) -> None:
        # Without new leaves the current head answers the repetitions.
        head = self.head
        if batch.entries:
            with COMMIT_SECONDS.time():
                head = await self._leader.commit(batch.entries, batch.facts)
            COMMIT_LEAVES.observe(len(batch.entries))
            # Before the results: a submitter's next statement must find these facts in the caches.
            self._committed(batch.facts)
        for proposal, entry in zip(batch.added, batch.entries, strict=True):
            proof = inclusion_proof(entry.index, head.size, head.edge.nodes)
            proposal.set_result(LogPosition(entry.index, head.signed, proof))
        for proposal, index in batch.known:
            proposal.set_result(LogPosition(index, head.signed, None))
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


def _refuse_all(proposals: Sequence[Proposal], error: Exception) -> None:
    STATEMENTS.labels("failed").inc(len(proposals))
    for proposal in proposals:
        # A new object for each: one exception raised in several tasks would mix their tracebacks.
        refusal = unavailable()
        if isinstance(error, Unavailable) and error.code in _BEFOREHAND:
            refusal = Unavailable(error.code, error.message, fix=error.fix)
        refusal.__cause__ = error
        proposal.set_result(refusal)


def _led_elsewhere() -> Unavailable:
    return Unavailable(
        RegistryLogCode.NOT_LEADING,
        "Another node leads this log, and only it can do this.",
        fix="Run the command on the node whose metric treaty_leader is 1.",
    )


def unavailable() -> Unavailable:
    """Return the refusal of a statement that may be logged or not."""
    return Unavailable(
        RegistryLogCode.UNAVAILABLE,
        "The log could not take this statement, or could not confirm it.",
        fix="Send the same statement again. If it was logged, the answer is its receipt.",
    )
