"""The command line of an agent: `treaty`.

Every command takes `--home`, `--registry`, `--resolve`, `--ca`, `--json` and `--verbose`. An error is printed with its code and
its fix, also one in the command line itself. `failures` has the exit statuses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from treaty_consensus import __version__
from treaty_io.closed_output import ending_quietly


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, and exit with its status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    with ending_quietly():
        _run(tokens)


def _run(tokens: list[str]) -> None:
    if tokens == ["--version"]:
        print(__version__)  # before the commands are imported, which takes ten times as long
        return
    try:
        # Inside, so that Ctrl-C during the imports is handled too.
        from treaty_io.extras import naming_extras

        from .commands import app, describe

        with naming_extras():
            describe(tokens)
            app(tokens, exit_on_error=False, print_error=False)
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, as shells report it
    except BrokenPipeError:
        raise  # of standard output, or a fault: what reaches this place from a network is an error of its own
    except Exception as error:
        from .failures import failure_of, status_of  # here, because most commands succeed

        failure = failure_of(error)
        if failure is None:
            raise
        from .output import Output

        Output("--json" in tokens).error(failure)
        sys.exit(status_of(failure))
