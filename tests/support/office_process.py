"""An office that books appointments, in a process of its own that SIGTERM ends: examples/appointment, without a registry.

python tests/support/office_process.py HOME PORT [DRAIN]      prints its port once it serves

`HOME/bookings` gets a line for each booking. The names of `SLOW` are booked when `HOME/go` exists. A day of `find` never
ends, but `SHORT_DAY` does.
`DRAIN`: the seconds of `timeouts.drain`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols, Policy
from treaty_agent.sessions.interfaces import SessionTimeouts

PROTOCOL = Path(__file__).parents[2] / "examples" / "appointment"
SLOW, SHORT_DAY = "slow", "2030-05-03"


async def serve(home: Path, port: int, drain: float) -> None:
    """Book everything that is asked for, until a signal comes."""
    protocols = LocalProtocols([PROTOCOL])
    config = AgentConfig(Policy(), SessionTimeouts(drain=drain), home=home)
    async with Agent(Identity.load(home / "identity.json"), protocols, config) as office:

        @office.provides(protocols.uri("appointment"))
        async def book(start: str, name: str) -> str:
            if name.startswith(SLOW):
                print("CALLED", flush=True)
                while not (home / "go").exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            with (home / "bookings").open("a") as file:
                file.write(name + "\n")
            return name

        @office.provides(protocols.uri("appointment"))
        async def find(day: str) -> AsyncIterator[dict[str, object]]:
            yield {"start": f"{day}T09:00", "minutes": 30}
            if day == SHORT_DAY:
                await asyncio.sleep(0.3)
                yield {"start": f"{day}T10:00", "minutes": 30}
                return
            await asyncio.get_running_loop().create_future()

        @office.provides(protocols.uri("appointment"))
        async def cancel(booking: str) -> None: ...

        serving = asyncio.create_task(office.serve("127.0.0.1", port))
        while not await _accepts(port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        print(port, flush=True)
        await serving
    print("ENDED", flush=True)


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if sys.argv[3:] else 10.0))
