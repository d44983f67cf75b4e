"""A node of AIP: `aip_process.py ADDRESS GATEWAY` prints its address when it is registered, and answers until it is killed."""

from __future__ import annotations

import asyncio
import sys

from treaty_aip import Agent


async def main(address: str, gateway: str) -> None:
    """Answer each inquiry with its text, but for "wait"."""
    agent = await Agent(address, "x").start()
    await agent.register_to_gateway(gateway)
    print(agent.address, flush=True)
    while True:
        inquiry = await agent.receive_inquiry()
        if (text := inquiry.content[0].text) != "wait":
            await agent.submit_feedback(inquiry.session_id, inquiry.sender_id, text or "")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
