"""Broker, sender and receiver are killed at random points: every accepted handoff has exactly one effect."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from depth import FULL
from handoffs import until
from rabbitmq_server import rabbitmq

from treaty_handoff import Journal
from treaty_registry.storage.embedded import embedded_postgres

PROGRAM = Path(__file__).parents[1] / "support" / "handoff_process.py"
KILLS = 200 if FULL else 6
TRANSIENT = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


class Party:
    """A sender or receiver that is killed and started again. It notes the ids that it reported as accepted."""

    def __init__(self, role: str, *arguments: str) -> None:
        self._arguments = (role, *arguments)
        self.accepted: list[str] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, *self._arguments, stdout=pipe)
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            # A line that a kill cut off was not reported.
            if line.endswith(b"\n"):
                self.accepted.append(line.decode().strip())

    async def kill(self) -> None:
        assert self._process is not None and self._reading is not None
        assert self._process.returncode is None, "it ended by itself"
        self._process.kill()
        await self._process.wait()
        await self._reading

    def end(self) -> None:
        """End the process if the test failed while it ran."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


async def rows(url: str, query: str) -> list[Any]:
    """The first column of a query; the server may be starting again."""
    while True:
        try:
            connection = await asyncpg.connect(url, timeout=10)
            try:
                return [row[0] for row in await connection.fetch(query)]
            finally:
                await connection.close()
        except TRANSIENT:
            await asyncio.sleep(0.2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["postgres", "rabbitmq"])
async def test_004_08_and_22_every_handoff_has_one_effect(kind: str, data: Path) -> None:
    chance = random.Random(f"{kind}-{KILLS}")
    async with embedded_postgres(data) as url:
        with ExitStack() as stack:
            rabbit = stack.enter_context(rabbitmq()) if kind == "rabbitmq" else None
            suffix = uuid.uuid4().hex[:8]
            names = (f"sender.{suffix}", f"receiver.{suffix}", url, *([rabbit.url] if rabbit else []))
            sender, receiver = Party("sender", *names), Party("receiver", *names)
            stack.callback(sender.end)
            stack.callback(receiver.end)

            async def restart_broker() -> None:
                if rabbit is not None:
                    rabbit.kill()
                    await asyncio.to_thread(rabbit.start)
                else:
                    # `embedded_postgres` starts it again, and recovers its log. Only a server that runs can be killed.
                    await rows(url, "select 1")
                    pid = int((data / "postgres" / "postmaster.pid").read_text().split()[0])
                    os.kill(pid, signal.SIGKILL)

            async def restart(party: Party) -> None:
                await party.kill()
                await party.start()

            async with Journal.open(url, "test"):
                await rows(url, "create table effect (message_id text not null)")
            await sender.start()
            await receiver.start()
            victims: list[Callable[[], object]] = [
                restart_broker,
                lambda: restart(sender),
                lambda: restart(receiver),
            ]
            for number in range(KILLS):
                await asyncio.sleep(chance.uniform(0.2, 2.0))
                # Each kind of victim as often as the others, in any order.
                if number % len(victims) == 0:
                    chance.shuffle(victims)
                await victims[number % len(victims)]()  # type: ignore[misc]
            await until(lambda: len(sender.accepted) > KILLS)
            await sender.kill()
            # Its last messages may still be in its outbox. A process of the same agent that sends nothing empties it.
            drain = Party("drain", *names)
            await drain.start()
            await until(lambda: _is_done(url), seconds=300)
            await drain.kill()
            await receiver.kill()
            sent = await rows(
                url, "select message_id::text from handoff_message where direction = 'sent' and holder like 'sender.%'"
            )
            effects = Counter(await rows(url, "select message_id from effect"))
    assert len(sender.accepted) > KILLS and set(sender.accepted) <= set(sent)
    # A message whose sender was killed between the commit and its report is accepted, too.
    assert effects == Counter(sent)


async def _is_done(url: str) -> bool:
    """Whether as many messages had an effect as were accepted. Then each has one, or one has none and another has two."""
    (sent,) = await rows(url, "select count(*) from handoff_message where direction = 'sent' and holder like 'sender.%'")
    (effects,) = await rows(url, "select count(*) from effect")
    return bool(effects >= sent)
