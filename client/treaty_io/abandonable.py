"""Futures whose failure may go unread."""

from __future__ import annotations

import asyncio
from typing import Any


def abandonable() -> asyncio.Future[Any]:
    """Make a future for the running loop. When it fails after its waiter was cancelled or gave up, nothing is logged.

    A plain future would be reported as "Future exception was never retrieved", on the error stream, when a peer
    or a handler makes it fail.
    """
    return _Abandonable()


class _Abandonable(asyncio.Future[Any]):
    def __del__(self) -> None:
        """Replace the finalizer of asyncio, which logs an exception that nobody has read."""
