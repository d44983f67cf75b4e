"""Checkpoints that come back: every report and ballot carries one that its author has seen.

A checkpoint with our key's signature that is not of our own log's past proves that this log was forked, by whoever holds the
key or by a restored backup. It is recorded loudly, where there is one with a proof that others can check
(`treaty_consensus.log.equivocation`), and the statement that brought it is refused, as a log cannot hold evidence against itself
in a form that this log's rules would accept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import structlog

from treaty_consensus.errors import Untrusted
from treaty_consensus.kinds import Ballot, Body, Report
from treaty_consensus.log.checkpoint import SignedCheckpoint, open_checkpoint
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.log.note import VerifierKey

from .checkpoints import Head
from .reader import LogReader

_REMEMBERED = 4_096

_log = structlog.get_logger(__name__)


class Gossip:
    """Compares checkpoints with the log. Used from one event loop."""

    def __init__(self, log_key: VerifierKey, reader: LogReader, head: Callable[[], Head]) -> None:
        self._log_key = log_key
        self._reader = reader
        self._head = head
        self._consistent: OrderedDict[str, None] = OrderedDict()

    async def check(self, body: Body) -> None:
        """Check the checkpoint that a body carries, if its type carries one.

        Raises `Malformed` or `TooLarge` when it is none, `Untrusted` when it is not signed by this log's key or not of its past.
        """
        if not isinstance(body, Ballot | Report) or body.seen_checkpoint in self._consistent:
            return
        signed = open_checkpoint(body.seen_checkpoint.encode(), self._log_key)
        seen, head = signed.checkpoint, self._head()
        root = await self._reader.root_at(seen.size, head) if seen.size <= head.size else None
        if root != seen.root:
            proof = "" if root is None else await self._proof(signed, root, head)
            evidence = {"evidence": body.seen_checkpoint, "proof": proof}
            _log.critical("the log was forked", **evidence, size=head.size, root=head.root.hex())
            raise Untrusted(
                "log.forked",
                f"The checkpoint of {seen.size} leaves in the statement is not of this log's past, though its key signed it.",
                fix="Keep that checkpoint: it proves that the log was forked. Tell others, and the operator.",
            )
        self._consistent[body.seen_checkpoint] = None
        if len(self._consistent) > _REMEMBERED:
            self._consistent.popitem(last=False)

    async def _proof(self, seen: SignedCheckpoint, root: bytes, head: Head) -> str:
        if seen.checkpoint.size == head.size:
            made = Equivocation.of(self._log_key, seen.note, head.note)
        else:
            proof = tuple(await self._reader.consistency(seen.checkpoint.size, head))
            made = Equivocation.of(self._log_key, seen.note, head.note, root=root, proof=proof)
        return made.format().decode()
