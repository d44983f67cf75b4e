"""The agent planner.example, an agency: python -m agency.planner --home DIR …

It books the legs of a trip, asks the traveller to approve the price, pays, and orders a ride at the place. If the trip is lost on
the way, it cancels the legs. All keys follow from the key of the trip, so a trip that is arranged again, after a crash in its
middle, goes on where it was.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from treaty_agent import Agent, CallContext, OperationError, TreatyError

from .ledger import Ledger
from .settings import Settings, owner_of, serve

GONE = (404, 409)
"""The answers of a vendor that mean: this leg is not to be had."""


class VendorPeer:
    """A vendor of one leg, as the agency sees it."""

    def __init__(self, agent: Agent, domain: str) -> None:
        self.offers = agent.peer(domain, topic="travel/offers")
        self.bookings = agent.peer(domain, topic="travel/booking", role="customer")
        self.leg = domain.partition(".")[0]

    async def book(self, trip: str, place: str, day: str, name: str) -> int:
        """Book the cheapest offer that is left, and return its price. Raises `OperationError` with 409 or 410."""
        try:
            async with self.offers.stream("search", place=place, day=day) as offers:
                found = [offer["offer"] async for offer in offers]
            for offer in found:
                try:
                    booked = await self.bookings.call("book", booking=f"{trip}-{self.leg}", offer=offer, name=name)
                    return int(booked["price"])
                except OperationError as error:
                    if error.status not in GONE:
                        raise
        except OperationError as error:
            if error.status not in GONE:
                raise
        raise OperationError(409, f"No {self.leg} are left.")

    async def cancel(self, trip: str) -> None:
        await self.bookings.call("cancel", booking=f"{trip}-{self.leg}")


class Agency:
    """The business of the agency."""

    def __init__(self, agent: Agent, ledger: Ledger) -> None:
        self.agent, self.ledger, self.turns = agent, ledger, defaultdict[str, asyncio.Lock](asyncio.Lock)
        self.vendors = [VendorPeer(agent, domain) for domain in ("flights.example", "hotels.example")]
        self.bank = agent.peer("payments.example", topic="travel/payment")
        self.rides = agent.peer("rides.example", topic="travel/rides", role="customer")

    async def arrange(self, trip: str, place: str, day: str, name: str, context: CallContext) -> int:
        if not self.ledger.is_of(trip, owner_of(context)):
            raise OperationError(404, "There is no such trip.")
        # A traveller that lost its connection asks in another session, and the first run may not know of it yet.
        async with self.turns[trip]:
            return await self._arrange(trip, place, day, name, context)

    async def _arrange(self, trip: str, place: str, day: str, name: str, context: CallContext) -> int:
        if known := self.ledger.find(trip, "arranged"):
            return known.price
        if known := self.ledger.find(trip, "lost"):
            raise OperationError(known.price, known.detail)
        try:
            price = await self._book(trip, place, day, name, context)
            traveller = next(session for session in self.agent.sessions() if session.id == context.session)
            if not await traveller.call("approve", trip=trip, price=price):
                raise OperationError(403, "The traveller did not approve the price.")
            await self.bank.call("pay", payment=trip, amount=price)
            await self.rides.call("order", ride=trip, place=place)  # which is paid to the driver
        except TreatyError as error:
            if not isinstance(error, OperationError) or error.status >= 500:
                # A partner that is away, fails, or whose key is being exchanged. The ledger keeps the booked legs.
                raise OperationError(503, f"Another agent failed: {error.message}") from error
            for vendor in self.vendors:
                await vendor.cancel(trip)
            self.ledger.add(trip, "lost", error.status, error.message, owner_of(context))
            raise OperationError(error.status, error.message) from error
        self.ledger.add(trip, "arranged", price, owner=owner_of(context))
        return price

    async def _book(self, trip: str, place: str, day: str, name: str, context: CallContext) -> int:
        """Book the legs, and return their price. Booked legs are known by the ledger: the vendors may be sold out since."""
        if known := self.ledger.find(trip, "booked"):
            return known.price
        price = sum([await vendor.book(trip, place, day, name) for vendor in self.vendors])
        self.ledger.add(trip, "booked", price, owner=owner_of(context))
        return price


def open_agent(agent: Agent, settings: Settings) -> None:
    agency = Agency(agent, Ledger(settings.home))
    for uri in settings.uris("travel-booking"):
        agent.provides(uri, role="agency")(agency.arrange)


if __name__ == "__main__":
    serve(open_agent)
