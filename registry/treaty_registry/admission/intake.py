"""Build the parts of admission for one registry: the checks, the queue in front of them, and their caches."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from treaty_consensus.election.principals import SuffixList

from ..catalogue.readers import ReaderKind
from ..log.reader import LogReader
from ..log.seen_checkpoints import SeenCheckpoints
from ..log.sequencer import Sequencer
from ..settings import Quotas
from ..storage.postgres import Pool
from .content_checker import ContentChecker
from .contents import check_digests
from .electors import Electors
from .fair_queue import FairQueue
from .identities import Identities
from .quota import Quota
from .standing import StandingCache
from .statements import Admission
from .submissions import Submissions
from .uploads import Uploads
from .verifier import Verifier


class Intake:
    """The parts of admission. For one event loop. Callers use `admission` and `submissions`."""

    def __init__(
        self,
        *,
        pool: Pool,
        origin: str,
        operator: str,
        quotas: Quotas,
        identities: Identities,
        seen_checkpoints: SeenCheckpoints,
        uploads: Uploads,
        suffixes: Callable[[], Awaitable[SuffixList | None]],
        sequencer: Sequencer,
        reader: LogReader,
    ) -> None:
        """`origin`: of the log. `operator`: its DID. `suffixes`: see `Electors`."""
        self._standings = StandingCache(pool)
        self._electors = Electors(pool, suffixes)
        self._checker = ContentChecker()
        self._uploads = uploads
        self._verifier = Verifier()
        self.queue = line = FairQueue(time.monotonic)
        self.admission = Admission(
            pool=pool,
            origin=origin,
            operator=operator,
            queue=line,
            # The rates follow the capacity that this queue measures. Fixed rates were forty times too high for a
            # small machine.
            quota=Quota(quotas, time.monotonic, self._standings.of, lambda: line.capacity),
            electors=self._electors,
            identities=identities,
            seen_checkpoints=seen_checkpoints,
            uploads=uploads,
            checker=self._checker,
            verifier=self._verifier,
        )
        self.submissions = Submissions(self.admission, line, sequencer, reader)

    @property
    def queues(self) -> dict[str, FairQueue]:
        """Return the queues of statements and of checks of contents."""
        return {"admission": self.queue, "contents": self._checker.queue}

    @property
    def processes(self) -> dict[str, int]:
        """Return how many processes that check contents are `idle`, and how many are `busy`."""
        return self._checker.processes

    async def read(self, kind: ReaderKind, name: str, digests: Sequence[str], source: str) -> bytes:
        """Run a reader on logged blobs. `source`: an IP address. Raises as `ContentChecker.read` and `Uploads.served`."""

        async def load() -> list[bytes]:
            contents = {digest: await self._uploads.served(digest) for digest in digests}
            check_digests(contents)
            return [contents[digest] for digest in digests]

        return await self._checker.read(kind, name, load, source)

    async def refresh(self) -> None:
        """Read the data that change only with an epoch: standings and the electorate. Raises `Unavailable`."""
        await self._standings.refresh()
        await self._electors.refresh()

    def begin_stop(self) -> None:
        """Refuse all contents whose check has not begun, so that a stop takes seconds."""
        self._checker.stop()

    async def close(self) -> None:
        """End the processes and threads that check contents and signatures."""
        await self._checker.close()
        self._verifier.close()
