"""A registry's log as reports see it, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meetings import identity
from signers import NOW

from treaty_agent.reports.report_rules import OpenEpoch
from treaty_consensus import kinds, statement
from treaty_consensus.did import Did
from treaty_consensus.errors import Refused, TreatyError, Unavailable, Untrusted
from treaty_consensus.statement import Statement
from treaty_io.identity import Identity

BUYER, SHOP = identity("buyer.example"), identity("shop.example")
OPENED = NOW - 3 * 24 * 3600
CHECKPOINT = b"registry.example\n7\nAAAA\n\n\xe2\x80\x94 registry.example AAAA\n"


@dataclass
class SimulatedLog:
    """A registry's log as reports see it; `submitted` is what it accepted."""

    open_epoch: int = 4
    opened: int = OPENED
    known: dict[str, Identity] = field(default_factory=lambda: {BUYER.did: BUYER, SHOP.did: SHOP})
    submitted: list[Statement] = field(default_factory=list)
    forked: bool = False
    down: int = 0
    refuses: TreatyError | None = None

    async def epoch(self) -> OpenEpoch:
        return OpenEpoch(self.open_epoch, self.opened)

    def newest_seen(self) -> bytes:
        return CHECKPOINT

    async def observe(self, note: bytes) -> None:
        if self.forked:
            raise Untrusted("log.consistency", "The checkpoints contradict each other.")
        assert note == CHECKPOINT

    async def keys(self, did: Did) -> Mapping[str, bytes]:
        someone = self.known.get(did.text)
        if someone is None:
            raise Unavailable("egress.unreachable", "Nobody knows that DID.")
        return {someone.key_id: someone.public_key}

    async def submit(self, report: Statement) -> None:
        if self.down:
            self.down -= 1
            raise Unavailable("registry.unreachable", "The registry does not answer.")
        if self.refuses is not None:
            raise self.refuses
        body = report.body
        assert isinstance(body, kinds.Report)
        if body.epoch != self.open_epoch:
            raise Refused("report.epoch", f"The open epoch is {self.open_epoch}.")
        statement.verify(report, {someone.key_id: someone.public_key for someone in self.known.values()})
        self.submitted.append(report)
