"""Two agents that never met, in thirty lines: python examples/agents.py HOME HOME PROTOCOL-URI (a published greeting)."""

import asyncio
import sys
from pathlib import Path

from treaty_agent import Agent


async def main(host_home: str, guest_home: str, protocol: str) -> None:
    async with Agent.from_home(Path(host_home)) as host:

        @host.provides(protocol)
        async def greet(name: str) -> str:
            return f"Hello, {name}!"

        async with (
            host.listen("127.0.0.1", 0) as port,
            Agent.from_home(Path(guest_home)) as guest,
            guest.connect(f"ws://127.0.0.1:{port}", topic="social/greeting") as session,
        ):
            print(await session.call("greet", name="Ada"))
        print(f"{guest.did} and {host.did}: {', '.join(event.name for event in session.timeline)}")


asyncio.run(main(*sys.argv[1:]))
