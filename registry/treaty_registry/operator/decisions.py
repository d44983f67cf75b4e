"""Closing an epoch: from the leaves of the log to the decisions that its operator signs.

The decisions come out of the auditor's own replay, fed with the leaves from the database; so whoever replays the log later
finds the same bytes. The replay is kept from one epoch to the next and fed what was added.

The last leaves are taken in, decided on and followed by the decisions in one turn at the log, so that nothing comes in between;
and the decisions are one commit. A process that ends on the way leaves an open epoch, or a closed one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from treaty_consensus.audit import Replay
from treaty_consensus.errors import Refused
from treaty_consensus.facts import ParametersFact
from treaty_consensus.kinds import Decision

from ..admission.uploads import Uploads
from ..keys import Operator
from ..log import tables as log_tables
from ..log.checkpoints import Head
from ..log.sequencer import Sequencer, Turn
from ..log.witnesses import WitnessClient
from ..storage.blobs import BlobStore
from ..storage.postgres import Pool
from .schedule import read_timetable


@dataclass(frozen=True)
class Decided:
    """A decision that is logged: its statement id, its leaf, and what it says."""

    statement: str
    index: int
    decision: Decision


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
    ) -> None:
        self._pool = pool
        self._uploads = uploads
        self._operator = operator
        self._sequencer = sequencer
        self._clock = clock
        self._witnesses = witnesses
        self._replay = Replay(blobs.reader())
        self._one_at_a_time = asyncio.Lock()

    async def close_epoch(self) -> list[Decided]:
        """Decide every topic with a report or a ballot and log the decisions in one commit.

        Empty when there is nothing to decide; then the epoch stays open. Raises `Refused` (`decision.early`) where the schedule
        closes epochs and this one is not due, `Untrusted` when the log breaks its own rules, or `Unavailable`.
        """
        async with self._one_at_a_time:
            await self._check_due()
            await self._catch_up(self._sequencer.head.size)  # most of the way, while others still write
            async with self._sequencer.turn() as turn:
                await self._catch_up(turn.head.size)
                return await self._log(turn)

    async def stop(self) -> None:
        """Wait for a closing that is under way; there is none after it."""
        await self._one_at_a_time.acquire()

    async def _check_due(self) -> None:
        """Spare the log a turn that admission would refuse in the end."""
        timetable = await read_timetable(self._pool)
        if timetable is not None and self._clock().timestamp() < timetable.due:
            due = datetime.fromtimestamp(timetable.due, UTC).isoformat()
            raise Refused("decision.early", f"Epoch {timetable.epoch} closes by itself at {due}.", fix="Wait until then.")

    async def _catch_up(self, size: int) -> None:
        async for leaves in log_tables.stream_leaves(self._pool, self._replay.size, size):
            await asyncio.to_thread(self._take_in, leaves)

    def _take_in(self, leaves: Sequence[bytes]) -> None:
        for leaf in leaves:
            self._replay.append(leaf)

    async def _log(self, turn: Turn) -> list[Decided]:
        due = await asyncio.to_thread(self._replay.decide)
        blobs = {item.decision.transcript.sha256: item.transcript for item in due}
        blobs |= {item.decision.roll.sha256: item.roll for item in due}  # the same one for all of them
        for digest, data in blobs.items():
            await self._uploads.hold_own(digest, data)
        bodies = await self._witnessed([item.decision for item in due], turn.head)
        signed = [self._operator.state(body, issued=self._clock()) for body in bodies]
        places = await turn.append(signed)
        return [
            Decided(verified.statement.id, place.index, body)
            for verified, place, body in zip(signed, places, bodies, strict=True)
        ]

    async def _witnessed(self, bodies: list[Decision], head: Head) -> list[Decision]:
        """The decisions on top of `head`, which their parameters may want to be witnessed. Raises `Unavailable`."""
        fact = await log_tables.read_fact(self._pool, f"parameters/{bodies[0].parameters}") if bodies else None
        if not isinstance(fact, ParametersFact) or fact.witnesses is None:
            return bodies
        note = await self._witnesses.cosign(head, fact.witnesses)
        return [replace(body, input=replace(body.input, witnessed=note)) for body in bodies]
