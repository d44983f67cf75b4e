"""Read the statements that the witnesses of this log stamped (`treaty_consensus.stamped`), and log them.

Each minute the new ones are submitted like those of any sender, so a voter whom the registry does not hear gets through by a
witness. Each witness counts as a network of its own, so a flood through one delays no other sender. A refused statement is passed
over: its sender has to send a right one.

When an epoch closes, all boxes are read from their beginning (`read`), because a refusal may have been of that moment: an earlier
ballot was missing, a quota was used up. What the log would take is logged then (`decisions`), without quotas.

Nothing is stored here. A restart reads all boxes again, and statements that are logged are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httpx
import structlog

from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import StampCode, WitnessCode
from treaty_consensus.errors import TooLarge, TreatyError, Unavailable
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.stamped import MAX_PAGE, Stamped, read_page
from treaty_consensus.statement import Statement
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network

from ..admission.submissions import Submissions
from ..log.leader import Leader
from ..log.reader import LogReader
from ..log.seen_checkpoints import SeenCheckpoints
from ..settings import WitnessName

_PERIOD = 60.0  # seconds between two readings
_PATIENCE = 30.0  # seconds for a whole box: an epoch does not close meanwhile
_MOST = 32 * 1024 * 1024
"""Bytes of all statements of a box, twice what our witness keeps: another one must not fill the memory."""
_PAGES = 1024  # of a box: pages without a statement must end too
_ATTEMPTS = 5  # readings in which the same statements may meet a quota that is used up
_NETWORK = "100:0:{:x}::1"
"""The address of the senders behind a witness. No sender has one of 100::/8, which the IETF has reserved."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Waiting:
    """The statements in the boxes that are not logged. `unread`: witnesses whose box could not be read."""

    statements: Sequence[Statement] = ()
    unread: frozenset[VerifierKey] = frozenset()


class WitnessBoxes:
    """The boxes of all witnesses of one log. For one event loop; call `run` once, and `close` at the end."""

    def __init__(
        self,
        witnesses: Sequence[WitnessName],
        origin: str,
        network: Network,
        leader: Leader,
        reader: LogReader,
        submissions: Submissions,
        seen_checkpoints: SeenCheckpoints,
    ) -> None:
        """`origin`: of the log."""
        self._http = network.client(timeout=_PATIENCE)
        self._leader = leader
        self._reader = reader
        self._submissions = submissions
        self._seen_checkpoints = seen_checkpoints
        # By URL: a witness with two keys has one box.
        named = {witness.url: [each.key for each in witnesses if each.url == witness.url] for witness in witnesses}
        self._boxes = [_Box(url, origin, keys, number) for number, (url, keys) in enumerate(named.items())]

    async def run(self) -> None:
        """Submit what is new in the boxes, each minute while this process leads, until cancelled."""
        while self._boxes:
            await asyncio.sleep(_PERIOD)
            if self._leader.leads:
                await self.forward()

    async def forward(self) -> None:
        """Submit what is new in the boxes. Failures are logged."""
        await asyncio.gather(*map(self._forward, self._boxes))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def read(self) -> Waiting:
        """Return all statements in the boxes that are not logged and carry no checkpoint of another history."""
        read = await asyncio.gather(*(box.read(self._http) for box in self._boxes))
        unread = frozenset(key for box, page in zip(self._boxes, read, strict=True) if page is None for key in box.keys)
        waiting = []
        # Once, though several witnesses have it.
        for statement in await self._missing(each for page in read for each in page or ()):
            # The log takes no statement with a checkpoint of another history, and auditors do not ask for it.
            try:
                await self._seen_checkpoints.check(statement.body)
            except TreatyError:
                continue
            waiting.append(statement)
        return Waiting(waiting, unread)

    async def _forward(self, box: _Box) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                while (page := await box.following(self._http)) is not None:
                    leaves = [statement.leaf for statement in await self._missing(page)]
                    outcomes = await self._submissions.submit(leaves, box.network) if leaves else []
                    if not box.passed(is_busy=any(isinstance(outcome, Unavailable) for outcome in outcomes)):
                        return
        # No failure of a witness or of the database may end this work; the next reading tries again.
        except Exception as error:
            box.report(error)

    async def _missing(self, stamped: Iterable[Stamped]) -> list[Statement]:
        distinct = [*{each.leaf: each.statement for each in stamped}.values()]
        logged = await self._reader.index_of([each.id for each in distinct], None) if distinct else {}
        return [each for each in distinct if each.id not in logged]


