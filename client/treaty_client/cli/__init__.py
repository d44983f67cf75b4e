"""The command line of an agent: `treaty`.

Every command takes `--home`, `--registry`, `--resolve`, `--ca` and `--json`. A refusal is printed with its code and its fix,
and the exit status is 1; a wrong command line is status 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, Parameter

from treaty_consensus.errors import TreatyError

from . import audit, elections, identity, protocols, trust
from .output import Output

app = App(
    name="treaty",
    help="Publish, elect and fetch the protocols that AI agents agree on.",
    version=version("treaty"),
    version_flags=["--version"],
    default_parameter=Parameter(negative=()),
    result_action="return_value",
)
app.command(identity.app)
app.command(trust.app)
for command in (*protocols.commands, *elections.commands, audit.audit):
    app.command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(tokens)
    except TreatyError as error:
        Output("--json" in tokens).error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
