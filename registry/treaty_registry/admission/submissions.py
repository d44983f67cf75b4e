"""Take submissions and return receipts.

A submission from the network waits for its turn (`fair_queue`), is examined (`statements`), and goes to the sequencer. A
submission of this process itself (`source` is None) does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from treaty_consensus.errors import TreatyError
from treaty_consensus.log.proof import ReceiptWriter
from treaty_consensus.statement import Statement, Verified
from treaty_io import tracing

from ..log.entry import Logged
from ..log.proposals import LogPosition, Proposal
from ..log.reader import LogReader
from ..log.sequencer import Sequencer, unavailable
from ..telemetry.request import note_statement
from .fair_queue import FairQueue
from .statements import Admission


class Submissions:
    """Submissions of statements and uploads. Safe for concurrent use on one event loop."""

    def __init__(self, admission: Admission, queue: FairQueue, sequencer: Sequencer, reader: LogReader) -> None:
        self._admission = admission
        self._queue = queue
        self._sequencer = sequencer
        self._reader = reader

    async def submit(self, leaves: Sequence[bytes], source: str | None) -> list[Logged | TreatyError]:
        """Log statements that came from the IP address `source`. Returns one result per leaf, in order; leaves are judged
        independently.

        Raises `Unavailable` when quotas or full queues refuse all of them.
        """
        with tracing.span("admit", treaty_leaves=len(leaves)):
            return await self._submit(leaves, source)

    async def _submit(self, leaves: Sequence[bytes], source: str | None) -> list[Logged | TreatyError]:
        self._sequencer.check()  # fail early, before a query to a database that does not answer
        reserved = self._admission.charge(source, len(leaves))
        if source is None:
            return await self._log(leaves, None, reserved)
        answers: list[Logged | TreatyError] = []
        while len(answers) < len(leaves):
            # A turn may grant fewer leaves than were sent. The rest has begun, so it is not refused: the sender could
            # not tell which leaves are logged.
            rest = leaves[len(answers) :]
            async with self._queue.turn(source, len(rest), begun=bool(answers)) as granted:
                answers += await self._log(rest[:granted], source, reserved)
        return answers

    async def upload(self, sha256: str, leaf: bytes, data: bytes, source: str | None) -> bool:
        """Do the same as `Admission.take_upload`, after waiting for a turn. Raises `Unavailable` too."""
        self._sequencer.check()
        if source is None:
            return await self._admission.take_upload(sha256, leaf, data, None)
        async with self._queue.turn(source, 1):
            return await self._admission.take_upload(sha256, leaf, data, source)

    def charge_service(self, source: str | None) -> None:
        """Charge one request to the Sigstore services. The quotas are small, so these requests need no turns.

        Raises `Unavailable` (`quota.*`, and as `Sequencer.check`).
        """
        self._sequencer.check()
        if source is not None:
            self._admission.charge_service(source)

    async def _log(self, leaves: Sequence[bytes], source: str | None, reserved: bool) -> list[Logged | TreatyError]:
        with tracing.span("examine", treaty_leaves=len(leaves)):
            examined = await self._admission.examine(leaves, source, reserved=reserved)
        proposals = [
            Proposal(leaf, item.verdict, item.handler) if isinstance(item.verdict, Verified) else None
            for leaf, item in zip(leaves, examined, strict=True)
        ]
        positions = iter(await self._sequencer.submit([proposal for proposal in proposals if proposal]))
        outcomes: list[LogPosition | TreatyError] = []
        for item in examined:
            outcomes.append(item.verdict if isinstance(item.verdict, TreatyError) else next(positions))
        return await self._answers([item.statement for item in examined], outcomes)

    async def _answers(
        self, statements: Sequence[Statement | None], outcomes: Sequence[LogPosition | TreatyError]
    ) -> list[Logged | TreatyError]:
        """Add receipts: for new leaves, and for statements that were refused now but are in the log already."""
        # Read after the results, so it covers every leaf among them.
        head = self._sequencer.head
        # A sender that lost the first answer sends again, and the rules refuse the repetition. It then gets the
        # receipt.
        refused = [s.id for s, outcome in zip(statements, outcomes, strict=True) if s and isinstance(outcome, TreatyError)]
        committed = await self._reader.index_of(refused, None) if refused else {}
        logged = {signed: index for signed, index in committed.items() if index < head.size}
        indexes = [outcome.index for outcome in outcomes if isinstance(outcome, LogPosition) and outcome.proof is None]
        receipts = await self._reader.receipts({*indexes, *logged.values()}, head) if indexes or logged else {}
        answers: list[Logged | TreatyError] = []
        writers: dict[bytes, ReceiptWriter] = {}  # by checkpoint: most positions of a request are of one commit
        for signed, outcome in zip(statements, outcomes, strict=True):
            if isinstance(outcome, LogPosition):
                assert signed is not None
                note_statement(signed.id)
                if outcome.proof is None:
                    receipt = receipts[outcome.index]
                else:
                    note = outcome.signed.note
                    writer = writers.get(note) or writers.setdefault(note, ReceiptWriter(note))
                    receipt = writer.write(outcome.index, outcome.proof)
                answers.append(Logged(signed.id, outcome.index, outcome.proof is not None, receipt))
            elif signed is not None and signed.id in logged:
                index = logged[signed.id]
                answers.append(Logged(signed.id, index, False, receipts[index]))
            # Another process has logged it, and this one has not seen that head. The refusal may follow from later leaves, and
            # its sender would take it for final.
            elif signed is not None and signed.id in committed:
                answers.append(unavailable())
            else:
                answers.append(outcome)
        return answers
