"""Log the constants of the election: with the genesis of a new log, and later for another epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from treaty_consensus.errors import TreatyError
from treaty_consensus.statement import Verified

from ..admission.uploads import Uploads
from ..keys import Operator
from ..log.proposals import Proposal
from ..log.sequencer import Sequencer
from ..storage.postgres import Pool
from .parameters import Announced, ParametersDraft, ParametersStatus, read_parameters_status


class Announcements:
    """The operator's statements about the election's constants. Safe for concurrent use."""

    def __init__(
        self, *, pool: Pool, uploads: Uploads, operator: Operator, sequencer: Sequencer, clock: Callable[[], datetime]
    ) -> None:
        self._pool = pool
        self._uploads = uploads
        self._operator = operator
        self._sequencer = sequencer
        self._clock = clock

    async def status(self) -> ParametersStatus:
        """Return the parameters in force, the announced ones, and the time when the open epoch closes."""
        return await read_parameters_status(self._pool)

    async def announce(self, draft: ParametersDraft) -> Announced:
        """Log parameters that hold from a later epoch on, or that take the announced ones back.

        Raises the errors of `Draft.check`, `Refused` (`parameters.amendment`), and `Unavailable`.
        """
        await asyncio.to_thread(draft.check)
        verified = await self._state(draft)
        (position,) = await self._sequencer.submit([Proposal(verified.statement.leaf, verified)])
        if isinstance(position, TreatyError):
            raise position
        status = await self.status()
        statement_id = verified.statement.id
        if status.in_force.statement == statement_id:  # an epoch has closed meanwhile
            return Announced(statement_id, position.index, status.epoch, None)
        is_pending = status.announced is not None and status.announced.statement == statement_id
        epoch = status.epoch + 1 if is_pending and status.holds is None else None
        return Announced(statement_id, position.index, epoch, status.holds if is_pending else None)

    async def begin(self, draft: ParametersDraft) -> None:
        """Log the first two leaves of a new log: its genesis and the constants of its election."""
        if self._sequencer.head.size:
            return
        genesis = self._operator.state(self._operator.genesis(), issued=self._clock())
        parameters = await self._state(draft)
        async with self._sequencer.exclusive() as writer:
            # Another node may have begun the log meanwhile.
            if not writer.head.size:
                # One commit: no log has a genesis without parameters.
                await writer.append([genesis, parameters])

    async def _state(self, draft: ParametersDraft) -> Verified:
        for digest, data in draft.blobs.items():
            # The blob first: a statement must not name bytes that are not here.
            await self._uploads.hold_own(digest, data)
        return self._operator.state(draft.parameters, issued=self._clock())
