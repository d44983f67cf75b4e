"""The agent of a room is killed by SIGKILL amid the texts of its members, and started again: they come back, and nothing that a
member was told is lost or doubled. Real processes, sandboxes and sockets."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from ports import free_port

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols, OutcomeUnknown, Policy, TreatyError

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "assembly_process.py"
KILLS = 8
MEMBERS = 3
SECURE = Policy(encryption="required")
"""So that a member that comes back takes its place by a proof."""


@pytest.fixture
def assembly(tmp_path: Path) -> Path:
    """The example, with a room that keeps nothing by `Persist`: its file alone has the numbers of the texts."""
    folder = tmp_path / "assembly"
    shutil.copytree(ROOT / "examples" / "assembly", folder)
    room = folder / "handler" / "room.py"
    room.write_text(room.read_text().replace("return [kept, Multicast(", "return [Multicast("))
    return folder


@asynccontextmanager
async def room(folder: Path, port: int, home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A room in a process of its own; it is killed at the end."""
    pipe, arguments = asyncio.subprocess.PIPE, (str(folder), str(port), str(home))
    process = await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), *arguments, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"Listening.\n"
        yield process
    finally:
        process.kill()
        await process.wait()


class Speaker:
    """A member that stays. `told`: number → text, as the room answered. `heard`: number → the texts that were heard under it."""

    def __init__(self, name: str, home: Path, protocols: LocalProtocols) -> None:
        self.name, self.agent = name, Agent(Identity.create(), protocols, AgentConfig(SECURE, home=home))
        self.told, self.heard = dict[int, str](), dict[int, set[str]]()
        self.joins = 0

    async def said(self, number: int, speaker: str, text: str) -> None:
        self.heard.setdefault(number, set()).add(text)

    async def speak(self, uri: str, port: int) -> None:
        """Say one text after the other, each at most once."""
        staying = self.agent.stay(f"ws://127.0.0.1:{port}", protocols=[uri], role="member", serving=[self.said])
        count = 0
        async with staying as peer:
            async for session in peer:
                self.joins += 1
                with suppress(TreatyError):
                    while True:
                        count += 1
                        text = f"{self.name} {count}"
                        with suppress(OutcomeUnknown):
                            self.told[await session.call("say", text=text)] = text


@pytest.mark.deep
@pytest.mark.threat(377)
async def test_a_killed_room_loses_and_doubles_nothing(tmp_path: Path, assembly: Path) -> None:
    protocols, port, draw, home = LocalProtocols([assembly]), free_port(), random.Random(7), tmp_path / "room"
    home.mkdir(mode=0o700)
    Identity.create().save(home / "identity.json")
    speakers = [Speaker(f"S{number}", tmp_path / f"S{number}", protocols) for number in range(MEMBERS)]
    async with AsyncExitStack() as stack:
        for speaker in speakers:
            await stack.enter_async_context(speaker.agent)
        tasks = list[asyncio.Task[None]]()
        for _ in range(KILLS + 1):
            async with room(assembly, port, home) as process:
                tasks = tasks or [asyncio.create_task(each.speak(protocols.uri("assembly"), port)) for each in speakers]
                numbers = [len(each.told) for each in speakers]
                # Each member is back, and was told a number.
                while any(len(each.told) <= before for each, before in zip(speakers, numbers, strict=True)):
                    assert not [task for task in tasks if task.done()]
                    await asyncio.sleep(0.02)
                await asyncio.sleep(draw.uniform(0, 0.5))
                assert process.returncode is None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert all(each.joins == KILLS + 1 for each in speakers)
    numbers = [number for each in speakers for number in each.told]
    assert len(numbers) == len(set(numbers)), "a number was given twice, so the room forgot a text"
    texts = {number: text for each in speakers for number, text in each.told.items()}
    for each in speakers:
        for number, messages in each.heard.items():
            # Heard again at each return, and always the same.
            assert len(messages) == 1
            assert texts.setdefault(number, *messages) in messages
    assert len(set(texts.values())) == len(texts), "a text has two numbers"
