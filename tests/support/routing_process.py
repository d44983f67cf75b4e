"""The feedback loop across processes: the environment is an agent in this one, and each member is an agent in its own.

    python tests/support/routing_process.py NAME PORT ROUNDS HOME

When a line comes to its standard input, a member writes how often it was called, and what it has in its memory.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import feedback_script as script
from routing import FOLDER, Script, joining
from routing_runs import ROUNDS, Run

from treaty_agent import Agent, Identity, LocalProtocols

PROTOCOLS = LocalProtocols([FOLDER])
URI = PROTOCOLS.uri("message-routing")


async def in_processes(rounds: int) -> Run:
    """A run across four processes beside this one."""
    with tempfile.TemporaryDirectory(prefix="treaty-") as name:
        async with Agent(Identity.create(), PROTOCOLS, home=Path(name) / "environment") as agent:
            agent.on_session(URI, role="environment")(_nothing)
            async with agent.listen("127.0.0.1", 0) as port:
                return await _loop(agent, port, rounds, Path(name))


async def _nothing(session: Any) -> None:
    """The environment calls its one session, and none of its members'."""


async def _loop(agent: Agent, port: int, rounds: int, home: Path) -> Run:
    environment, processes = agent.shared(URI), []
    pipe = asyncio.subprocess.PIPE
    try:
        for name in script.MEMBERS:
            command = (sys.executable, str(Path(__file__)), name, str(port), str(rounds), str(home / name))
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
            processes.append(process)
            assert process.stdout is not None
            # One after the other, so that they join in the order of the script.
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"Joined.\n"
        await environment.call("publish", **script.REQUEST)
        await environment.call("run", rounds=ROUNDS)
        history: list[dict[str, Any]] = []
        while page := (await environment.call("readHistory", start=len(history)))["messages"]:
            history += page
        is_idle = (await environment.call("readMembers"))["idle"]
        members, seen = {}, []
        for name, process in zip(script.MEMBERS, processes, strict=True):
            data = json.loads((await asyncio.wait_for(process.communicate(b"\n"), 60))[0])
            members[name] = Script(name, rounds)
            members[name].calls = Counter(data["calls"])
            seen += data["seen"]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return Run(rounds, members, history, seen, is_idle)


async def member(name: str, port: int, rounds: int, home: Path) -> None:
    """Be a member until a line comes."""
    application = Script(name, rounds)
    async with Agent(Identity.create(), PROTOCOLS, home=home) as agent:
        connection = agent.connect(
            f"ws://127.0.0.1:{port}", protocols=[URI], role="member", serving=[application.act, application.think]
        )
        async with connection as session:
            await session.call("join", **joining(name))
            print("Joined.", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            recalled = (await session.call("recall"))["messages"]
    seen = [message for message in recalled if message["sent_from"] != script.MEMBERS[name]]
    print(json.dumps({"calls": application.calls, "seen": seen}))


if __name__ == "__main__":
    asyncio.run(member(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
