"""A vendor of flights or hotels: offers for a place and a day, and bookings under keys of the customers."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

from treaty_agent import Agent, CallContext, OperationError

from .ledger import Ledger
from .settings import AUDITOR, Settings, owner_of

PLACES = ("DUB", "LIS", "OSL", "ROM", "VIE")
OFFERS = 4


class Vendor:
    """The business of a vendor. `price`: of the cheapest offers, in cents. `seats`: how often an offer can be booked."""

    def __init__(self, ledger: Ledger, *, price: int, seats: int) -> None:
        self.ledger, self.price, self.seats = ledger, price, seats

    async def search(self, place: str, day: str) -> AsyncIterator[dict[str, object]]:
        if place not in PLACES:
            raise OperationError(404, "There is nothing at this place.")
        offers = [f"{place}-{day}-{number}" for number in range(OFFERS)]
        for offer in sorted(offers, key=self._price):
            if left := self._left(offer):
                yield {"offer": offer, "price": self._price(offer), "left": left}

    async def book(self, booking: str, offer: str, name: str, context: CallContext) -> dict[str, object]:
        if not self.ledger.is_of(booking, owner_of(context)):
            raise OperationError(403, "This booking is another customer's.")
        if self.ledger.find(booking, "cancelled"):
            raise OperationError(410, "This booking was cancelled.")
        if known := self.ledger.find(booking, "booked"):
            return {"offer": known.detail, "price": known.price}
        if offer.partition("-")[0] not in PLACES:
            raise OperationError(404, "There is no such offer.")
        if not self._left(offer):
            raise OperationError(409, "This offer is sold out.")
        self.ledger.add(booking, "booked", self._price(offer), offer, owner_of(context))
        return {"offer": offer, "price": self._price(offer)}

    async def cancel(self, booking: str, context: CallContext) -> None:
        if not self.ledger.is_of(booking, owner_of(context)):
            raise OperationError(403, "This booking is another customer's.")
        known = self.ledger.find(booking, "booked")
        self.ledger.add(booking, "cancelled", known.price if known else 0, owner=owner_of(context))

    async def journal(self, after: int, context: CallContext) -> list[dict[str, object]]:
        if context.peer != AUDITOR:
            raise OperationError(403, "This journal is for the auditor.")
        return self.ledger.after(after)

    def open(self, agent: Agent, settings: Settings) -> None:
        """Provide both protocols of a vendor, in all versions of the settings."""
        for uri in settings.uris("travel-offers"):
            agent.provides(uri)(self.search)
        for uri in settings.uris("travel-booking"):
            for function in (self.book, self.cancel, self.journal):
                agent.provides(uri, role="vendor")(function)

    def _price(self, offer: str) -> int:
        return self.price + zlib.crc32(offer.encode()) % self.price

    def _left(self, offer: str) -> int:
        return self.seats - self.ledger.active(offer)
