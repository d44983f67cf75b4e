"""Closing an epoch: from the leaves of the log to the decisions that its operator signs.

The decisions come out of the auditor's own replay, fed with the leaves from the database; so whoever replays the log later
finds the same bytes. The replay is kept from one epoch to the next and fed what was added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from treaty_consensus.audit import Replay
from treaty_consensus.kinds import Decision

from ..admission.uploads import Uploads
from ..keys import Operator
from ..log import tables as log_tables
from ..log.sequencer import Sequencer, Turn
from ..storage.postgres import Pool


@dataclass(frozen=True)
class Decided:
    """A decision that is logged: its statement id, its leaf, and what it says."""

    statement: str
    index: int
    decision: Decision


class Decisions:
    """Closes epochs, one at a time."""

    def __init__(
        self, pool: Pool, uploads: Uploads, operator: Operator, sequencer: Sequencer, clock: Callable[[], datetime]
    ) -> None:
        self._pool = pool
        self._uploads = uploads
        self._operator = operator
        self._sequencer = sequencer
        self._clock = clock
        self._replay = Replay()
        self._one_at_a_time = asyncio.Lock()

    async def close_epoch(self) -> list[Decided]:
        """Decide every topic with a report or a ballot and log the decisions in one commit.

        Empty when there is nothing to decide; then the epoch stays open. Raises `Untrusted` when the log breaks its own rules,
        `Refused` or `Unavailable`.
        """
        async with self._one_at_a_time:
            await self._catch_up(self._sequencer.head.size)  # most of the way, while others still write
            async with self._sequencer.turn() as turn:
                await self._catch_up(turn.head.size)
                return await self._log(turn)

    async def _catch_up(self, size: int) -> None:
        async for leaves in log_tables.stream_leaves(self._pool, self._replay.size, size):
            await asyncio.to_thread(self._take_in, leaves)

    def _take_in(self, leaves: Sequence[bytes]) -> None:
        for leaf in leaves:
            self._replay.append(leaf)

    async def _log(self, turn: Turn) -> list[Decided]:
        outcomes = await asyncio.to_thread(self._replay.decide)
        for body, transcript in outcomes:
            await self._uploads.hold(body.transcript.sha256, transcript)
        signed = [self._operator.state(body, issued=self._clock()) for body, _ in outcomes]
        places = await turn.append(signed)
        return [
            Decided(verified.statement.id, place.index, body)
            for verified, place, (body, _) in zip(signed, places, outcomes, strict=True)
        ]
