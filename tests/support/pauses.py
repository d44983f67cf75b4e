"""A pause of this process, as its event loop sees it."""

from __future__ import annotations

import time


def pause(seconds: float) -> None:
    """Stop the event loop that runs this. Time passes, and bytes arrive in its sockets."""
    time.sleep(seconds)
