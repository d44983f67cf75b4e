"""Read options from environment variables, as units of systemd and containers set them.

An option of `serve` is `TREATY_REGISTRY_` and its name; one with several values has spaces between them. The variables without
that prefix are older, or are shared with agents. An unknown variable with the prefix is a mistake of spelling, and is refused: a
registry that starts without its witnesses or its proxy is worse than one that does not start.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from cyclopts import Parameter

from treaty_consensus.errors import Malformed

from ..codes import SettingsCode

_PREFIX = "TREATY_REGISTRY_"
_known = {f"{_PREFIX}DATA"}


def Variable(name: str) -> Parameter:  # noqa: N802 (it is read as the type in an annotation)
    """Return the parameter of an option that `TREATY_REGISTRY_name` sets."""
    _known.add(_PREFIX + name)
    return Parameter(env_var=_PREFIX + name)


def check_variables(names: Iterable[str]) -> None:
    """Raise `Malformed` (`settings.variable`) for a name with the prefix that no option reads."""
    for name in sorted(names):
        if name.startswith(_PREFIX) and name not in _known:
            near = difflib.get_close_matches(name, _known, 1)
            fix = f"It may mean {near[0]}." if near else "treaty-registry serve --help lists the variables."
            raise Malformed(SettingsCode.VARIABLE, f"No option reads the environment variable {name[:80]}.", fix=fix)
