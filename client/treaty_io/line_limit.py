"""Bound the lines of the log that strangers cause: so many of a kind a minute, then their number.

A stranger can make a server log, by a handshake that fails, a message that is ignored, or connections until no file is left.
asyncio writes a line with a traceback for each accept that fails, thousands a second. A disk would be full in hours.
"""

from __future__ import annotations

import logging
import threading

from .repeats import Repeats

OWN_LINES = 60
"""Lines of one kind of an own logger in a minute. A function that fails now and then loses none."""


class LineLimit(logging.Filter):
    """Limits the lines of the loggers that it is added to. Two lines are of one kind if they have the same logger, the same first
    line of the template, and the same type of exception."""

    def __init__(self, lines: int = 1) -> None:
        """`lines`: so many of each kind are written in a minute."""
        super().__init__()
        self._repeats = Repeats(lines)
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


_FOREIGN, _OWN = LineLimit(), LineLimit(OWN_LINES)


def limit_lines(*names: str) -> None:
    """Limit these loggers of libraries to one line of a kind a minute, in this process. Loggers below them are not limited.

    Safe to repeat.
    """
    for name in names:
        logging.getLogger(name).addFilter(_FOREIGN)


def limited_logger(name: str) -> logging.Logger:
    """Return the logger of a module whose lines strangers can cause, limited to `OWN_LINES` of a kind a minute."""
    logger = logging.getLogger(name)
    logger.addFilter(_OWN)
    return logger
