"""Remember the single-use tokens that the Sigstore services accepted."""

from __future__ import annotations

from datetime import datetime

from treaty_consensus import canonical

from ..storage.postgres import Pool

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