class _Box:
    """The box of one witness. `network`: the address that stands for its senders."""

    def __init__(self, url: str, origin: str, keys: Sequence[VerifierKey], number: int) -> None:
        self.keys = keys
        self.network = _NETWORK.format(number)
        self._url = f"{url}/{hex_digest(origin.encode())}/statements"
        self._next = self._after = 0  # the first number that was not submitted, and the one after the page that is submitted
        self._attempts = 0
        self._failure = ""

    async def read(self, http: BoundedClient) -> list[Stamped] | None:
        """Return all statements, or None when they cannot be read now; this is logged."""
        try:
            async with asyncio.timeout(_PATIENCE):
                statements = await self._read(http)
        # Whatever a witness does, it keeps no epoch open.
        except Exception as error:
            self.report(error)
            return None
        return statements

    async def _read(self, http: BoundedClient) -> list[Stamped]:
        statements: list[Stamped] = []
        start = size = 0
        for _ in range(_PAGES):
            following, stamped = await self._page(http, start)
            if following <= start:
                return statements
            statements += stamped
            start, size = following, size + sum(len(each.leaf) + len(each.stamp) for each in stamped)
            if size > _MOST:
                break
        raise TooLarge(StampCode.FORM, f"It shows more than {_MOST} bytes of statements, or {_PAGES} pages.")

    async def following(self, http: BoundedClient) -> list[Stamped] | None:
        """Return the next statements that were not submitted; None at the end."""
        self._after, stamped = await self._page(http, self._next)
        if self._after > self._next:
            return stamped
        # Less: it lost its numbers with its old statements, and all that it has is new.
        self._next = self._after if self._after == self._next else 0
        return None

    def passed(self, *, is_busy: bool) -> bool:
        """Note that the statements of `following` were submitted; tell whether to go on. `is_busy`: some met a used-up quota, and
        are submitted again, but not for ever: those behind them wait."""
        self._attempts = self._attempts + 1 if is_busy else 0
        if 0 < self._attempts < _ATTEMPTS:
            return False
        self._next, self._attempts = self._after, 0
        return True

    def report(self, error: Exception) -> None:
        """Log a failure when it starts or changes its kind."""
        code = str(error.code) if isinstance(error, TreatyError) else type(error).__name__
        if code != self._failure:
            is_expected = isinstance(error, TreatyError | httpx.HTTPError | TimeoutError)
            _log.warning("box not read", witness=self.keys[0].name, code=code, error=str(error), exc_info=not is_expected)
        self._failure = code

    async def _page(self, http: BoundedClient, start: int) -> tuple[int, list[Stamped]]:
        """Return the number to continue at, which is not above `start` at the end, and the statements in between."""
        reply = await http.exchange(http.build_request("GET", f"{self._url}?from={start}"), limit=MAX_PAGE)
        # Other software of C2SP tlog-witness has no box, and stamps nothing.
        if reply.status == httpx.codes.NOT_FOUND:
            return start, []
        if reply.status != httpx.codes.OK or not reply.whole:
            raise Unavailable(WitnessCode.UNREACHABLE, f"It answered with status {reply.status}.")
        # In a thread: a page may have 4 MiB.
        page = await asyncio.to_thread(read_page, reply.body)
        self._failure = ""
        return page
