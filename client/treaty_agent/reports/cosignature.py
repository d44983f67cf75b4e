"""Exchange the report messages of one session: a proposal, and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_io.abandonable import abandonable
from treaty_io.codes import ClientReportCode, MetaCode


class CosignatureExchange:
    """Exchange the report messages of one session. `send`: send a message to the peer. `answer`: return the answer to a proposal;
    never raises. `seconds`: for an answer of either side."""

    def __init__(
        self,
        send: Callable[[ReportCosignature], None],
        answer: Callable[[ReportProposed], Awaitable[ReportCosignature]],
        seconds: float,
    ) -> None:
        self._send, self._answer, self._seconds = send, answer, seconds
        self._proposed: asyncio.Future[ReportCosignature] | None = None
        self._answering: asyncio.Task[None] | None = None
        # The proposals whose answers this side does not wait for any more.
        self._given_up = 0

    async def propose(self, proposal: ReportProposed) -> ReportCosignature:
        """Propose, and return the answer. Raises `Unavailable` (`report.not-checked`), or the error that ended the session."""
        self._proposed = answer = abandonable()
        self._send(proposal)
        try:
            # A peer that never answers must not hold the end of the session.
            async with asyncio.timeout(self._seconds):
                signed: ReportCosignature = await answer
                return signed
        except TimeoutError as error:
            self._given_up += 1
            raise Unavailable(ClientReportCode.NOT_CHECKED, "The other side did not answer the proposed report.") from error
        finally:
            self._proposed = None

    def take(self, message: ReportCosignature) -> None:
        """Handle a message of the peer. Raises `Refused` (`meta.message`) for an answer without a proposal."""
        if isinstance(message, ReportProposed):
            # One proposal at a time: a peer must not start any number of checks.
            if self._answering is not None and not self._answering.done():
                self._send(ReportRefused(ClientReportCode.NOT_CHECKED))
            else:
                self._answering = asyncio.create_task(self._reply(message))
        elif self._proposed is not None and not self._proposed.done():
            self._proposed.set_result(message)
        elif self._given_up:
            self._given_up -= 1  # the answer came too late
        else:
            raise Refused(MetaCode.MESSAGE, "The other side answered a report that was not proposed.")

    def end(self, error: TreatyError) -> None:
        """Fail the open proposal with the error that ended the session."""
        if self._answering is not None:
            # A check that is under way would answer into a closed session.
            self._answering.cancel()
        if self._proposed is not None and not self._proposed.done():
            self._proposed.set_exception(error)

    async def _reply(self, proposal: ReportProposed) -> None:
        try:
            # The other side gives its proposal up, and the next one must not find this side busy.
            async with asyncio.timeout(self._seconds):
                answer = await self._answer(proposal)
        except TimeoutError:
            answer = ReportRefused(ClientReportCode.NOT_CHECKED)
        self._send(answer)
