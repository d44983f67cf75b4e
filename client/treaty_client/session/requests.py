"""What this side asks of the peer about the protocol while a session goes on: questions, and complaints about its code."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.printable import printable

from ..abandonable import abandonable

if TYPE_CHECKING:
    from .driver import SessionDriver


MAX_DESCRIPTION = 2000


class Requests:
    """One session's. `complaints`: how many errors were reported so far."""

    def __init__(self, driver: SessionDriver) -> None:
        self.complaints = 0
        self._driver = driver
        self._questions: dict[str, asyncio.Future[str]] = {}
        self._complaint: asyncio.Future[None] | None = None

    @property
    def is_complaining(self) -> bool:
        """Whether a complaint is not settled yet."""
        return self._complaint is not None

    async def ask(self, text: str) -> str:
        """See `session.Session.ask`."""
        driver = self._driver
        driver.check_open()
        message_id = secrets.token_urlsafe(12)  # 16 characters
        answer = self._questions[message_id] = abandonable()
        try:
            await driver.do(driver.machine.ask(message_id, text, driver.now()))
            return str(await answer)
        finally:
            del self._questions[message_id]

    def answered(self, message_id: str, text: str) -> None:
        """An answer came; one to nothing is ignored."""
        answer = self._questions.get(message_id)
        if answer is not None and not answer.done():
            answer.set_result(text)

    async def complain(self, description: str) -> None:
        """See `session.Session.complain`. Several complaints at once are one."""
        self._driver.check_open()
        if self._complaint is None:
            await self.report(description)
        if self._complaint is not None:
            await asyncio.shield(self._complaint)

    async def report(self, description: str) -> None:
        """Report an error, which `repaired` or `denied` settles. Raises `Refused` (`meta.not-agreed`; `session.no-code` where
        there is no code to complain of yet), `Malformed`, `TooLarge`."""
        driver = self._driver
        actions = driver.machine.report_error(description[:MAX_DESCRIPTION], driver.now())
        if not actions:
            raise Refused("session.no-code", "There is nothing yet that the other side could mend.")
        self.complaints += 1
        self._complaint = abandonable()
        await driver.do(actions)

    def repaired(self) -> None:
        """The peer's code was mended."""
        if self._complaint is not None:
            complaint, self._complaint = self._complaint, None
            complaint.set_result(None)

    def denied(self, reason: str) -> Refused:
        """The peer says that the fault is not its own."""
        error = Refused("negotiation.fault-denied", f"The other side denies the fault: {printable(reason, 500)}")
        self._end_complaint(error)
        return error

    def end(self, error: TreatyError) -> None:
        """The session is over."""
        self._end_complaint(error)
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(error)

    def _end_complaint(self, error: TreatyError) -> None:
        if self._complaint is not None:
            complaint, self._complaint = self._complaint, None
            complaint.set_exception(error)
