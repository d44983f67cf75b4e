"""A chat room and its members: python examples/chat_room.py room PORT HOME, and python examples/chat_room.py NAME PORT HOME."""

import asyncio
import sys
import uuid
from pathlib import Path

from treaty_agent import Agent, Identity, LocalProtocols, OperationError

PROTOCOLS = LocalProtocols([Path(__file__).parent / "chat"])
CHAT = PROTOCOLS.uri("chat")


async def serve(agent: Agent, port: int) -> None:
    """Be the room: tell each text to all members."""
    names: dict[str, str] = {}
    told = 0

    @agent.provides(CHAT, role="room")
    async def join(name: str) -> str:
        member = str(uuid.uuid4())
        names[member] = name
        return member

    @agent.provides(CHAT, role="room")
    async def say(member: str, text: str) -> int:
        nonlocal told
        if member not in names:
            raise OperationError(403, "Join first.")
        told += 1
        # A member that reads nothing holds up the answer for a second at most, and misses the text.
        await agent.broadcast(CHAT, "said", name=names[member], text=text, within=1)
        return told

    async with agent.listen("127.0.0.1", port) as bound:
        print("The room is at port", bound, flush=True)
        await asyncio.Event().wait()


async def speak(agent: Agent, name: str, port: int) -> None:
    """Be a member: say each line of the standard input, and write each text that the room tells."""

    async def said(name: str, text: str) -> None:
        print(f"{name}: {text}", flush=True)

    room = agent.connect(f"ws://127.0.0.1:{port}", protocols=[CHAT], role="member", serving=[said])
    async with room as session:
        member = await session.call("join", name=name)
        print("Joined.", flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            await session.call("say", member=member, text=line)


async def main(name: str, port: int, home: Path) -> None:
    async with Agent(Identity.create(), PROTOCOLS, home=home) as agent:
        await (serve(agent, port) if name == "room" else speak(agent, name, port))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
