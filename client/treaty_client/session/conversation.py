"""Natural language in a session (PT=10): what the peer said and nobody has read yet, and who answers it.

Where the agent has an `@agent.converses` function, each text of the peer is answered by it, one after the other; else the texts
wait for `Session.heard`. At most 16 wait; until there is room, nothing more is read from the peer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

MAX_WAITING = 16
_log = logging.getLogger(__name__)

Answerer: TypeAlias = Callable[[str, str], Awaitable[str]]
"""From a text and the DID of who says it to the answer; "" for none."""


class Conversation:
    """One session's. For one event loop."""

    def __init__(self, answerer: Answerer | None, *, say: Callable[[str], Awaitable[None]], drained: Callable[[], None]) -> None:
        """`say`: to the peer. `drained`: told whenever there is room again."""
        self._answerer, self._say, self._drained = answerer, say, drained
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()
        self._over = False

    @property
    def has_room(self) -> bool:
        """Whether more may be read from the peer."""
        return self._texts.qsize() < MAX_WAITING

    def take(self, text: str) -> None:
        """The peer said this."""
        self._texts.put_nowait(text)

    def end(self) -> None:
        """The session is over: whoever listens hears what is left, then no more."""
        self._over = True
        self._texts.put_nowait(None)

    async def heard(self) -> AsyncIterator[str]:
        """What the peer says, until the session is over."""
        while not (self._over and self._texts.empty()):
            text = await self._texts.get()
            self._drained()
            if text is not None:
                yield text
        self._texts.put_nowait(None)  # for another listener

    async def answer(self, peer: str) -> None:
        """Answer what `peer` says, until cancelled or over; returns at once where nobody does. A function that raises leaves a
        text unanswered, and is logged."""
        if self._answerer is None:
            return
        async for text in self.heard():
            try:
                said = await self._answerer(text, peer)
                if said:
                    await self._say(said)
            except Exception:  # foreign to this library, and not to be told to the peer
                _log.exception("Answering a text of %s raised", peer)
