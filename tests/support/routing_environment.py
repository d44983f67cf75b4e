"""An environment of message routing in a process of its own, to be killed: python tests/support/routing_environment.py PORT HOME.

It writes a line when it listens. For each line of its standard input, an operation and its arguments as JSON, it writes the
answer. The operation `flood` publishes until the end, and writes the id of each message that was confirmed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from routing import FOLDER

from treaty_agent import Agent, Identity, LocalProtocols

PROTOCOLS = LocalProtocols([FOLDER])
URI = PROTOCOLS.uri("message-routing")


async def ignored(session: Any) -> None:
    """The environment calls its one session, and none of its members'."""


async def serve(port: int, home: Path) -> None:
    """Be the environment until the standard input ends."""
    async with Agent(Identity.load(home / "identity.json"), PROTOCOLS, home=home) as agent:
        agent.on_session(URI, role="environment")(ignored)
        async with agent.listen("127.0.0.1", port):
            shared = agent.shared(URI)
            print("Listening.", flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                operation, arguments = json.loads(line)
                if operation == "flood":
                    for number in itertools.count():
                        name = f"{arguments['prefix']}-{number}"
                        await shared.call("publish", content="x", id=name, send_to=["<none>"])
                        print(name, flush=True)
                print(json.dumps(await shared.call(operation, **arguments)), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
