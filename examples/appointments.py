"""An office and a customer: python examples/appointments.py HOME HOME PROTOCOL-URI (a published appointment)."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from treaty_agent import Agent, OperationError, Session


class Office:
    """The calendar of an office: slots of half an hour by their start, each with its booking or None."""

    def __init__(self, *starts: str) -> None:
        self.slots: dict[str, str | None] = dict.fromkeys(starts)
        self.bookings: dict[str, str] = {}

    async def find(self, day: str) -> AsyncIterator[dict[str, object]]:
        slots = {start: booking for start, booking in self.slots.items() if start.startswith(day)}
        if not slots:
            raise OperationError(404, "The office has no such day in its calendar.")
        for start, booking in slots.items():
            if booking is None:
                yield {"start": start, "minutes": 30}

    async def book(self, start: str, name: str) -> str:
        if start not in self.slots:
            raise OperationError(404, "The office has no such slot.")
        if self.slots[start] is not None:
            raise OperationError(409, "The slot is taken.")
        number = f"B{len(self.bookings) + 1}"
        self.bookings[number] = start
        self.slots[start] = number
        return number

    async def cancel(self, booking: str) -> None:
        if booking not in self.bookings:
            raise OperationError(404, "There is no such booking.")
        start = self.bookings[booking]
        if self.slots[start] != booking:
            raise OperationError(410, "The booking was cancelled before.")
        self.slots[start] = None

    def open(self, agent: Agent, protocol: str) -> None:
        for function in (self.find, self.book, self.cancel):
            agent.provides(protocol)(function)


async def free_slots(session: Session, day: str) -> list[str]:
    async with session.stream("find", day=day) as slots:
        return [slot["start"] async for slot in slots]


async def main(office_home: str, customer_home: str, protocol: str) -> None:
    async with Agent.from_home(Path(office_home)) as agent:
        Office("2030-05-02T09:00", "2030-05-02T09:30").open(agent, protocol)
        async with (
            agent.listen("127.0.0.1", 0) as port,
            Agent.from_home(Path(customer_home)) as customer,
            customer.connect(f"ws://127.0.0.1:{port}", topic="scheduling/appointment") as session,
        ):
            first, *_ = await free_slots(session, "2030-05-02")
            booking = await session.call("book", start=first, name="Ada")
            print(f"{first} is booked: {booking}")
            try:
                await session.call("book", start=first, name="Bob")
            except OperationError as error:
                print(f"{error.status}: {error.message}")
            await session.call("cancel", booking=booking)
            print(f"Free: {', '.join(await free_slots(session, '2030-05-02'))}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
