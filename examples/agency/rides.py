"""The agent rides.example, a dispatch of drivers: python -m agency.rides --home DIR …

Its drivers and customers are in one room, which survives a restart of this agent.
"""

from __future__ import annotations

from treaty_agent import Agent, CallContext, OperationError

from .ledger import Ledger
from .settings import Settings, owner_of, serve


class Rides:
    """The books of the dispatch: a ride is sold once."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    async def order(self, ride: str, place: str, context: CallContext) -> int:
        if not self.ledger.is_of(ride, owner_of(context)):
            raise OperationError(403, "This ride is another customer's.")
        if known := self.ledger.find(ride, "sold"):
            return known.price
        self.ledger.add(ride, "ordered", detail=place, owner=owner_of(context))
        return 0

    async def sell(self, ride: str, driver: str, price: int, number: int) -> None:
        self.ledger.add(ride, "sold", price, f"{number} {driver}")


def open_agent(agent: Agent, settings: Settings) -> None:
    rides = Rides(Ledger(settings.home))
    for uri in settings.uris("travel-rides"):
        for function in (rides.order, rides.sell):
            agent.provides(uri, role="dispatch")(function)


if __name__ == "__main__":
    serve(open_agent)
