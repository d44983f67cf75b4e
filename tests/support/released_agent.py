"""An agent of any release, with the packages of PYTHONPATH. It names only what all kept releases have.

python tests/support/released_agent.py serve KIND HOME REGISTRY PUBLISHER URI        prints its port once it serves
python tests/support/released_agent.py call KIND HOME REGISTRY PUBLISHER URI URL     prints a JSON object

KIND: code-free, code or shared, and `-e2ee` after it for a session that must be encrypted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from treaty_agent import Agent, AgentConfig, Identity, Policy

HEARD = "heard"


async def serve(kind: str, agent: Agent, uri: str) -> None:
    """Serve the protocol until ended."""

    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    async def quote(item: str) -> dict[str, int]:
        return {"ask": 2000, "floor": 1500}

    async def accept(text: str) -> str:
        return text

    if kind == "shared":
        agent.provides(uri, role="room")(accept)
    else:
        agent.provides(uri)({"code-free": greet, "code": quote}[kind])
    async with agent.listen("127.0.0.1", 0) as port:
        print(port, flush=True)
        await asyncio.get_running_loop().create_future()


async def call(kind: str, agent: Agent, uri: str, url: str) -> None:
    """Call twice, in two sessions, of which the second one resumes; print what came back."""
    report: dict[str, Any] = {"answers": [], "resumed": [], "encrypted": []}
    for _ in range(2):
        options: dict[str, Any] = {}
        event = asyncio.Event()

        async def said(number: int, speaker: str, text: str, event: asyncio.Event = event) -> None:
            event.set()

        if kind == "shared":
            options = {"role": "member", "serving": [said]}
        async with agent.connect(url, protocols=[uri], **options) as session:
            if kind == "shared":
                await session.call("say", text=HEARD)
                await event.wait()
                answer: object = HEARD
            elif kind == "code":
                answer = await session.call("buy", item="lamp", offer=1000, limit=1800)
            else:
                answer = await session.call("greet", name="Ada")
            report["answers"].append(answer)
            report["resumed"].append(session.resumed)
            report["encrypted"].append(type(session.peer).__name__ == "ProvedPeer")
    print(json.dumps(report))


async def main(action: str, kind: str, home: str, registry: str, publisher: str, uri: str, url: str = "") -> None:
    """Be one side."""
    policy = Policy(publishers=[publisher], encryption="required" if kind.endswith("-e2ee") else "off")
    kind = kind.removesuffix("-e2ee")
    identity = Identity.load(Path(home) / "identity.json")
    async with Agent(identity, registry, AgentConfig(policy, home=Path(home))) as agent:
        await (serve(kind, agent, uri) if action == "serve" else call(kind, agent, uri, url))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
