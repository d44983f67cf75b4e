"""The exchange of report messages over a running session: one proposal at a time in each direction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from treaty_consensus.errors import Refused, TreatyError, Unavailable

from ..abandonable import abandonable
from ..meta.messages import ReportCosignature, ReportProposed, ReportRefused


class CosignatureExchange:
    """For one session. `send`: posts a message to the peer. `answer`: what to say to a proposal; never raises."""

    def __init__(
        self,
        send: Callable[[ReportCosignature], None],
        answer: Callable[[ReportProposed], Awaitable[ReportCosignature]],
        seconds: float,
    ) -> None:
        self._send, self._answer, self._seconds = send, answer, seconds
        self._proposed: asyncio.Future[ReportCosignature] | None = None
        self._answering: asyncio.Task[None] | None = None

    async def propose(self, proposal: ReportProposed) -> ReportCosignature:
        """Propose, and wait for the answer. Raises `Unavailable` (`report.no-answer`), or what ended the session."""
        self._proposed = abandonable()
        self._send(proposal)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._proposed
        except TimeoutError as error:
            raise Unavailable("report.no-answer", "The other side did not answer the proposed report.") from error
        finally:
            self._proposed = None

    def take(self, message: ReportCosignature) -> None:
        """A message of the peer's. Raises `Refused` (`meta.unexpected`) for an answer to nothing."""
        if isinstance(message, ReportProposed):
            if self._answering is not None and not self._answering.done():
                self._send(ReportRefused("report.busy"))
            else:
                self._answering = asyncio.create_task(self._reply(message))
        elif self._proposed is not None and not self._proposed.done():
            self._proposed.set_result(message)
        else:
            raise Refused("meta.unexpected", "The other side answers a report that was not proposed.")

    def end(self, error: TreatyError) -> None:
        """The session is over."""
        if self._answering is not None:
            self._answering.cancel()
        if self._proposed is not None and not self._proposed.done():
            self._proposed.set_exception(error)

    async def _reply(self, proposal: ReportProposed) -> None:
        self._send(await self._answer(proposal))
