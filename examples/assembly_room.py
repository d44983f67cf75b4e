"""An assembly: python examples/assembly_room.py room PORT HOME, and python examples/assembly_room.py NAME PORT HOME."""

import asyncio
import sys
from pathlib import Path

from treaty_agent import Agent, CallContext, Identity, LocalProtocols, OperationError, Policy

PROTOCOLS = LocalProtocols([Path(__file__).parent / "assembly"])
ASSEMBLY = PROTOCOLS.uri("assembly")


async def serve(agent: Agent, port: int) -> None:
    """Be the room: accept the texts of the members, and announce each line of the standard input."""

    @agent.provides(ASSEMBLY, role="room")
    async def accept(text: str, context: CallContext) -> str:
        if text.isupper():
            raise OperationError(403, f"Not so loud, {context.peer}.")
        return text

    async with agent.listen("127.0.0.1", port) as bound:
        print("The room is at port", bound, flush=True)
        assembly = agent.shared(ASSEMBLY)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            heard = await assembly.call("announce", text=line)
            print("Announced to", heard, flush=True)


async def speak(agent: Agent, name: str, port: int) -> None:
    """Be a member: say each line of the standard input, and write each text that the room tells."""

    async def said(number: int, speaker: str, text: str) -> None:
        print(f"{number}. {text}", flush=True)

    async with agent.connect(f"ws://127.0.0.1:{port}", protocols=[ASSEMBLY], role="member", serving=[said]) as session:
        print("Joined.", flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            try:
                await session.call("say", text=f"{name}: {line}")
            except OperationError as error:
                print(error, flush=True)


async def main(name: str, port: int, home: Path) -> None:
    # Encryption proves the DID of each side, so that a member can come back under its own.
    async with Agent(Identity.create(), PROTOCOLS, Policy(encryption="required"), home=home) as agent:
        await (serve(agent, port) if name == "room" else speak(agent, name, port))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
