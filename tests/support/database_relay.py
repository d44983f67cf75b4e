"""A relay between a registry and its PostgreSQL, which knows the steps of a write and can stop at each of them.

It reads the frontend's messages (PostgreSQL's documentation, §55.7): `Parse` names a statement, `Bind` runs it, `Query` is one
without arguments.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

Reached = Callable[[], Awaitable[None]]

STATEMENTS = {
    "look up": b"select key, fact, null::bytea as statement",
    "append": b"with moved as (",
    "commit": b"COMMIT;",
}
"""The steps of a write that the database sees, and how their statements begin."""


@dataclass
class _Pair:
    """A connection and its other end. `names`: prepared statements. `answers`: the step whose answer is due."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    names: dict[bytes, bytes] = field(default_factory=dict)
    answered: str | None = None


class Relay:
    """Forwards everything. `arm` chooses a step; the first write that comes there waits until the test's function has ended."""

    def __init__(self, socket_: Path, database: Path) -> None:
        self._folder = socket_
        self._database = database
        self._pairs: list[_Pair] = []
        self._armed: tuple[str, str, Reached] | None = None

    @property
    def url(self) -> str:
        """The URL of the database behind it."""
        return f"postgresql://postgres@/postgres?host={self._folder}"

    def arm(self, step: str, when: str, reached: Reached) -> None:
        """Call `reached` once, before the statement of a step is forwarded, or after its answer came and before it is told."""
        self._armed = step, when, reached

    def disarm(self) -> bool:
        """Return whether the step was not reached."""
        armed, self._armed = self._armed, None
        return armed is not None

    def reset(self) -> None:
        """Break every connection at both ends."""
        for pair in self._pairs:
            for writer in (pair.client, pair.server):
                linger = struct.pack("ii", 1, 0)
                with suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()

    @classmethod
    @asynccontextmanager
    async def listening(cls, folder: Path, database: Path) -> AsyncIterator[Relay]:
        """Listen on a socket in `folder`."""
        await asyncio.to_thread(folder.mkdir)
        relay = cls(folder, database)
        server = await asyncio.start_unix_server(relay.serve, folder / ".s.PGSQL.5432")
        try:
            yield relay
        finally:
            server.close()
            relay.reset()

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Forward one connection until an end is closed."""
        try:
            server, to_server = await asyncio.open_unix_connection(self._database)
        except OSError:
            to_client.transport.abort()
            return
        pair = _Pair(to_client, to_server)
        self._pairs.append(pair)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ended(self._requests(client, pair), pair))
                group.create_task(self._ended(self._answers(server, pair), pair))
        self._pairs.remove(pair)

    async def _ended(self, work: Awaitable[None], pair: _Pair) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await work
        # One end is closed, so the other one is told.
        for writer in (pair.client, pair.server):
            writer.close()

    async def _requests(self, client: asyncio.StreamReader, pair: _Pair) -> None:
        length = await client.readexactly(4)
        pair.server.write(length + await client.readexactly(int.from_bytes(length) - 4))  # StartupMessage, which has no type
        while True:
            head = await client.readexactly(5)
            body = await client.readexactly(int.from_bytes(head[1:]) - 4)
            step = self._step(head[:1], body, pair)
            if step is not None:
                await self._reach(step, "before")
                pair.answered = step
            pair.server.write(head + body)
            await pair.server.drain()

    async def _answers(self, server: asyncio.StreamReader, pair: _Pair) -> None:
        while True:
            head = await server.readexactly(5)
            body = await server.readexactly(int.from_bytes(head[1:]) - 4)
            if head[:1] == b"C" and pair.answered is not None:  # CommandComplete
                step, pair.answered = pair.answered, None
                await self._reach(step, "after")
            pair.client.write(head + body)
            await pair.client.drain()

    def _step(self, kind: bytes, body: bytes, pair: _Pair) -> str | None:
        sql = b""
        if kind == b"P":
            name, text, *_ = body.split(b"\0")
            pair.names[name] = text
        elif kind == b"B":
            sql = pair.names.get(body.split(b"\0")[1], b"")
        elif kind == b"Q":
            sql = body
        text = sql.strip()
        return next((step for step, begin in STATEMENTS.items() if text.startswith(begin)), None)

    async def _reach(self, step: str, when: str) -> None:
        if self._armed is not None and self._armed[:2] == (step, when):
            reached, self._armed = self._armed[2], None
            await reached()
