"""Name the parts that need Linux. The rest runs on macOS and Windows too: search, fetch, verify, vote, audit.

Linux-only modules are imported by the parts that need Linux, after this check.
"""

from __future__ import annotations

import sys

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Unavailable


def require_linux(part: str, *, fix: str) -> None:
    """Raise `Unavailable` (`system.missing`) on another system. `part`: the subject of the message."""
    if sys.platform != "linux":
        raise Unavailable(SystemCode.MISSING, f"{part} needs Linux, and this is {sys.platform}.", fix=fix)
