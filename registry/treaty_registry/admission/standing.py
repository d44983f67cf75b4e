"""The standing of DIDs, in memory: what the quotas ask for every statement.

Standing is a principal's, and changes when an epoch is decided: `refresh` then reads the newest roll as the projection has it
(`projection.rolls`), and who speaks for whom. What is granted in an epoch counts from the next one on.
"""

from __future__ import annotations

from ..storage.postgres import Pool

_ROLL = "select principal, standing from principals where standing > 0"
_GRANTED = """
select distinct on (grantee) grantee, standing from grants join principals on principal = namespace order by grantee, index
"""


class Standings:
    """For one event loop."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[str, int] = {}

    def of(self, did: str) -> int:
        """The standing of whom a DID speaks for, in units of 1 / ONE of a full credit; 0 for anybody unknown."""
        return self._known.get(did, 0)

    async def refresh(self) -> None:
        """Read the newest roll. Raises what asyncpg raises; then what was known stays."""
        known = {row["grantee"]: row["standing"] for row in await self._pool.fetch(_GRANTED)}
        for row in await self._pool.fetch(_ROLL):
            known.update(dict.fromkeys(_roots(row["principal"]), row["standing"]))
        self._known = known


def _roots(principal: str) -> list[str]:
    """The DIDs that a principal is by itself: of a domain (open electorate) its root DIDs, else (development) the one it is."""
    return [principal] if principal.startswith("did:") else [f"did:{method}:{principal}" for method in ("wba", "web")]
