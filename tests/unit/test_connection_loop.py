"""The loop of a connection: which step goes first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from treaty_agent.sessions.calls import CallTable
from treaty_agent.sessions.connection_loop import ConnectionLoop
from treaty_agent.sessions.handler_host import HostedHandler
from treaty_agent.sessions.interfaces import SessionTimeouts
from treaty_agent.transport.memory import pair
from treaty_consensus.errors import TreatyError


class Due:
    """A machine whose deadline has passed. It ends at its first tick."""

    is_final = False
    error: TreatyError | None = None
    deadline = 0.0
    accepts_input = True

    def tick(self, now: float) -> list[str]:
        self.is_final = True
        return ["late"]

    def lost(self, reason: str = "") -> list[str]:
        return []

    def close(self) -> list[str]:
        return []

    def fail(self, error: TreatyError) -> list[str]:
        self.is_final, self.error = True, error
        return []


class Busy(ConnectionLoop[str, float]):
    """A loop with a step that always waits: each puts in the next one. `performed`: the actions of the machine."""

    steps = 0
    performed: tuple[str, ...] = ()

    async def perform(self, actions: Sequence[str]) -> None:
        self.performed += tuple(actions)

    async def _begin(self) -> None:
        self.post(self._step)

    async def _step(self) -> None:
        self.steps += 1
        if self.steps < 100:
            self.post(self._step)
        else:
            self.release()

    async def _received(self, message: str | bytes) -> None:
        """Nothing is sent."""

    async def _leave(self) -> None:
        """Nobody asks."""

    def _encoded(self, actions: Sequence[str]) -> Iterable[str | bytes]:
        return ()

    def _due(self) -> float:
        return 0.0

    def _speaking(self) -> Iterable[HostedHandler]:
        return ()

    def _call_tables(self) -> Iterable[CallTable]:
        return ()

    def _end(self) -> None:
        """Nothing waits."""

    async def _close_parts(self) -> None:
        """There are none."""


async def test_a_deadline_that_has_passed_goes_before_steps_that_wait() -> None:
    here, _ = pair()
    loop = Busy(here, Due(), SessionTimeouts(), clock=lambda: 1.0)
    async with asyncio.timeout(60):
        await loop.run()
    assert (loop.performed, loop.steps) == (("late",), 0)
