"""Write to the disk after the messages that led to it, so that no peer waits for a disk.

`Afterwards` is a queue of writes. It makes them in a thread, in their order, `PAUSE` seconds after the first one was added.
`settle` makes them now. The reader of a file to which a write may be owed calls it first, so a process never reads an older file
than it has decided on. A crash loses the writes that are owed; each caller says what that leaves.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable

PAUSE = 0.05
"""Seconds. Long enough for the first reply of a session, and short enough that hardly a crash falls into it."""
_log = logging.getLogger(__name__)


class Afterwards:
    """Writes that are owed to the disk. `add` belongs to one event loop; `settle` may be called in any thread. `aclose` it."""

    def __init__(self) -> None:
        """Owe nothing."""
        self._owed: deque[Callable[[], None]] = deque()  # its methods are atomic, so that the loop never waits for a write
        self._writing = threading.Lock()
        self._writer = 0
        self._task: asyncio.Task[None] | None = None

    def add(self, write: Callable[[], None]) -> None:
        """Owe a write. It may raise; the error is only logged."""
        self._owed.append(write)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._settle_soon())

    def settle(self) -> None:
        """Make the writes that are owed, and wait for one that is under way. In a write it does nothing."""
        # The writer reads the file that it is about to change, and must not begin the next write meanwhile.
        if self._writer == threading.get_ident():
            return
        # Asked without the lock: it is held for the time of a write, and most callers owe nothing.
        while self._owed or self._writer:
            with self._writing:
                self._writer = threading.get_ident()
                try:
                    self._write_next()
                finally:
                    self._writer = 0

    async def aclose(self) -> None:
        """Make the writes that are owed. More may be added afterwards."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        await asyncio.to_thread(self.settle)

    async def _settle_soon(self) -> None:
        while self._owed:
            await asyncio.sleep(PAUSE)
            await asyncio.to_thread(self.settle)

    def _write_next(self) -> None:
        try:
            write = self._owed.popleft()
        except IndexError:  # another thread made it
            return
        try:
            write()
        except Exception:
            _log.exception("A write to the disk failed")
