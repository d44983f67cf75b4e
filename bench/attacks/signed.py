"""Logs with real signatures: the builder is the tests' own."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from signers import NOW, Signer, domain_signer, signed
from simulated_log import ANCHORS, SUFFIX_LIST, TOPIC, LogBuilder, open_log, suffix_blob

from treaty_consensus.audit import Replay
from treaty_consensus.kinds import Body, Decision
from treaty_consensus.statement import Statement

__all__ = ["ANCHORS", "DAY", "SUFFIX_LIST", "TOPIC", "WEEK", "LogBuilder", "Signer", "domain_signer", "suffix_blob", "weekly_log"]


DAY, WEEK = 24 * 3600, 7 * 24 * 3600


def weekly_log() -> ClockedLog:
    """Return a log with an open electorate, whose epochs are weeks; the agents are the anchors."""
    log = ClockedLog(replace(open_log().parameters, epoch_seconds=WEEK), replay=Replay(suffix_blob))
    log.agents = tuple(map(domain_signer, ANCHORS))
    return log


class ClockedLog(LogBuilder):
    """A log whose clock is told: `now`. An epoch opened at `opened`."""

    def __post_init__(self) -> None:
        self.now = self.opened = NOW
        super().__post_init__()

    def add(self, body: Body, *signers: Signer) -> Statement:
        """Sign, check and append a statement of this second."""
        made = signed(body, *signers, issued=self.now)
        self.append(made.leaf)
        return made

    def close(self, seconds: int = WEEK) -> list[Decision]:
        """Close the epoch after its `seconds`."""
        self.now = self.opened = self.opened + seconds
        return super().close()
