"""Write the log of a server to standard error: one JSON object a line, or text for people.

Under systemd each line begins with its priority, as sd-daemon(3) has it: `<3>` for an error. So `journalctl -p err` finds it.

Every line has `event`, `level` and `timestamp`. A line of a request has its `request_id`, and `trace_id` when there is a trace.
Lines of libraries come the same way. Every text is redacted (`redaction`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import structlog

from treaty_consensus.printable import escaped

from .redaction import redact
from .request import current_request

LogFormat: TypeAlias = Literal["auto", "json", "text"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
_VERBATIM = frozenset({"evidence", "proof"})
"""Signed checkpoints that prove a fork. They must stay whole, and hold the names and keys of logs and witnesses alone."""
_Event: TypeAlias = MutableMapping[str, Any]


def configure_logs(form: LogFormat = "auto", level: LogLevel = "info") -> None:
    """Send the log of this process to standard error. `auto`: text on a terminal, JSON otherwise."""
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    least = getattr(logging, level.upper())
    lines = LogLines(journal=_is_journal())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _add_request,
            # Before the redaction, which must see the text of an exception.
            structlog.processors.format_exc_info,
            _redact,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if text else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=lambda *_: lines,
    )
    # Libraries tell ordinary events at `info`, with the URLs they ask. Their warnings are for the operator.
    logging.basicConfig(handlers=[_FromLibraries()], level=max(least, logging.WARNING), force=True)


class LogLines:
    """Writes the lines of a server's log to standard error, unbuffered.

    A line that cannot be written is dropped, because a full disk or a closed pipe must not stop the server.
    """

    def __init__(self, *, journal: bool = False) -> None:
        """`journal`: standard error is read by systemd's journal, which wants the priority of each line."""
        self._journal = journal

    def debug(self, line: str) -> None:
        """Write one line."""
        self._write(line, 7)

    def info(self, line: str) -> None:
        """Write one line."""
        self._write(line, 6)

    def warning(self, line: str) -> None:
        """Write one line."""
        self._write(line, 4)

    def error(self, line: str) -> None:
        """Write one line."""
        self._write(line, 3)

    def critical(self, line: str) -> None:
        """Write one line."""
        self._write(line, 2)

    msg, exception = info, error

    def _write(self, line: str, priority: int) -> None:
        # The journal takes each line of a text for an entry of its own.
        text = "\n".join(f"<{priority}>{each}" for each in line.split("\n")) if self._journal else line
        with suppress(OSError, ValueError):  # ValueError: standard error is closed
            os.write(sys.stderr.fileno(), f"{text}\n".encode(errors="backslashreplace"))


def _is_journal() -> bool:
    """Whether standard error is a stream of the journal: systemd.exec(5), `$JOURNAL_STREAM` is its device and inode.

    The variable is inherited by processes whose standard error is another one.
    """
    with suppress(OSError, ValueError):
        status = os.fstat(sys.stderr.fileno())
        return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
    return False


class _FromLibraries(logging.Handler):
    """Passes the records of `logging` on, so that all lines have one form."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            logger = structlog.get_logger(record.name)
            # On one line: it may quote a stranger, and a line end would begin a forged line.
            logger.log(record.levelno, escaped(record.getMessage()), logger=record.name, exc_info=record.exc_info or None)
        except Exception:  # as `logging` itself does: a broken record must not stop the server
            self.handleError(record)


def _add_request(_logger: Any, _method: str, event: _Event) -> _Event:
    request = current_request()
    if request is not None:
        event.setdefault("request_id", request.id)
        if request.trace_id:
            event.setdefault("trace_id", request.trace_id)
    return event


def _redact(_logger: Any, _method: str, event: _Event) -> _Event:
    return {key: value if key in _VERBATIM else redact(value) for key, value in event.items()}
