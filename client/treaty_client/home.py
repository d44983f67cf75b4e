"""The place of an agent's home, the folder with its key, policy, lock and memory, and the environment that an
agent reads. docs/specification/home.md lists its files.
"""

from __future__ import annotations

import os
from pathlib import Path

RESOLVE_VARIABLE, CA_VARIABLE = "TREATY_RESOLVE", "TREATY_CA"
"""They describe the network of this machine (`network.hosts`). Here, so that the options of commands import nothing large."""


def default_home() -> Path:
    """Return $TREATY_HOME, or ~/.treaty."""
    return Path(os.environ.get("TREATY_HOME") or Path.home() / ".treaty")
