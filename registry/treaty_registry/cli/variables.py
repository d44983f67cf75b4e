"""Read options from environment variables, as units of systemd and containers set them.

An option of `serve` is `TREATY_REGISTRY_` and its name; one with several values has spaces between them. A witness and a mirror
read those of options that they share with it. The variables without that prefix are older, or are shared with agents. Any other
variable that begins with `TREATY_` is a mistake of spelling, and every command refuses it: a registry that starts without its
witnesses, or with another database, is worse than one that does not start.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, MutableMapping

from cyclopts import Parameter

from treaty_consensus.errors import Malformed
from treaty_io.home import AGENT_VARIABLES

from ..codes import SettingsCode
from .commands import app

_PREFIX = "TREATY_"


def Variable(name: str) -> Parameter:  # noqa: N802 (it is read as the type in an annotation)
    """Return the parameter of an option that `TREATY_REGISTRY_name` sets."""
    return Parameter(env_var=f"{_PREFIX}REGISTRY_{name}")


def drop_empty(environment: MutableMapping[str, str]) -> None:
    """Remove empty variables with the prefix: compose and Kubernetes write a value that is not given as an empty one."""
    for name in [name for name, value in environment.items() if name.startswith(_PREFIX) and not value]:
        del environment[name]


def check_variables(environment: Iterable[str]) -> None:
    """Raise `Malformed` (`settings.value`) for a name with the prefix that no option of `serve` or `witness` reads.

    These two together have every option with a variable, whichever command runs: a unit's settings are for all its commands.
    """
    # An agent may run in the environment of its registry, and the other way round.
    names = sorted(name for name in environment if name.startswith(_PREFIX) and name not in AGENT_VARIABLES)
    # Only where a variable is to be checked: this imports the server.
    variables = _variables_of("serve") | _variables_of("witness") if names else set()
    for name in names:
        if name not in variables:
            # Without the prefix, by which all are near.
            near = difflib.get_close_matches(
                name.removeprefix(_PREFIX), sorted(each.removeprefix(_PREFIX) for each in variables), 1
            )
            fix = f"It may mean {_PREFIX}{near[0]}." if near else "treaty-registry serve --help lists the variables."
            raise Malformed(SettingsCode.VALUE, f"No option reads the environment variable {name[:80]}.", fix=fix)


def _variables_of(command: str) -> set[str]:
    return {name for argument in app[command].assemble_argument_collection() for name in argument.parameter.env_var or ()}
