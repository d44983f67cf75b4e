"""The place of an agent's home, the folder with its key, policy, lock and memory. docs/specification/home.md lists its files."""

from __future__ import annotations

import os
from pathlib import Path


def default_home() -> Path:
    """Return $TREATY_HOME, or ~/.treaty."""
    return Path(os.environ.get("TREATY_HOME") or Path.home() / ".treaty")
