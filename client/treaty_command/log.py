"""The log of `--verbose`: one line of key=value pairs on standard error for each exchange and each checked step."""

from __future__ import annotations

import logging
import sys
from typing import Final

from treaty_consensus.printable import printable

# The fields of a record of Python's own; all others were given by the caller.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_MAX_VALUE = 512


PACKAGES = ("treaty_io", "treaty_anp", "treaty_sandbox", "treaty_client", "treaty_agent", "treaty_command")


class LineFormatter(logging.Formatter):
    """Format a record as `event key=value …`. Values are escaped: they may quote a stranger."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _OWN}
        words = [printable(record.getMessage(), _MAX_VALUE)]
        words += [f"{name}={printable(str(value), _MAX_VALUE)}" for name, value in fields.items()]
        return " ".join(words)


def write_log() -> None:
    """Write the log of the client's packages to standard error from now on. A second call changes nothing."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    for package in PACKAGES:
        log = logging.getLogger(package)
        if any(isinstance(other.formatter, LineFormatter) for other in log.handlers):
            return
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
        log.propagate = False
