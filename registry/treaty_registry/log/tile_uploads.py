"""Publish the log in its copies (`tile_copy`): every two seconds the newest published head, if this process leads.

The log does not depend on that, only on the leaves that receipts promise (`tile_copies`). A store that fails is tried again, and
its failure is logged when it starts or changes its kind.
"""

from __future__ import annotations

import asyncio

import structlog
from obstore.exceptions import BaseError

from treaty_consensus.errors import TreatyError

from ..storage.postgres import DATABASE_ERRORS
from .leader import Leader
from .tile_copies import TileCopies
from .tile_copy import TileCopy

_PERIOD = 2.0  # seconds between two copies: the partial tiles of heads in between are never made

_log = structlog.get_logger(__name__)


class TileUploads:
    """The uploads to all copies of one log. For one event loop; call `run` once."""

    def __init__(self, copies: TileCopies, leader: Leader) -> None:
        self._copies = copies
        self._leader = leader

    async def run(self) -> None:
        """Copy every published head while this process leads, until cancelled."""
        await asyncio.gather(*map(self._follow, self._copies.copies))

    async def _follow(self, copy: TileCopy) -> None:
        copied, reported = b"", ""
        while True:
            await asyncio.sleep(_PERIOD)
            head = self._leader.head
            if head is None or not self._leader.leads or head.published.note == copied:
                continue
            try:
                await copy.publish(head.published)
                copied, reported = head.published.note, ""
            # Nothing here may end this task.
            except Exception as error:
                if reported != (reported := f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"):
                    is_expected = isinstance(error, (TreatyError, BaseError, *DATABASE_ERRORS))
                    _log.error(
                        "the log was not copied", store=copy.place, error=reported, exc_info=None if is_expected else error
                    )
