"""Read options from environment variables, as units of systemd and containers set them.

An option of `serve` is `TREATY_REGISTRY_` and its name; one with several values has spaces between them. A witness and a mirror
read those of options that they share with it. The variables without that prefix are older, or are shared with agents. An unknown
variable with the prefix is a mistake of spelling, and is refused: a registry that starts without its witnesses or its proxy is
worse than one that does not start.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, MutableMapping

from cyclopts import App, Parameter

from treaty_consensus.errors import Malformed

from ..codes import SettingsCode

_PREFIX = "TREATY_REGISTRY_"


def Variable(name: str) -> Parameter:  # noqa: N802 (it is read as the type in an annotation)
    """Return the parameter of an option that `TREATY_REGISTRY_name` sets."""
    return Parameter(env_var=_PREFIX + name)


def drop_empty(environment: MutableMapping[str, str]) -> None:
    """Remove empty variables with the prefix: compose and Kubernetes write a value that is not given as an empty one."""
    for name in [name for name, value in environment.items() if name.startswith(_PREFIX) and not value]:
        del environment[name]


def check_variables(names: Iterable[str], command: Callable[..., object]) -> None:
    """Raise `Malformed` (`settings.variable`) for a name with the prefix that no option of the command reads."""
    app = App()
    app.default(command)
    known = {name for argument in app.assemble_argument_collection() for name in argument.parameter.env_var or ()}
    for name in sorted(names):
        if name.startswith(_PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"It may mean {near[0]}." if near else "treaty-registry serve --help lists the variables."
            raise Malformed(SettingsCode.VARIABLE, f"No option reads the environment variable {name[:80]}.", fix=fix)
