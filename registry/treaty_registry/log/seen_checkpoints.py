"""Compare the checkpoints in reports and ballots with this log, to detect a fork.

Every report and ballot carries a checkpoint that its author has seen. If this log's key signed it, but it does not belong to
this log's history, the log was forked: someone else has the key, or an old backup was restored. The evidence is then logged as
critical, with a proof that others can check when there is one (`treaty_consensus.log.equivocation`). The statement is refused,
because the rules of the log do not accept such a checkpoint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import structlog

from treaty_consensus.errors import Untrusted
from treaty_consensus.kinds import Ballot, Body, Report
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint
from treaty_consensus.log.equivocation import Equivocation

from ..codes import RegistryLogCode
from ..telemetry.measures import FORKS
from .checkpoints import Head
from .reader import LogReader

_REMEMBERED = 4_096  # checked checkpoints, because many statements carry the same one

_log = structlog.get_logger(__name__)


class SeenCheckpoints:
    """Compares checkpoints with the log. Used from one event loop."""

    def __init__(self, keys: Callable[[], LogKeys], reader: LogReader, head: Callable[[], Head]) -> None:
        self._keys = keys
        self._reader = reader
        self._head = head
        self._consistent: OrderedDict[str, None] = OrderedDict()

    def knows(self, body: Body) -> bool:
        """Whether a body carries no checkpoint, or one that was found to be of this log's history."""
        # Only consistent checkpoints are remembered, so each sighting of a fork is checked and logged.
        return not isinstance(body, Ballot | Report) or body.seen_checkpoint in self._consistent

    async def check(self, body: Body) -> None:
        """Check the checkpoint that a body carries, if its type carries one.

        Raises `Malformed` or `TooLarge` when it is not a checkpoint, and `Untrusted` when this log's key did not sign it or it
        does not belong to this log's history.
        """
        if self.knows(body) or not isinstance(body, Ballot | Report):
            return
        # By any key that the log had: it only has to be of this history. During an overlap it may name the earlier key alone.
        signed = self._keys().open_by_any(body.seen_checkpoint.encode())
        seen, head = signed.checkpoint, self._head()
        if seen.size <= head.size:
            root: bytes | None = await self._reader.root_at(seen.size, head)
        else:
            # Another process may have released it: this one may have lost the lead, also without knowing it. A size that
            # the database does not have either is a fork, because this log never released it.
            root = await self._reader.committed_root(seen.size)
        if root != seen.root:
            proof = "" if root is None or seen.size > head.size else await self._proof(signed, root, head)
            evidence = {"evidence": body.seen_checkpoint, "proof": proof}
            # The operator must act, and the evidence must survive the refused statement.
            FORKS.inc()
            _log.critical("the log was forked", **evidence, size=head.size, root=head.root.hex())
            raise Untrusted(
                RegistryLogCode.FORKED,
                f"The checkpoint of {seen.size} leaves is not in this log's history, although its key signed it.",
                fix="Keep that checkpoint: it proves that the log was forked. Tell others, and the operator.",
            )
        self._consistent[body.seen_checkpoint] = None
        if len(self._consistent) > _REMEMBERED:
            self._consistent.popitem(last=False)

    async def _proof(self, seen: SignedCheckpoint, root: bytes, head: Head) -> str:
        keys, size = self._keys(), seen.checkpoint.size
        proof = () if size == head.size else tuple(await self._reader.consistency(size, head))
        try:
            equivocation = Equivocation.of(keys, seen.note, head.note, root=None if size == head.size else root, proof=proof)
        # No key signed both, because the keys were rotated in between.
        except Untrusted:
            return ""
        return equivocation.format().decode()
