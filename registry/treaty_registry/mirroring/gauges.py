"""Add the state of a mirror to the metrics of its process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric

from ..observation import LogState, gauge
from .mirrored_log import MirroredLog


@dataclass(frozen=True)
class MirrorState(LogState):
    """Collects the gauges of an open mirror. The age of its checkpoint is the time by which it is behind."""

    log: MirroredLog

    def gauges(self) -> Iterator[Metric]:
        """Return the gauges, on the event loop."""
        yield from super().gauges()
        yield gauge("mirror_failing", "Whether the last step of following failed.", self.log.failure is not None)
        yield gauge("mirror_stopped", "Whether the log broke a rule and is not followed further.", self.log.alarm is not None)
