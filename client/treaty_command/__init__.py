"""The program `treaty`. It is a package of its own, so that Ctrl-C is quiet while the client is imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    # At once, without a traceback: files are written whole and renamed, and commands that hold more have a handler of their own.
    os._exit(130)


def main() -> None:
    """Run the command of `sys.argv`, and exit with its status."""
    # A shell in the background lets its programs ignore Ctrl-C. That stays so.
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end)
    from .main import main as run  # after the handler, because this import takes a second

    run(sys.argv[1:])
