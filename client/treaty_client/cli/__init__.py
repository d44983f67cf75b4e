"""The command line of an agent: `treaty`.

Every command takes `--home`, `--registry`, `--resolve`, `--ca`, `--json` and `--verbose`. An error is printed with its code and
its fix, also one in the command line itself. `failures` has the exit statuses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .failures import INTERRUPTED, failure_of, status_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, and exit with its status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from .commands import app  # inside, so that an interrupt during this import is handled too

        app(tokens, exit_on_error=False, print_error=False)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        from .output import Output  # here, because most commands succeed

        Output("--json" in tokens).error(failure)
        sys.exit(status_of(failure))
