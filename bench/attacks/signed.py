"""Logs with real signatures: the builder is the tests' own."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from signers import NOW, Signer, domain_signer, signed
from simulated_log import ANCHORS, SUFFIX_LIST, TOPIC, LogBuilder, open_log, suffix_blob

from treaty_consensus.kinds import Body, Decision
from treaty_consensus.statement import Statement

__all__ = ["ANCHORS", "SUFFIX_LIST", "TOPIC", "ClockedLog", "LogBuilder", "Signer", "domain_signer", "open_log", "suffix_blob"]


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

    def close(self, seconds: int | None = None) -> list[Decision]:
        """Close the epoch after its `seconds`."""
        self.now = self.opened = self.opened + (seconds or 0)
        return super().close()
