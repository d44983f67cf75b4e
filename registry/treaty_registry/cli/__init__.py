"""Define the command line of a registry: `treaty-registry`.

`decide`, `parameters`, `rebuild`, `backup`, the commands of a rotation, and those for content and senders ask the server that
runs on the data directory, through its control socket. Without a server they do the work themselves. Called by root, a command
runs as the owner of its data directory (`owner`). Every command takes `--json`. A refusal is printed with its code and its fix,
and the exit status is 1; `audit` also exits with 1 when it finds a fault, `doctor` when it finds a problem, and `withdraw` when
something is left. A wrong command line exits with 2.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from treaty_consensus import __version__
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.closed_output import ending_quietly
from treaty_io.extras import naming_extras
from treaty_io.platforms import require_linux


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    with ending_quietly():
        _run(tokens)


def _run(tokens: list[str]) -> None:
    if tokens == ["--version"]:
        print(__version__)  # before the commands are imported, which takes thirty times as long
        return
    caller = None
    try:
        # Before the commands are imported, because some of their modules are of Linux alone.
        require_linux("A registry", fix="Run it on Linux, in a container or virtual machine if need be.")
        caller = os.geteuid()
        # Inside, so that a missing extra and Ctrl-C during the import are handled too.
        with naming_extras():
            with _without_collection():
                from ..telemetry.logs import configure_logs
                from .commands import app
                from .owner import as_owner
                from .variables import check_variables, drop_empty

                # Every line of a log goes to standard error. Standard output has the result alone; a server sets more options.
                configure_logs(level="warning")

                drop_empty(os.environ)
                command, bound, _ = app.parse_args(tokens)
                # Not before the help of a command, which lists the variables.
                if getattr(command, "__self__", None) is not app:
                    check_variables(os.environ)
            sys.exit(as_owner(command, bound) or 0)
    except TreatyError as error:
        _fail(error, tokens)
    except BrokenPipeError:
        raise  # of standard output; see `closed_output`
    # A missing file or a missing right is the operator's to mend, so it gets a code and no traceback.
    except OSError as error:
        refused = isinstance(error, PermissionError) and os.geteuid() != caller
        fix = "This command runs as the owner of the data directory: give that user the right." if refused else ""
        failure = Unavailable(SystemCode.FILE, f"{error.strerror or error}: {error.filename or 'a system call'}.", fix=fix)
        _fail(failure, tokens)
    except KeyboardInterrupt:
        # The shell's status for a process that SIGINT ended: 128 + 2.
        sys.exit(130)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage while modules are imported: they stay, and looking for garbage takes a sixth of the start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _fail(error: TreatyError, tokens: Sequence[str]) -> None:
    from .console import print_error  # only errors need it

    print_error(error, as_json="--json" in tokens)
    sys.exit(1)
