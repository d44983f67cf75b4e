"""Ten drivers, each an agent with a key of its own: python -m agency.drivers --home DIR …

They stay in the room of rides.example. Their homes are below HOME, with its policy and its registry.
"""

from __future__ import annotations

import asyncio
import shutil
import zlib
from pathlib import Path

from treaty_agent import Agent, Identity, OperationError

from .settings import Settings, parse, parser
from .vendor import PLACES

DRIVERS = 10


async def drive(home: Path, number: int) -> None:
    """Be a driver until cancelled."""

    async def bid(ride: str, place: str) -> int:
        if place not in PLACES:
            raise OperationError(404, "I do not drive there.")
        return 2_000 + zlib.crc32(f"{ride} {number}".encode()) % 1_000

    async with Agent.from_home(home) as agent:
        staying = agent.stay("rides.example", topic="travel/rides", role="driver", serving=[bid])
        async with staying as dispatch:
            async for _ in dispatch:
                pass


def found(home: Path, number: int) -> Path:
    """Return the home of a driver, which is made if need be."""
    own = home / f"driver-{number}"
    if not (own / "identity.json").exists():
        own.mkdir(mode=0o700, exist_ok=True)
        for name in ("registries.json", "policy.toml", "agent.toml"):
            shutil.copy(home / name, own)
        Identity.create().save(own / "identity.json")
    return own


async def main(settings: Settings) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(DRIVERS):
            group.create_task(drive(found(settings.home, number), number))


if __name__ == "__main__":
    asyncio.run(main(parse(parser().parse_args())))
