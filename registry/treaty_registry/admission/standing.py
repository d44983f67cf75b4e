"""Keep the standing of DIDs in memory, because the quotas need it for every statement.

Standing belongs to a principal, and changes when an epoch is decided. `refresh` then reads the newest roll from the projection
(`projection.rolls`) and the DIDs of each principal. A grant that is made
or ends in an epoch counts so from the next epoch on.
"""

from __future__ import annotations

from ..storage.postgres import Pool

_ROLL = "select principal, standing from principals where standing > 0"
_GRANTED = """
select distinct on (grantee) grantee, standing from grants join principals on principal = namespace
where ended is null order by grantee, index
"""


class StandingCache:
    """The standing of each DID. For one event loop."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[str, int] = {}

    def of(self, did: str) -> int:
        """Return the standing of the principal of a DID, in units of 1 / ONE of a full credit; 0 for an unknown DID."""
        return self._known.get(did, 0)

    async def refresh(self) -> None:
        """Read the newest roll. Raises `Unavailable` when PostgreSQL is down; the old values are then kept."""
        known = {row["grantee"]: row["standing"] for row in await self._pool.fetch(_GRANTED)}
        for row in await self._pool.fetch(_ROLL):
            # After the grants: a root DID speaks for its own domain, also when another domain granted to it.
            known.update(dict.fromkeys(_roots(row["principal"]), row["standing"]))
        # Only now, so that a failed query leaves the old values.
        self._known = known


def _roots(principal: str) -> list[str]:
    """Return the DIDs that a principal has without a grant: the root DIDs of a domain (open electorate), or the DID itself
    (development)."""
    return [principal] if principal.startswith("did:") else [f"did:{method}:{principal}" for method in ("wba", "web")]
