"""A process that joins a room as a member, says "joined", and hears texts until it is ended: FOLDER HOME URL."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols


async def main(folder: str, home: str, url: str) -> None:
    """Join, and stay."""
    source = LocalProtocols([folder])
    uri = source.uri("board")

    async def heard(speaker: str, text: str) -> None:
        print(len(text), flush=True)

    async with (
        Agent(Identity.create(), source, AgentConfig(home=Path(home))) as agent,
        agent.connect(url, protocols=[uri], role="member", serving=[heard]) as session,
    ):
        await session.call("post", text="Here.")
        print("joined", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
