"""Define the command line of a registry: `treaty-registry`.

`decide`, `parameters` and `rebuild` ask the server that runs on the data directory, through its control socket. Without a server
they do the work themselves. Every command takes `--json`. A refusal is printed with its code and its fix, and the exit status is
1; `audit` also exits with 1 when it finds a fault. A wrong command line exits with 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import TreatyError, Unavailable

from .console import print_error

app = App(
    name="treaty-registry",
    help="Run a registry: the log of what agents publish, report, vote and agree on.",
    version=version("treaty"),
    version_flags=["--version"],
    result_action="return_value",
)

# By name, so that a command imports only its own modules: the web framework alone takes half a second.
for _place, _help in {
    "serving:serve": "Serve the registry. In an empty data directory, make a new log first.",
    "serving:init": "Make a new log: its keys, its database, its first two leaves.",
    "serving:migrate": "Update the database's tables to this release.",
    "operating:decide": "Close the open epoch of a development electorate.",
    "operating:parameters": "Show the constants of the election, or announce new ones.",
    "serving:witness": "Witness logs: cosign checkpoints that extend the ones cosigned before.",
    "operating:accept_clock": "Let the running registry sign again after its clock has jumped ahead.",
    "operating:rebuild": "Derive every table from the log again, and correct the rows that differ.",
    "operating:audit": "Check all stored data: every signature, rule and decision.",
}.items():
    app.command(f"{__name__}.{_place}", help=_help)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.exit(app(tokens) or 0)
    except TreatyError as error:
        print_error(error, as_json="--json" in tokens)
        sys.exit(1)
    # A missing file or a missing right is the operator's to mend, so it gets a code and no traceback.
    except OSError as error:
        failure = Unavailable(SystemCode.FILE, f"{error.strerror or error}: {error.filename or 'a system call'}.")
        print_error(failure, as_json="--json" in tokens)
        sys.exit(1)
    except KeyboardInterrupt:
        # The shell's status for a process that SIGINT ended: 128 + 2.
        sys.exit(130)
