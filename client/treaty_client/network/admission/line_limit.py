"""Bound the lines that a library writes for strangers: one of a kind a minute, then their number.

A stranger can make a server log, by a handshake that fails or by connections until no file is left. asyncio writes a line with a
traceback for each accept that fails, thousands a second. A disk would be full in hours.
"""

from __future__ import annotations

import logging
import threading

from .repeats import Repeats


class LineLimit(logging.Filter):
    """Limits the lines of the loggers that it is added to. Two lines are of one kind if they begin with the same line of the same
    template, and have the same type of exception."""

    def __init__(self, repeats: Repeats | None = None) -> None:
        """Leave nothing out yet. `repeats`: the number of lines of each kind in a minute; default one."""
        super().__init__()
        self._repeats = repeats or Repeats()
        # Libraries also log in threads of their own.
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record. It says how many of its kind were left out before it."""
        error = record.exc_info[0] if record.exc_info else None
        kind = f"{record.name} {str(record.msg).partition(chr(10))[0]} {error}"
        with self._lock:
            fields = self._repeats.admit(kind)
        if fields:
            record.msg = f"{record.msg} (and {fields['repeated']} such lines that were left out)"
        return fields is not None


_LIMIT = LineLimit()


def limit_lines(*names: str) -> None:
    """Limit the lines of these loggers, in this process. Safe to repeat. A logger below one of them is not limited by it."""
    for name in names:
        logging.getLogger(name).addFilter(_LIMIT)
