"""The command line of an agent: `treaty`.

Every command takes `--home`, `--registry`, `--resolve`, `--ca` and `--json`. An error is printed with its code and its fix, and
the exit status is 1. A wrong command line has status 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from treaty_consensus import __version__
from treaty_consensus.errors import TreatyError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, and exit with its status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if tokens == ["--version"]:
        print(__version__)  # before the commands are imported, which takes ten times as long
        return
    try:
        # Inside, so that Ctrl-C during the imports is handled too.
        from treaty_consensus.extras import naming_extras

        from .commands import app

        with naming_extras():
            app(tokens)
    except TreatyError as error:
        _fail(error, tokens)
    except OSError as error:
        from treaty_consensus.codes import SystemCode  # here and below: only errors need these modules
        from treaty_consensus.errors import Unavailable

        # A full disk or a path of the command line: the user can act on it, so it is no traceback.
        _fail(Unavailable(SystemCode.FILE, f"{error.strerror or error}: {error.filename or 'a system call'}."), tokens)
    except KeyboardInterrupt:
        # 128 + SIGINT, as shells report it.
        sys.exit(130)


def _fail(error: TreatyError, tokens: Sequence[str]) -> None:
    from .output import Output

    Output("--json" in tokens).error(error)
    sys.exit(1)
