"""The agent auditor.example: python -m agency.auditor --home DIR …

It reads the journals of the vendors and the bank, compares them, and writes HOME/audit.jsonl, a line for each audit.
"""

from __future__ import annotations

import asyncio
import json

from treaty_agent import Agent, Peer
from treaty_consensus.errors import TreatyError

from .settings import Settings, parse, parser


class Journal:
    """The journal of another agent, as far as it was read. `events`: (key, event) → price."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.read, self.events = peer, 0, dict[tuple[str, str], int]()

    async def update(self) -> None:
        while entries := await self.peer.call("journal", after=self.read):
            self.read = entries[-1]["number"]
            self.events |= {(entry["key"], entry["event"]): entry["price"] for entry in entries}

    def active(self, event: str) -> dict[str, int]:
        """Return the price of each key with an event that was not cancelled."""
        return {
            key: price for (key, what), price in self.events.items() if what == event and (key, "cancelled") not in self.events
        }


class Auditor:
    """The business of the auditor."""

    def __init__(self, agent: Agent) -> None:
        def bookings(domain: str) -> Journal:
            return Journal(agent.peer(domain, topic="travel/booking", role="customer"))

        self.legs = [bookings("flights.example"), bookings("hotels.example")]
        self.bank = Journal(agent.peer("payments.example", topic="travel/payment"))

    async def audit(self) -> dict[str, object]:
        """Read the new events. Return the paid trips, the trips that are booked and not paid, and those whose price is not that
        of their legs."""
        for journal in (*self.legs, self.bank):
            await journal.update()
        paid = self.bank.active("captured")
        booked: dict[str, list[int]] = {}
        for leg in self.legs:
            for key, price in leg.active("booked").items():
                booked.setdefault(key.rpartition("-")[0], []).append(price)
        wrong = [
            trip for trip, price in paid.items() if len(booked.get(trip, ())) != len(self.legs) or sum(booked[trip]) != price
        ]
        return {"paid": paid, "open": sorted(booked.keys() - paid.keys()), "wrong": sorted(wrong)}


async def main(settings: Settings, every: float) -> None:
    async with Agent.from_home(settings.home) as agent:
        auditor = Auditor(agent)
        while True:
            try:
                line = await auditor.audit()
            except TreatyError as error:
                line = {"code": error.code, "message": error.message}
            with (settings.home / "audit.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            await asyncio.sleep(every)


if __name__ == "__main__":
    commands = parser()
    commands.add_argument("--every", type=float, default=2.0)
    given = commands.parse_args()
    asyncio.run(main(parse(given), given.every))
