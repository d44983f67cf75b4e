"""A session from its connection to its end, on either side: made, driven, settled, recorded and, where it failed, escalated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from treaty_consensus.errors import TreatyError

from .. import durable
from ..meta.transcript import TranscriptRecorder
from ..negotiation.negotiator import SideName
from ..transport.connection import Connection
from .driver import SessionDriver
from .escalation import ESCALATED, Escalation
from .household import Household
from .opening import Offer, Wish, make_offer, open_destination, open_source
from .publishing import settle
from .session import Session
from .sides import Destination, Source

Dial: TypeAlias = Callable[[], Awaitable[Connection]]
"""Opens a connection to the address at hand."""

MAX_TALKS = 1024 * 1024
"""Bytes of a transcript that is kept for an escalation alone."""

_log = logging.getLogger(__name__)


async def serve(household: Household, connection: Connection) -> None:
    """Answer whoever is at the other end, until the session is over. What a person is asked about it afterwards goes on alone."""
    recorder = _recorder(household)
    machine = open_destination(household, recorder, now=asyncio.get_running_loop().time())
    driver = SessionDriver(connection, machine, [], Destination(household, connection.peer))
    await driver.run()
    # Only what was considered here is worth a person's time: a stranger must not be able to call for one at no cost.
    if _is_escalated(household, driver) and driver.negotiation.peer_proposal and household.pager.may_ask():
        household.begin(_escalate_here(household, _escalation(driver, recorder)))
    await _finish(household, driver, recorder)


@asynccontextmanager
async def visit(household: Household, dial: Dial, address: str, wish: Wish, role: str, *, again: bool) -> AsyncIterator[Session]:
    """A session with the agent at an address. `again`: it may be dialled once more, for what a person decides. Raises
    `TreatyError`."""
    offer = await make_offer(household, address, wish)
    for last in (not again, True):
        visitor = _Visitor(household, await dial(), address, wish, offer, role)
        try:
            try:
                await visitor.ready()
            except TreatyError:
                if await visitor.is_resumed() and not last:
                    continue
                raise
            yield Session(visitor.driver, visitor.recorder)
            await settle(household, visitor.driver)
            return
        finally:
            await visitor.end()


class _Visitor:
    """The side that connected, for one session."""

    def __init__(self, household: Household, connection: Connection, address: str, wish: Wish, offer: Offer, role: str) -> None:
        self.recorder = _recorder(household)
        self._household, self._offer, self._place = household, offer, (address, wish.key)
        machine, first = open_source(household, wish, offer, self.recorder, now=asyncio.get_running_loop().time())
        opening = household.openings.pop(self._place, "")
        side = Source(household, address=address, wish=wish, offer=offer, role=role, opening=opening)
        early = (offer.known, offer.remembered.did) if offer.known and offer.remembered else None
        self.driver = SessionDriver(connection, machine, first, side, early=early)
        self._waits = early is None
        self._task = asyncio.create_task(self.driver.run())

    async def ready(self) -> None:
        """Wait until both sides are ready, unless an agreement is remembered. Raises `TreatyError`."""
        if self._waits:
            await self.driver.running

    async def is_resumed(self) -> bool:
        """Whether a person knows how to go on, after a negotiation that failed."""
        await self._task
        if not _is_escalated(self._household, self.driver):
            return False
        text = await _ask_person(self._household, _escalation(self.driver, self.recorder))
        if text:
            self._household.openings[self._place] = text
        return bool(text)

    async def end(self) -> None:
        """Leave, if the session is not over, and wait for its end."""
        self.driver.leave()
        await self._task
        await _finish(self._household, self.driver, self.recorder)
        if self._offer.remembered and not self.driver.was_running:
            self._household.agreements.forget(*self._place)


def _recorder(household: Household) -> TranscriptRecorder | None:
    if household.transcripts is not None:
        return TranscriptRecorder()
    if household.on_escalation is not None:
        return TranscriptRecorder(limit=MAX_TALKS, only_talks=True)
    return None


async def _finish(household: Household, driver: SessionDriver, recorder: TranscriptRecorder | None) -> None:
    """Write SIDE-MESSAGEID.jsonl, named by this side's own Hello: nothing that a peer chooses."""
    if recorder is None:
        return
    data = recorder.transcript()
    recorder.close()
    if household.transcripts is not None:
        path = household.transcripts / f"{_side(driver)}-{driver.machine.own.message_id}.jsonl"
        try:
            await asyncio.to_thread(durable.write, path, data, mode=0o600)
        except OSError as error:
            _log.warning("A transcript cannot be written: %s", error)


def _is_escalated(household: Household, driver: SessionDriver) -> bool:
    error = driver.machine.error
    return household.on_escalation is not None and error is not None and error.code in ESCALATED


async def _escalate_here(household: Household, escalation: Escalation) -> None:
    """Ask a person at the destination; what they want is accepted when it is proposed."""
    try:
        text = await _ask_person(household, escalation)
        if text:
            household.approvals.add(text)
    except OSError as error:
        _log.warning("What a person approved of cannot be written down: %s", error)
    finally:
        household.pager.asked()


async def _ask_person(household: Household, escalation: Escalation) -> str:
    assert household.on_escalation is not None
    try:
        return await household.on_escalation(escalation) or ""
    except Exception:  # foreign to this library; without an answer it is as if there were no person
        _log.exception("on_escalation raised")
        return ""


def _escalation(driver: SessionDriver, recorder: TranscriptRecorder | None) -> Escalation:
    return Escalation(
        side=_side(driver),
        peer=driver.machine.peer.source_did if driver.machine.peer else "",
        reason=driver.error.message,
        own_proposal=driver.negotiation.own_proposal,
        peer_proposal=driver.negotiation.peer_proposal,
        transcript=recorder.transcript() if recorder else b"",
    )


def _side(driver: SessionDriver) -> SideName:
    return "source" if driver.machine.is_source else "destination"
