"""A room of the assembly in a process of its own, to be killed: python tests/support/assembly_process.py FOLDER PORT HOME.

`FOLDER`: of the protocol. It writes a line when it listens, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols, Policy


async def serve(folder: Path, port: int, home: Path) -> None:
    """Be the room, which accepts everything."""
    protocols = LocalProtocols([folder])
    config = AgentConfig(Policy(encryption="required"), home=home)
    async with Agent(Identity.load(home / "identity.json"), protocols, config) as agent:

        @agent.provides(protocols.uri("assembly"), role="room")
        async def accept(text: str) -> str:
            return text

        async with agent.listen("127.0.0.1", port):
            print("Listening.", flush=True)
            await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
