"""Build the parts of admission for one registry: the checks, the queue in front of them, and their caches.

`StandingCache` holds the standing of DIDs, because the quotas need it for every statement. Standing belongs to a principal, and
changes when an epoch is decided. `refresh` then reads the newest roll from the projection (`projection.rolls`) and the DIDs of
each principal. A grant that is made or ends in an epoch counts so from the next epoch on.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from treaty_consensus.election.principals import SuffixList
from treaty_consensus.events import certified_dids
from treaty_consensus.sigstore_leaf import RekordLeaf, parse_sigstore_leaf

from ..log.reader import LogReader
from ..log.seen_checkpoints import SeenCheckpoints
from ..log.sequencer import Sequencer
from ..settings import Quotas
from ..storage.postgres import Pool
from .content_checker import ContentChecker
from .electors import Electors
from .fair_queue import FairQueue
from .identities import Identities
from .quota import Quota
from .senders import Senders
from .statements import Admission
from .submissions import Submissions
from .uploads import Uploads
from .verifier import Verifier


class Intake:
    """The parts of admission. For one event loop. Callers use `admission`, `submissions` and `checker`."""

    def __init__(
        self,
        *,
        pool: Pool,
        origin: str,
        operator: str,
        quotas: Quotas,
        contact: str | None,
        identities: Identities,
        seen_checkpoints: SeenCheckpoints,
        uploads: Uploads,
        suffixes: Callable[[], Awaitable[SuffixList | None]],
        sequencer: Sequencer,
        reader: LogReader,
    ) -> None:
        """`origin`: of the log. `operator`: its DID. `contact`: whom refusals name. `suffixes`: see `Electors`."""
        self._standings = StandingCache(pool)
        self.senders = Senders(pool, operator, contact)
        self._electors = Electors(pool, suffixes)
        self.checker = ContentChecker()
        self._uploads = uploads
        self._verifier = Verifier()
        self.queue = line = FairQueue(time.monotonic)
        # The rates follow the capacity that this queue measures. Fixed rates were forty times too high for a small machine.
        self.quota = Quota(quotas, time.monotonic, self._standings.of, lambda: line.capacity, self.senders.factor)
        self.admission = Admission(
            pool=pool,
            origin=origin,
            operator=operator,
            queue=line,
            quota=self.quota,
            senders=self.senders,
            electors=self._electors,
            identities=identities,
            seen_checkpoints=seen_checkpoints,
            uploads=uploads,
            checker=self.checker,
            verifier=self._verifier,
        )
        self.submissions = Submissions(self.admission, line, sequencer, reader)

    async def refresh(self) -> None:
        """Read the decisions about senders, and what changes only with an epoch: standings and the electorate. Raises
        `Unavailable`."""
        await self.senders.refresh()
        await self._standings.refresh()
        await self._electors.refresh()

    def check_sigstore(self, leaf: bytes) -> None:
        """Check a Sigstore leaf. Raises `Malformed`, `TooLarge`, or `Refused` when a blocked DID signed it."""
        parsed = parse_sigstore_leaf(leaf)
        # A certificate lives for minutes, and may be older than a block.
        if isinstance(parsed, RekordLeaf):
            self.senders.check_authors(certified_dids(parsed.certificate) or ())

    def begin_stop(self) -> None:
        """Refuse all contents whose check has not begun, so that a stop takes seconds."""
        self.checker.stop()

    async def close(self) -> None:
        """End the processes and threads that check contents and signatures."""
        await self.checker.close()
        self._verifier.close()


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
        standings = {row["grantee"]: row["standing"] for row in await self._pool.fetch(_GRANTED)}
        for row in await self._pool.fetch(_ROLL):
            # After the grants: a root DID speaks for its own domain, also when another domain granted to it.
            standings.update(dict.fromkeys(_roots(row["principal"]), row["standing"]))
        # Only now, so that a failed query leaves the old values.
        self._known = standings


def _roots(principal: str) -> list[str]:
    """Return the DIDs that a principal has without a grant: the root DIDs of a domain (open electorate), or the DID itself
    (development)."""
    return [principal] if principal.startswith("did:") else [f"did:{method}:{principal}" for method in ("wba", "web")]
