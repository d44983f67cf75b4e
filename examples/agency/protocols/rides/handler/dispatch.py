"""The side with many peers."""

from __future__ import annotations

from treaty_handler import (
    Effect,
    Event,
    Invoke,
    Multicast,
    PeerJoined,
    PeerLost,
    Received,
    Result,
    Send,
    SetTimer,
    Timer,
    Value,
    encode_json,
)

from .messages import read, read_id

SECONDS = 3
WAITS = 15
MAX_OPEN = 256


class Dispatch:
    """State: the drivers, the number of sales, the open orders by auction, and the calls of the application.

    An order is a JSON object: `customer`, `id`, `ride`, `place`; `asked`: the drivers; `bids`: driver → price; `waits`: how often
    its time was over. `calls`: call → auction.
    """

    def __init__(self, state: dict[str, Value]) -> None:
        """Begin, or go on from the state."""
        self.drivers: list[str] = state.get("drivers", [])
        self.made: int = state.get("made", 0)
        self.number: int = state.get("number", 0)
        self.open: dict[str, dict[str, Value]] = state.get("open", {})
        self.calls: dict[str, str] = state.get("calls", {})

    def handle(self, event: Event) -> list[Effect]:
        """Take an order, hold its auction, and sell it."""
        match event:
            case PeerJoined(peer=peer, role="driver"):
                self.drivers.append(peer)
                return [effect for auction in self.asking() for effect in self.ask(auction, [peer])]
            case PeerLost(peer=peer):
                return self.lose(peer)
            case Received(peer=peer, data=data) if peer in self.drivers:
                return self.bid(peer, read(data, "driver"))
            case Received(peer=peer, data=data):
                return self.ordered(peer, data)
            case Result(call=call, value=value, error=error):
                auction = self.calls.pop(call, "")
                if auction not in self.open:
                    return []  # the customer has left
                if error is not None:
                    code = error.code if error.code == 403 else 503
                    return self.end(auction, type="refused", code=code, message=error.message or "The dispatch failed.")
                if call.startswith("sell"):
                    return self.end(auction, type="sold", price=self.open[auction]["price"])
                return self.end(auction, type="sold", price=value) if value else self.begin(auction)
            case Timer(name=auction) if auction in self.open:
                return self.over(auction)
        return []

    def ordered(self, peer: str, data: bytes) -> list[Effect]:
        """Ask the books whether the ride was sold already."""
        message = read(data, "customer")
        if message is None:
            id = read_id(data)
            return [refused(peer, id, 400, "It is no order.")] if id else []
        if len(self.open) >= MAX_OPEN:
            return [refused(peer, message["id"], 503, "Too many orders are open.")]
        self.made += 1
        auction = str(self.made)
        names = {name: message[name] for name in ("id", "ride", "place")}
        self.open[auction] = {"customer": peer, **names, "bids": {}, "waits": 0}
        return [self.invoke("order", auction, ride=message["ride"], place=message["place"])]

    def begin(self, auction: str) -> list[Effect]:
        """Ask all drivers."""
        self.open[auction]["asked"] = []
        return [SetTimer(name=auction, seconds=SECONDS), *self.ask(auction, self.drivers)]

    def ask(self, auction: str, drivers: list[str]) -> list[Effect]:
        """Ask drivers for a price."""
        order = self.open[auction]
        order["asked"] = [*order["asked"], *drivers]
        message = {"type": "ask", "auction": auction, "ride": order["ride"], "place": order["place"]}
        return [Multicast(peers=tuple(drivers), data=encode_json(message))] if drivers else []

    def asking(self) -> list[str]:
        """The auctions that are open for bids."""
        return [auction for auction, order in self.open.items() if "asked" in order and "price" not in order]

    def bid(self, driver: str, message: dict[str, Value] | None) -> list[Effect]:
        """Take the first bid of a driver."""
        if message is None or message["auction"] not in self.asking():
            return []
        order = self.open[message["auction"]]
        if driver in order["asked"]:
            order["bids"].setdefault(driver, message["price"])
        return self.decide(message["auction"])

    def decide(self, auction: str) -> list[Effect]:
        """Sell the ride if all drivers that were asked have bid."""
        order = self.open[auction]
        return self.sell(auction) if order["bids"] and len(order["bids"]) == len(order["asked"]) else []

    def sell(self, auction: str) -> list[Effect]:
        """Sell the ride to the cheapest driver."""
        order = self.open[auction]
        order["price"], driver = min((price, driver) for driver, price in order["bids"].items())
        self.number += 1
        sale = {"ride": order["ride"], "driver": driver, "price": order["price"], "number": self.number}
        return [SetTimer(name=auction, seconds=None), self.invoke("sell", auction, **sale)]

    def over(self, auction: str) -> list[Effect]:
        """Sell the ride, or wait for a driver."""
        order = self.open[auction]
        if order["bids"]:
            return self.sell(auction)
        order["waits"] += 1
        if order["waits"] < WAITS:
            return [SetTimer(name=auction, seconds=SECONDS)]
        return self.end(auction, type="refused", code=503, message="No driver bids.")

    def lose(self, peer: str) -> list[Effect]:
        """Forget a driver, or the orders of a customer."""
        if peer in self.drivers:
            self.drivers.remove(peer)
            effects: list[Effect] = []
            for auction in self.asking():
                order = self.open[auction]
                order["asked"] = [driver for driver in order["asked"] if driver != peer]
                order["bids"].pop(peer, None)
                effects += self.decide(auction)
            return effects
        gone = [auction for auction, order in self.open.items() if order["customer"] == peer]
        stopped: list[Effect] = [SetTimer(name=auction, seconds=None) for auction in gone if auction in self.asking()]
        for auction in gone:
            del self.open[auction]
        return stopped

    def end(self, auction: str, **answer: Value) -> list[Effect]:
        """Answer the customer."""
        order = self.open.pop(auction)
        return [Send(peer=order["customer"], data=encode_json({**answer, "id": order["id"]}))]

    def invoke(self, operation: str, auction: str, **arguments: Value) -> Invoke:
        """Call the application."""
        call = f"{operation}:{auction}"
        self.calls[call] = auction
        return Invoke(call=call, operation=operation, arguments=arguments)

    def snapshot(self) -> bytes:
        """All of the state."""
        return encode_json(vars(self))


def refused(peer: str, id: str, code: int, message: str) -> Send:
    """An order that is not taken."""
    return Send(peer=peer, data=encode_json({"type": "refused", "id": id, "code": code, "message": message}))
