"""The agent traveller.example: python -m agency.traveller --home DIR … --trips 10

It lets the agency arrange trips, several at once, and approves prices within its budget. It writes HOME/trips.jsonl, a line for
each trip. While there is a file HOME/more, it makes more trips than were asked for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

from treaty_agent import Agent, OperationError
from treaty_consensus.errors import TreatyError

from .settings import Settings, parse, parser
from .vendor import PLACES

TRIPS_A_DAY = 200


class Traveller:
    """The business of a traveller. `results`: the file of the outcomes."""

    def __init__(self, agent: Agent, results: Path) -> None:
        self.agency = agent.peer("planner.example", topic="travel/booking", role="traveller", serving=[self.approve])
        self.results, self.budgets = results, dict[str, int]()

    async def approve(self, trip: str, price: int) -> bool:
        if trip not in self.budgets:
            raise OperationError(404, "There is no such trip.")
        return price <= self.budgets[trip]

    async def travel(self, number: int) -> None:
        """Let one trip be arranged, and write its outcome down."""
        trip, place = f"T{number:04}", PLACES[number % len(PLACES)]
        day = f"2030-05-{number // TRIPS_A_DAY % 31 + 1:02}"
        self.budgets[trip] = 50_000 if number % 10 else 28_000
        now = asyncio.get_running_loop().time
        began, outcome = now(), dict[str, object]()
        try:
            outcome = {"price": await self.agency.call("arrange", trip=trip, place=place, day=day, name="Ada")}
        except TreatyError as error:
            outcome = {"code": error.code, "message": error.message}
        line = {"trip": trip, "began": began, "seconds": now() - began, **outcome}
        with self.results.open("a") as file:
            file.write(json.dumps(line) + "\n")


async def main(settings: Settings, trips: int, at_once: int, every: float) -> None:
    async with Agent.from_home(settings.home) as agent:
        traveller = Traveller(agent, settings.home / "trips.jsonl")
        more, room = settings.home / "more", asyncio.Semaphore(at_once)
        async with asyncio.TaskGroup() as group:
            for number in itertools.takewhile(lambda number: number < trips or more.exists(), itertools.count()):
                await room.acquire()
                group.create_task(traveller.travel(number)).add_done_callback(lambda _: room.release())
                await asyncio.sleep(every)


if __name__ == "__main__":
    commands = parser()
    commands.add_argument("--trips", type=int, default=10)
    commands.add_argument("--at-once", type=int, default=4)
    commands.add_argument("--every", type=float, default=0.0)
    given = commands.parse_args()
    asyncio.run(main(parse(given), given.trips, given.at_once, given.every))
