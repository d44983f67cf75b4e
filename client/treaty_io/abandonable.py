"""Futures whose failure may go unread."""

from __future__ import annotations

import asyncio
from typing import Any


def abandonable() -> asyncio.Future[Any]:
    """Make a future for the running loop. When it fails after its waiter was cancelled or gave up, nothing is logged.

    A plain future would be reported as "Future exception was never retrieved", on the error stream, when a peer
    or a handler makes it fail.
    """
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.add_done_callback(_read)
    return future


def _read(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        # Reading the exception marks it as retrieved, so asyncio does not log it.
        future.exception()
