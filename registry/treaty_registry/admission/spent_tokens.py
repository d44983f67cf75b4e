"""Remember the single-use tokens that the Sigstore services accepted.

`sweep` deletes the expired: tokens, and uploads that no statement named.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

import structlog

from treaty_consensus import canonical

from ..storage.postgres import Pool
from .uploads import Uploads

_SPEND = "insert into spent_tokens (token, expires) values ($1, $2) on conflict do nothing returning true"


class SpentTokens:
    """The used tokens. Safe for concurrent use, also by several processes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def spend(self, token: str, until: datetime) -> bool:
        """Return True for the first caller with this `token` (64 hex digits), in any process and after any restart; False for
        later ones.

        It may be forgotten after `until`.
        """
        # One statement decides which of several callers is first, in any number of processes.
        return bool(await self._pool.fetchval(_SPEND, bytes.fromhex(canonical.parse_digest(token)), until))

    async def expire(self) -> None:
        """Forget the tokens that have expired."""
        await self._pool.execute("delete from spent_tokens where expires < now()")


_SWEEP = 600  # seconds between two deletions

_log = structlog.get_logger(__name__)


async def sweep(uploads: Uploads, tokens: SpentTokens) -> None:
    """Delete it again and again, until cancelled. Several processes may do this at once."""
    while True:
        await asyncio.sleep(_SWEEP)
        try:
            await uploads.expire()
            await tokens.expire()
        # The next sweep tries again. The rest only costs space.
        except Exception as error:
            _log.error("expired uploads not swept", error=str(error))
