"""Close epochs: compute the decisions from the leaves of the log, sign and log them.

The decisions come from the auditor's own replay of the leaves in the database. So an auditor who replays the log later gets the
same bytes. The replay is kept between epochs and continues with the new leaves.

The last leaves are replayed, decided and followed by the decisions under exclusive write access, so that no other leaf comes in
between. All decisions are one commit: a crash leaves the epoch either open or closed.

Statements that a witness stamped and that this log lacks are logged first, under the same access. What the log would take is
decided by the function that auditors use (`treaty_consensus.stamped.admissible`), so no quota, block or race leaves one out. A
crash after them leaves the epoch open, with more leaves.

Signatures and topics can be checked and counted on a Dask cluster. When it fails, this process does the work itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

import structlog
from msgspec.structs import replace

from treaty_client.audit.cluster import WorkerCluster
from treaty_client.audit.parallel_verification import Checked
from treaty_consensus.audit import Replay
from treaty_consensus.codes import DecisionCode
from treaty_consensus.errors import Refused, Unavailable, Untrusted
from treaty_consensus.facts import ParametersFact, log_of
from treaty_consensus.kinds import Decision
from treaty_consensus.stamped import admissible
from treaty_consensus.statement import Verified

from ..admission.uploads import Uploads
from ..keys import Operator
from ..log import tables as log_tables
from ..log.checkpoints import Head
from ..log.sequencer import ExclusiveWriter, Sequencer
from ..log.witnesses import WitnessClient
from ..storage.blobs import BlobStore
from ..storage.postgres import Pool, is_outage
from .boxes import Waiting, WitnessBoxes
from .schedule import read_timetable

_NAMED = "select document, uri from protocols where topic = $1 and document = any($2) order by index"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Decided:
    """A logged decision: its statement id, its leaf, and its content. `uris`: document → the oldest protocol that has it."""

    statement: str
    index: int
    decision: Decision
    uris: Mapping[str, str]


class Decisions:
    """Closes epochs, one at a time."""

    def __init__(
        self,
        *,
        pool: Pool,
        blobs: BlobStore,
        uploads: Uploads,
        operator: Operator,
        sequencer: Sequencer,
        clock: Callable[[], datetime],
        witnesses: WitnessClient,
        boxes: WitnessBoxes,
        dask: str | None = None,
    ) -> None:
        """`dask`: the address of a Dask scheduler, whose workers verify and count; None leaves it to this process."""
        self._pool = pool
        self._uploads = uploads
        self._operator = operator
        self._sequencer = sequencer
        self.clock = clock
        self.witnesses = witnesses
        self.boxes = boxes
        self._dask = dask
        self._workers: WorkerCluster | None = None
        self._replay = Replay(blobs.reader(), each=self._each)
        # The replay is kept between epochs and must not be advanced by two closes at once.
        self._one_at_a_time = asyncio.Lock()

    async def close_epoch(self) -> list[Decided]:
        """Decide every topic with a report or a ballot and log the decisions in one commit.

        Returns an empty list when there is nothing to decide; the epoch then stays open. Raises `Refused` (`decision.early`)
        when the schedule closes epochs and this one is not due, `Untrusted` when the log breaks its own rules, or `Unavailable`.
        """
        async with self._one_at_a_time:
            await self._check_due()
            async with self._cluster():
                await self._catch_up(self._sequencer.head.size)  # most leaves, while others can still write
                # Last before the access: less than `MARGIN` must pass from here to the cosignatures. Not within it, because
                # writers would wait for the witnesses.
                waiting = await self.boxes.read()
                # Exclusive from the last replayed leaf to the decisions: `input.size` must be the index of the first
                # decision.
                async with self._sequencer.exclusive() as writer:
                    await self._catch_up(writer.head.size)
                    return await self._log(writer, waiting)

    async def stop(self) -> None:
        """Wait for a running close and prevent further ones."""
        # Never released: a close after this would use a stopped sequencer.
        await self._one_at_a_time.acquire()

    async def _check_due(self) -> None:
        """Refuse an early decision before the exclusive access, because admission would refuse it anyway."""
        timetable = await read_timetable(self._pool)
        if timetable is not None and self.clock().timestamp() < timetable.due:
            due = datetime.fromtimestamp(timetable.due, UTC).isoformat()
            raise Refused(DecisionCode.EARLY, f"Epoch {timetable.epoch} closes by itself at {due}.", fix="Wait until then.")

    @asynccontextmanager
    async def _cluster(self) -> AsyncIterator[None]:
        """Use the Dask cluster during the block, if there is one and it can be reached."""
        if self._dask is None:
            yield
            return
        cluster = WorkerCluster(self._dask)
        try:
            await asyncio.to_thread(cluster.__enter__)
            self._workers = cluster
        except Unavailable as error:
            self._without(error)
        try:
            yield
        finally:
            self._workers = None
            await asyncio.to_thread(cluster.__exit__, None, None, None)

    def _without(self, error: Unavailable) -> None:
        # An epoch must close without the cluster too: it only saves time.
        _log.error("the Dask cluster is not used", error=error.message)
        self._workers = None

    def _each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        if self._workers is not None:
            try:
                return self._workers.each(function, items)
            except Unavailable as error:
                self._without(error)
        return map(function, items)

    async def _catch_up(self, size: int) -> None:
        waiting: deque[tuple[list[bytes], Checked | None]] = deque()
        async for leaves in log_tables.stream_leaves(self._pool, self._replay.size, size):
            waiting.append((leaves, await asyncio.to_thread(self._ahead, leaves)))
            if len(waiting) > (self._workers.ahead if self._workers else 0):
                # In a thread: an epoch may have many thousand signatures.
                await asyncio.to_thread(self._take_in, *waiting.popleft())
        while waiting:
            await asyncio.to_thread(self._take_in, *waiting.popleft())

    def _ahead(self, leaves: Sequence[bytes]) -> Checked | None:
        try:
            return self._workers.check(leaves, self._replay.facts) if self._workers else None
        except Unavailable as error:
            self._without(error)
            return None

    def _take_in(self, leaves: Sequence[bytes], checked: Checked | None) -> None:
        verifications: Sequence[Verified | None] = ()
        if checked is not None:
            try:
                verifications = checked.result()
            except Unavailable as error:
                self._without(error)
        for leaf, verified in zip_longest(leaves, verifications):
            if verified is not None:
                try:
                    self._replay.apply(verified)
                    continue
                except Untrusted:
                    pass  # nothing was changed; `append` repeats it and raises the precise error
            self._replay.append(leaf)

    async def _log(self, writer: ExclusiveWriter, waiting: Waiting) -> list[Decided]:
        # In a thread: a count takes seconds, and readers must be served meanwhile.
        due = await asyncio.to_thread(self._replay.decide)
        # Without a decision there is no electorate in it, and the stricter one costs no obligation.
        electorate = due[0].decision.electorate if due else "open"
        if due_statements := await asyncio.to_thread(self._owed, electorate, waiting):
            await self._append(writer, due_statements)
            await self._catch_up(writer.head.size)
            due = await asyncio.to_thread(self._replay.decide)
        blobs = {item.decision.transcript.sha256: item.transcript for item in due}
        blobs |= {item.decision.roll.sha256: item.roll for item in due}  # all decisions name the same roll
        for digest, data in blobs.items():
            # Before the statements that name them. After a crash here they expire like other uploads.
            await self._uploads.hold_own(digest, data)
        # Before signing: without the quorum nothing is logged, and the epoch stays open.
        bodies = await self._witnessed([item.decision for item in due], writer.head, waiting)
        signed = [self._operator.state(body, issued=self.clock()) for body in bodies]
        # One commit: a crash leaves the epoch either open or closed.
        positions = await writer.append(signed)
        return [
            Decided(verified.statement.id, position.index, body, await self._uris(body))
            for verified, position, body in zip(signed, positions, bodies, strict=True)
        ]

    async def _uris(self, body: Decision) -> Mapping[str, str]:
        rows = await self._pool.fetch(_NAMED, body.topic, [bytes.fromhex(document) for document, _ in body.states])
        return {row["document"].hex(): row["uri"] for row in reversed(rows)}

    async def _append(self, writer: ExclusiveWriter, due: list[Verified]) -> None:
        """Log statements of witnesses. Raises `Unavailable`, OSError and the errors of an outage; those before it are logged."""
        try:
            await writer.append(due)
            _log.info("statements of witnesses logged", statements=len(due))
        except Exception as error:
            if is_outage(error) or isinstance(error, OSError | Unavailable):
                raise
            # A fault of ours in one of them must not keep every epoch open. Who left it out is told by the line below.
            if len(due) == 1:
                _log.critical("a stamped statement is left out", statement=due[0].statement.id, exc_info=error)
                return
            middle = len(due) // 2
            await self._append(writer, due[:middle])
            await self._append(writer, due[middle:])

    def _owed(self, electorate: str, waiting: Waiting) -> list[Verified]:
        facts = self._replay.facts
        return admissible(facts, log_of(facts), electorate, waiting.statements, self._replay.size)

    async def _witnessed(self, bodies: list[Decision], head: Head, waiting: Waiting) -> list[Decision]:
        """Return the decisions on top of `head`, with the witnesses' signatures if the parameters require them. Raises
        `Unavailable`."""
        fact = await log_tables.read_fact(self._pool, f"parameters/{bodies[0].parameters}") if bodies else None
        if not isinstance(fact, ParametersFact) or fact.witnesses is None:
            return bodies
        # A witness whose box was not read could have stamped what this log lacks. Without its cosignature it obliges to nothing.
        note = await self.witnesses.cosign(head, fact.witnesses, without=waiting.unread)
        return [replace(body, input=replace(body.input, witnessed=note)) for body in bodies]
