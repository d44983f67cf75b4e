"""The process of an environment, and its worker, are killed by SIGKILL: the history is kept, the members join again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from depth import FULL
from ports import free_port
from routing_environment import PROTOCOLS, URI, ignored
from sandboxes import sandboxed

from treaty_agent import Agent, Identity, Session, TreatyError

PROGRAM = Path(__file__).parents[1] / "support" / "routing_environment.py"
KILLS = 20 if FULL else 3
FLOW = {"<idle>": ["Do"], "Do": ["<idle>"]}


class Environment:
    """An environment in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, operation: str, **arguments: Any) -> Any:
        """Have it call an operation."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([operation, arguments]).encode() + b"\n")
        return json.loads(await self.line())

    async def line(self) -> bytes:
        """Its next line; none after its end."""
        assert self.process.stdout is not None
        return await asyncio.wait_for(self.process.stdout.readline(), 60)

    async def kill(self) -> list[bytes]:
        """End it by SIGKILL. Return the lines that were not read."""
        self.process.kill()
        await self.process.wait()
        rest = []
        while line := await self.line():
            rest.append(line)
        return rest


@asynccontextmanager
async def environment(port: int, home: Path) -> AsyncIterator[Environment]:
    """Start it; it is killed at the end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, str(port), str(home), stdin=pipe, stdout=pipe)
    running = Environment(process)
    try:
        assert await running.line() == b"Listening.\n"
        yield running
    finally:
        if process.returncode is None:
            await running.kill()


class Member:
    """A member and its application. While `hangs` is set, it finishes no action before `may_end`."""

    def __init__(self, home: Path) -> None:
        self.agent = Agent(Identity.create(), PROTOCOLS, home=home)
        self.news = asyncio.Queue[str]()
        self.hangs, self.may_end = False, asyncio.Event()

    @asynccontextmanager
    async def joined(self, port: int) -> AsyncIterator[Session]:
        """Join as Bob."""

        async def act(action: str, news: list[dict[str, Any]]) -> dict[str, Any]:
            for message in news:
                self.news.put_nowait(message["content"])
            if self.hangs:
                await self.may_end.wait()
            return {}

        async def think(state: str, choices: list[str], news: list[dict[str, Any]]) -> dict[str, str]:
            return {"state": choices[0]}

        connection = self.agent.connect(f"ws://127.0.0.1:{port}", protocols=[URI], role="member", serving=[act, think])
        async with connection as session:
            await session.call("join", name="Bob", address="Worker", transitions=FLOW)
            yield session


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of an environment, with an identity that survives its process."""
    folder = tmp_path / "environment"
    folder.mkdir(mode=0o700)
    Identity.create().save(folder / "identity.json")
    return folder


async def contents(shared: Any) -> list[str]:
    """The history."""
    return [message["content"] for message in (await shared("readHistory", start=0))["messages"]]


@pytest.mark.deep
async def test_members_rejoin_a_killed_environment(tmp_path: Path, home: Path) -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        bob = Member(tmp_path / "bob")
        await stack.enter_async_context(bob.agent)
        async with environment(port, home) as first:
            session = await stack.enter_async_context(bob.joined(port))
            await first.ask("publish", content="handled")
            assert (await first.ask("run", rounds=5))["idle"]
            await session.call("publish", content="from Bob", send_to=["<none>"])
            await first.ask("publish", content="waits for Bob")
            await first.kill()
        with pytest.raises(TreatyError):
            await session.call("publish", content="lost")
        async with environment(port, home) as second:
            assert await contents(second.ask) == ["handled", "from Bob", "waits for Bob"]
            assert await second.ask("readMembers") == {"idle": True, "members": []}
            await stack.enter_async_context(bob.joined(port))
            await second.ask("publish", content="after")
            assert await second.ask("run", rounds=5) == {"idle": True, "rounds": 1, "failures": []}
            assert await contents(second.ask) == ["handled", "from Bob", "waits for Bob", "after"]
        # What waited is in the history alone; Bob's agent joined with a new session.
        assert [bob.news.get_nowait() for _ in range(bob.news.qsize())] == ["handled", "after"]


@pytest.mark.deep
async def test_a_killed_environment_keeps_confirmed_messages(home: Path) -> None:
    port, draw, confirmed = free_port(), random.Random(5), list[str]()
    for number in range(KILLS):
        async with environment(port, home) as running:
            assert running.process.stdin is not None
            running.process.stdin.write(b'["flood", {"prefix": "k%d"}]\n' % number)
            lines = [await running.line() for _ in range(draw.randrange(1, 30))]
            confirmed += [line.decode().strip() for line in (*lines, *await running.kill()) if line.endswith(b"\n")]
        async with environment(port, home) as running:
            history = list[str]()
            while page := (await running.ask("readHistory", start=len(history)))["messages"]:
                history += [message["id"] for message in page]
        # One may be stored and not confirmed.
        assert history[: len(confirmed)] == confirmed
        assert len(history) <= len(confirmed) + 1
        confirmed = history


@pytest.mark.deep
async def test_a_killed_worker_costs_neither_the_round_nor_the_members(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(Agent(Identity.create(), PROTOCOLS, home=tmp_path / "environment"))
        agent.on_session(URI, role="environment")(ignored)
        port = await stack.enter_async_context(agent.listen("127.0.0.1", 0))
        shared = agent.shared(URI)
        await shared.call("publish", content="before", send_to=["<none>"])
        workers = sandboxed()  # of the environment, and those that wait for a handler
        bob = Member(tmp_path / "bob")
        bob.hangs = True
        await stack.enter_async_context(bob.agent)
        session = await stack.enter_async_context(bob.joined(port))
        await shared.call("publish", content="to Bob")
        running = asyncio.create_task(shared.call("run", rounds=5))
        assert await asyncio.wait_for(bob.news.get(), 60) == "to Bob"
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        await session.call("publish", content="from Bob", send_to=["<none>"])
        assert await contents(shared.call) == ["before", "to Bob", "from Bob"]
        assert not running.done()
        bob.may_end.set()
        assert await asyncio.wait_for(running, 60) == {"idle": True, "rounds": 1, "failures": []}
