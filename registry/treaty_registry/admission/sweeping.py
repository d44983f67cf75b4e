"""Delete what has expired: uploads that no statement named, and single-use tokens."""

from __future__ import annotations

import asyncio

import structlog

from .spent_tokens import SpentTokens
from .uploads import Uploads

_SWEEP = 600  # seconds between two deletions

_log = structlog.get_logger(__name__)


async def sweep(uploads: Uploads, tokens: SpentTokens) -> None:
    """Delete it again and again, until cancelled. Several processes may do this at once."""
    while True:
        await asyncio.sleep(_SWEEP)
        try:
            await uploads.expire()
            await tokens.expire()
        # The next sweep tries again. The rest only costs space.
        except Exception as error:
            _log.error("expired uploads not swept", error=str(error))
