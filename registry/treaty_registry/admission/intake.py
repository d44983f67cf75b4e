"""Build the parts of admission for one registry: the checks, the queue in front of them, and their caches."""

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
from .standing import StandingCache
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
