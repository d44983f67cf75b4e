"""Read the processor time of another process, as the kernel counts it.

Linux has a clock for each process (`clock_getcpuclockid`, which Python lacks). It counts all threads of the process, and not its
children. It needs the number of the process in this process's namespace. A pidfd has it in /proc, also for a process in
namespaces of its own, as a sandboxed worker is. The number may pass to another process when the worker has ended; then the pipe
has ended too, and no time counts.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Self

_WHOLE_PROCESS = 2  # CPUCLOCK_SCHED, for a process and not a thread


class ProcessorClock:
    """The processor time of one process. Where the system has no such clock, it cannot be read."""

    def __init__(self, pid: int | None) -> None:
        """`pid`: None if it is not known."""
        self._clock = (~pid << 3) | _WHOLE_PROCESS if pid is not None and sys.platform == "linux" else None

    @classmethod
    def of_pidfd(cls, descriptor: int) -> Self:
        """Return the clock of the process of a pidfd."""
        try:
            match = re.search(r"^Pid:\s*([1-9][0-9]*)$", Path(f"/proc/self/fdinfo/{descriptor}").read_text(), re.MULTILINE)
        except OSError:  # no /proc
            match = None
        return cls(int(match[1]) if match else None)

    def read(self) -> float | None:
        """Return the seconds that the process has used, or None."""
        if self._clock is None:
            return None
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # the process has ended, or this kernel has no such clock
            return None
