"""Limit one request to a worker: its processor time, and a generous time in all."""

from __future__ import annotations

from treaty_io.awake_timeout import AwakeTimeout

from .processor_clock import ProcessorClock

_SHORTEST = 0.02
"""Seconds between two looks at the clock of a worker that has almost used its time up."""


class RequestTimeout(AwakeTimeout):
    """The time of one request. A worker that computes ends by its processor time, one that waits for something by `wall`.

    A worker that has answered uses no processor, and a worker that gets none does not either. So neither a pause of this process
    nor a busy machine ends it before `wall`, which counts only the time in which this process ran.
    """

    def __init__(self, clock: ProcessorClock, seconds: float, wall: float) -> None:
        """`seconds`: of the worker's processor. Where `clock` cannot be read, the time in all counts in its place."""
        super().__init__(max(seconds, wall))
        self._clock, self._seconds = clock, seconds
        self._all, self._began = self.left, clock.read()

    def next_look(self) -> float:
        now = self._clock.read()
        used = self._all - self.left if self._began is None or now is None else now - self._began
        # A single thread uses no more processor time than passes, so it cannot be over much earlier.
        return min(max(self._seconds - used, _SHORTEST), self.left) if used < self._seconds else 0.0
