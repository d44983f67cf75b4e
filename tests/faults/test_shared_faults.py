"""Fault: members and workers of a shared session that stop, are killed or use up their share. Real sandboxes and processes."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from assemblies import ASSEMBLY, Member
from sandboxes import sandboxed

from treaty_agent import (
    Agent,
    AgentConfig,
    Identity,
    LocalProtocols,
    Passivation,
    SandboxLimits,
    Session,
    SessionTimeouts,
    TreatyError,
)
from treaty_agent.testing import Simulation
from treaty_agent.transport import memory
from treaty_client.authoring.new_project import NewProtocol, write_project

SUPPORT = Path(__file__).parents[1] / "support"
LONG = 60_000


def changed(tmp_path: Path, file: str, old: str, new: str) -> Path:
    """The example with one change in its handler."""
    folder = tmp_path / "assembly"
    shutil.copytree(ASSEMBLY, folder)
    text = (folder / "handler" / file).read_text()
    assert text.count(old) == 1
    (folder / "handler" / file).write_text(text.replace(old, new))
    return folder


class Room:
    """A room in a real sandbox, and simulated members of it."""

    def __init__(self, agent: Agent, simulation: Simulation, stack: AsyncExitStack, uri: str) -> None:
        self.agent, self.uri = agent, uri
        self._simulation, self._stack = simulation, stack

    async def joined(self, domain: str) -> tuple[Member, Session]:
        member = Member(self._simulation.agent(domain))
        near, far = memory.pair(source=member.agent.did)
        serving = asyncio.create_task(self.agent.accept(far))
        self._stack.push_async_callback(asyncio.wait, {serving})
        self._stack.push_async_callback(near.close)
        over = member.agent.connect_over(near, protocols=[self.uri], did=self.agent.did, role="member", serving=[member.said])
        return member, await self._stack.enter_async_context(over)


@asynccontextmanager
async def room(folder: Path, config: AgentConfig) -> AsyncIterator[Room]:
    source = LocalProtocols([folder])
    async with Simulation([folder]) as simulation, AsyncExitStack() as stack:
        agent = await stack.enter_async_context(Agent(Identity.create(), source, config))
        uri = source.uri("assembly")

        @agent.provides(uri, role="room")
        async def accept(text: str) -> str:
            return text

        await agent.prepare()
        yield Room(agent, simulation, stack, uri)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


@pytest.mark.deep
async def test_a_session_outlives_the_processor_time_of_its_workers(tmp_path: Path) -> None:
    burning = "        match event:\n            case Opened(stored=stored):"
    folder = changed(tmp_path, "room.py", burning, f"        sum(range(2_000_000))\n{burning}")
    config = AgentConfig(home=tmp_path / "home", sandbox=SandboxLimits(cpu=2))
    async with room(folder, config) as meeting:
        ada, says = await meeting.joined("ada.example")
        # Each text is two events. Together they take several times the seconds that a worker may use.
        for number in range(1, 81):
            assert await says.call("say", text=f"Text {number}.") == number
        await ada.has_heard("Text 80.")
        assert meeting.agent.metrics().workers.started >= 3


@pytest.mark.threat(211)
async def test_a_join_without_answer_ends_its_session_alone(tmp_path: Path) -> None:
    folder = changed(
        tmp_path,
        "room.py",
        "                self.members.append(peer)\n",
        "                while True:\n                    pass\n",
    )
    config = AgentConfig(home=tmp_path / "home", sandbox=SandboxLimits(event=0.5))
    async with room(folder, config) as meeting:
        shared = meeting.agent.shared(meeting.uri)
        assert await shared.call("announce", text="Before.") == 0
        joining = [meeting.joined(f"m{number}.example") for number in range(3)]
        outcomes = await asyncio.gather(*joining, return_exceptions=True)
        assert all(isinstance(outcome, TreatyError) for outcome in outcomes)
        await until(lambda: not meeting.agent.metrics().sessions_in)
        assert shared.members == []
        # The next session begins with what the former one kept.
        assert await shared.call("announce", text="After.") == 0


async def test_a_session_resumes_from_its_snapshot_after_a_kill(tmp_path: Path) -> None:
    async with room(ASSEMBLY, AgentConfig(home=tmp_path / "home")) as meeting:
        members = [await meeting.joined(f"{name}.example") for name in ("ada", "bob")]
        for number in range(1, 5):
            # Some workers die with a message under way, some between two.
            calls = [asyncio.create_task(says.call("say", text=f"Text {number}.")) for _, says in members]
            if number % 2:
                await asyncio.gather(*calls)
            for pid in sandboxed():
                os.kill(pid, signal.SIGKILL)
            assert sorted([await call for call in calls]) == [2 * number - 1, 2 * number]
        for member, _ in members:
            await member.has_heard(*(f"Text {1 + place // 2}." for place in range(8)))
            assert len(member.heard) == 8
        assert len(meeting.agent.shared(meeting.uri).members) == 2


@pytest.mark.deep
async def test_a_session_with_a_large_snapshot_stays_in_its_worker(tmp_path: Path) -> None:
    folder = changed(tmp_path, "room.py", "return encode_json(vars(self))", 'return encode_json(vars(self)) + b" " * 70_000')
    config = AgentConfig(home=tmp_path / "home", workers=Passivation(idle=0.1))
    async with room(folder, config) as meeting:
        ada, says = await meeting.joined("ada.example")
        bob, _ = await meeting.joined("bob.example")
        started = meeting.agent.metrics().workers.started
        for number in range(1, 4):
            assert await says.call("say", text=f"Text {number}.") == number
            await asyncio.sleep(0.3)  # it would have rested
        for member in (ada, bob):
            await member.has_heard("Text 1.", "Text 2.", "Text 3.")
        assert len(meeting.agent.shared(meeting.uri).members) == 2
        assert meeting.agent.metrics().workers.running >= 1
        assert meeting.agent.metrics().workers.started <= started + 1


@pytest.mark.deep
@pytest.mark.threat(379)
async def test_only_a_member_whose_message_kills_workers_is_dropped(
    tmp_path: Path,
) -> None:
    dying = (
        "if message['text'] == 'Die.':\n                        __import__('os')._exit(1)\n                    self.asked += 1\n"
    )
    folder = changed(tmp_path, "room.py", "self.asked += 1\n", dying)
    async with room(folder, AgentConfig(home=tmp_path / "home")) as meeting:
        joined = [await meeting.joined(f"m{number}.example") for number in range(200)]
        assert await joined[0][1].call("say", text="Kept.") == 1
        await asyncio.gather(*(member.has_heard("Kept.") for member, _ in joined))
        for pid in sandboxed():
            os.kill(pid, signal.SIGKILL)
        assert await joined[1][1].call("say", text="Not lost.") == 2
        await asyncio.gather(*(member.has_heard("Kept.", "Not lost.") for member, _ in joined))
        with pytest.raises(TreatyError) as caught:
            await joined[1][1].call("say", text="Die.")
        assert caught.value.peer_code == "session.message"
        await until(lambda: len(meeting.agent.shared(meeting.uri).members) == 199)
        assert await joined[0][1].call("say", text="After.") == 3
        others = [member for member, session in joined if session is not joined[1][1]]
        await asyncio.gather(*(member.has_heard("Kept.", "Not lost.", "After.") for member in others))


@pytest.mark.deep
@pytest.mark.threat(211)
async def test_a_process_that_stops_reading_is_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    write_project(folder, NewProtocol("board", "social/board", "shared", "python"))
    for file in (folder / "manifest.json", folder / "handler" / "__init__.py"):
        file.write_text(
            file.read_text().replace('"maxLength": 100', f'"maxLength": {LONG}').replace('"text": 100', f'"text": {LONG}')
        )
    source = LocalProtocols([folder])
    uri, stopped = source.uri("board"), None
    timeouts = SessionTimeouts(send=1.0)
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(
            Agent(Identity.create(), source, AgentConfig(home=tmp_path / "room", timeouts=timeouts))
        )

        @agent.provides(uri, role="room")
        async def post(text: str) -> None: ...

        port = await stack.enter_async_context(agent.listen("127.0.0.1", 0))
        processes = []
        try:
            for name in ("stopped", "reading"):
                arguments = [str(SUPPORT / "board_member.py"), str(folder), str(tmp_path / name), f"ws://127.0.0.1:{port}"]
                process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
                processes.append(process)
                assert process.stdout is not None
                while await process.stdout.readline() != b"joined\n":
                    pass
            stopped, reading = processes
            shared = agent.shared(uri)
            assert len(shared.members) == 2
            os.kill(stopped.pid, signal.SIGSTOP)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            count = 0
            # Far beyond the buffers of both kernels and the 8 MiB that may wait for a member.
            while len(shared.members) == 2 or count < 1_000:
                await shared.call("announce", text="x" * LONG)
                count += 1
                await asyncio.sleep(0.002)
                assert count < 20_000
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
            assert len(shared.members) == 1
            assert reading.stdout is not None
            assert int(await reading.stdout.readline()) in (5, LONG)
        finally:
            for process in processes:
                process.kill()
                await process.wait()
