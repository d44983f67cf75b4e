"""Wait for the signals by which a supervisor ends or reloads a process: SIGTERM, SIGINT, SIGHUP."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals(reload: Callable[[], None]) -> Iterator[asyncio.Event]:
    """Give an event that is set at the first SIGTERM or SIGINT. The second one has its former effect, which usually ends the
    process at once. `reload`: called at each SIGHUP.

    Only in the main thread, where Python allows handlers; elsewhere, and on Windows, whose event loop has none, the event is
    never set. The former handlers are restored at the end of the block.
    """
    stop = asyncio.Event()
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    loop, previous = asyncio.get_running_loop(), dict[int, Any]()

    def restore(*numbers: int) -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
            # None: a handler that was not set from Python, which cannot be set again.
            if (handler := previous.pop(number)) is not None:
                signal.signal(number, handler)

    def begin_stop() -> None:
        # Not that of SIGHUP, which would end the process while it drains.
        restore(signal.SIGTERM, signal.SIGINT)
        stop.set()

    for number, act in ((signal.SIGTERM, begin_stop), (signal.SIGINT, begin_stop), (signal.SIGHUP, reload)):
        previous[number] = signal.getsignal(number)
        loop.add_signal_handler(number, act)
    try:
        yield stop
    finally:
        restore(*previous)
