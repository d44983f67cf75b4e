"""The connections of an agent that are open now, and their end in good order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from treaty_io.codes import SessionCode

from .connection_loop import ConnectionLoop
from .interfaces import SpokenProtocol

LEAVING_TIME = 5.0
"""Seconds for connections to close after their calls: to send the last messages, and to close their handlers."""

Run = ConnectionLoop[Any, Any]


class OpenConnections:
    """The connections of one agent, in both directions and profiles. For one event loop."""

    def __init__(self) -> None:
        self._protocols: dict[Run, Callable[[], Iterable[SpokenProtocol]]] = {}
        self._answered: set[Run] = set()

    @contextmanager
    def holding(self, run: Run, protocols: Callable[[], Iterable[SpokenProtocol]], *, is_initiator: bool) -> Iterator[None]:
        """Note a connection for the time of the block. `protocols`: return those of its sessions."""
        self._protocols[run] = protocols
        if not is_initiator:
            self._answered.add(run)
        try:
            yield
        finally:
            del self._protocols[run]
            self._answered.discard(run)

    @property
    def answered(self) -> list[Run]:
        """The connections that other agents opened."""
        return list(self._answered)

    def speaking(self, uri: str) -> list[Run]:
        """Return the connections with a session of a protocol."""
        return [run for run, protocols in self._protocols.items() if any(protocol.uri == uri for protocol in protocols())]

    def spoken(self) -> list[SpokenProtocol]:
        """Return the protocols of all open sessions, one entry for each session."""
        return [protocol for protocols in self._protocols.values() for protocol in protocols()]


async def part(runs: Iterable[Run], code: SessionCode, seconds: float) -> None:
    """End connections when the calls under way in them are answered, or after some seconds. The peers learn the code, and which
    calls were not begun."""
    runs = list(runs)
    ending = [asyncio.create_task(run.closed.wait()) for run in runs]
    if not ending:
        return
    try:
        for run in runs:
            run.part(code)
        _, late = await asyncio.wait(ending, timeout=seconds)
        if late:
            for run in runs:
                run.part(code, at_once=True)
            await asyncio.wait(late, timeout=LEAVING_TIME)
    finally:
        for task in ending:
            task.cancel()
