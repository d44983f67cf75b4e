"""End a command whose reader has gone, as in `treaty … | head`, without a traceback.

Other programs are ended by SIGPIPE then, which shells report as 141. Python ignores that signal, because it would also end a
process whose peer on a network hangs up. So the failed write is found here, and the exit status is the same.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATUS = 128 + 13
"""The exit status: that of a process which SIGPIPE has ended."""


@contextmanager
def ending_quietly() -> Iterator[None]:
    """Run a command in the block. Exit with `STATUS` when it fails because nothing reads its standard output.

    Other errors pass, also a broken connection to another process.
    """
    try:
        try:
            yield
        finally:
            _flush()
    except BrokenPipeError:
        if not _is_closed(sys.stdout.fileno()):
            raise
        _end()
    except SystemExit as ended:
        # Rich ends the process itself, with a status that says nothing.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _end()


def _flush() -> None:
    # Here, because the interpreter flushes after the last handler, and prints a traceback.
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:
        pass  # a full disk: the interpreter says it, with a status of its own


def _is_closed(descriptor: int) -> bool:
    """Whether the reader of a pipe or socket has gone, or its failed output was replaced already."""
    if sys.platform == "win32":
        return True  # it cannot be asked
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0)) or os.path.samestat(os.fstat(descriptor), Path(os.devnull).stat())


def _end() -> None:
    # The interpreter flushes what is left at its end, and would fail again.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    sys.exit(STATUS)
