"""Two agents that never met, in thirty lines: python examples/agents.py URL#KEY PROTOCOL-URI (a published greeting)."""

import asyncio
import sys
import tempfile
from pathlib import Path

from treaty_client import Agent, Identity, Policy


async def main(registry: str, protocol: str) -> None:
    publisher = protocol.split("/")[4]  # the namespace; here a did:key, whose handlers both agents agree to run
    policy = Policy(publishers=[publisher])
    with tempfile.TemporaryDirectory() as homes:
        async with (
            Agent(Identity.create(), registry, policy, home=Path(homes, "host")) as host,
            Agent(Identity.create(), registry, policy, home=Path(homes, "guest")) as guest,
        ):

            @host.provides(protocol)
            async def greet(name: str) -> str:
                return f"Hello, {name}!"

            async with (
                host.listen("127.0.0.1", 0) as port,
                guest.connect(f"ws://127.0.0.1:{port}", topic="social/greeting") as session,
            ):
                print(await session.call("greet", name="Ada"))


asyncio.run(main(*sys.argv[1:]))
