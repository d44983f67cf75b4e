"""Fault: the process of a room is stopped again and again while ten members speak. Real processes, sandboxes and proofs."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols, Policy, Session

EXAMPLES = Path(__file__).parents[2] / "examples"
PROTOCOLS = LocalProtocols([EXAMPLES / "assembly"])
ASSEMBLY = PROTOCOLS.uri("assembly")
MEMBERS, PAUSES = 10, 4


async def speaking(session: Session, name: int, over: asyncio.Event) -> list[tuple[int, str]]:
    """Say texts until the pauses are over, and return them with the numbers that the room gave."""
    lines: list[tuple[int, str]] = []
    while not over.is_set():
        text = f"{name}: text {len(lines)}."
        lines.append((await session.call("say", text=text), text))
    return lines


@pytest.mark.deep
async def test_a_paused_room_of_ten_loses_no_member_and_no_text(tmp_path: Path) -> None:
    program = [sys.executable, str(EXAMPLES / "assembly_room.py"), "room", "0", str(tmp_path / "room")]
    pipe = asyncio.subprocess.PIPE
    room = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe)
    try:
        assert room.stdout is not None
        url = f"ws://127.0.0.1:{int((await room.stdout.readline()).split()[-1])}"
        lines_of: list[list[tuple[int, str]]] = [[] for _ in range(MEMBERS)]
        async with AsyncExitStack() as stack:
            sessions = []
            for number, texts in enumerate(lines_of):

                async def said(number: int, speaker: str, text: str, texts: list[tuple[int, str]] = texts) -> None:
                    texts.append((number, text))

                config = AgentConfig(Policy(encryption="required"), home=tmp_path / f"{number}")
                agent = await stack.enter_async_context(Agent(Identity.create(), PROTOCOLS, config))
                joining = agent.connect(url, protocols=[ASSEMBLY], role="member", serving=[said])
                sessions.append(await stack.enter_async_context(joining))
            over = asyncio.Event()
            calls = [asyncio.create_task(speaking(session, number, over)) for number, session in enumerate(sessions)]
            for _ in range(PAUSES):
                await asyncio.sleep(0.5)
                room.send_signal(signal.SIGSTOP)
                await asyncio.sleep(2.5)  # longer than an event may take
                room.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.5)
            over.set()
            texts = sorted(text for one in await asyncio.gather(*calls) for text in one)
            assert [number for number, _ in texts] == list(range(1, len(texts) + 1))
            async with asyncio.timeout(20):
                while any(len(one) < len(texts) for one in lines_of):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert [sorted(one) for one in lines_of] == [texts] * MEMBERS
    finally:
        room.kill()
        await room.wait()
