"""The place of an agent's home, the folder with its key, policy, lock and memory, and the environment that an
agent reads. docs/specification/home.md lists its files.
"""

from __future__ import annotations

import os
from pathlib import Path

RESOLVE_VARIABLE, CA_VARIABLE = "TREATY_RESOLVE", "TREATY_CA"
"""They describe the network of this machine (`network.hosts`). Here, so that the options of commands import nothing large."""
AGENT_VARIABLES = ("TREATY_HOME", RESOLVE_VARIABLE, CA_VARIABLE, "TREATY_MODEL_URL", "TREATY_MODEL", "TREATY_MODEL_KEY")
"""All variables that an agent and the command `treaty` read."""


def default_home() -> Path:
    """Return $TREATY_HOME, or ~/.treaty."""
    return Path(os.environ.get("TREATY_HOME") or Path.home() / ".treaty")
