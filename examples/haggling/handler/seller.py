"""The side that wants to earn much."""

from __future__ import annotations

from treaty_handler import Close, Effect, End, Event, Invoke, PeerLost, Received, Result, Timer, Value

from .talks import Talks

MAX_TALKS = 64
MAX_OFFERS = 20


class Seller(Talks):
    """State of a talk: the item, the buyer's last offer, the number of offers; then the price that is asked, and the floor."""

    def handle(self, event: Event) -> list[Effect]:
        """The first offer asks the application for its prices; each offer is answered."""
        match event:
            case Received(data=data):
                message = self.read(data, "buyer")
                return [] if message is None else self.received(message)
            case Result(call=call, value=value, error=error):
                talk = next(talk for talk, state in self.talks.items() if state["call"] == call)
                if error is not None:
                    return self.refuse(talk, error.code, error.message)
                self.talks[talk] |= {"ask": max(value["ask"], value["floor"]), "floor": value["floor"], "quoted": True}
                return self.answer(talk, first=True)
            case Timer(name=talk):
                self.talks.pop(talk)
            case PeerLost() | Close():
                return [End()]
        return []

    def received(self, message: dict[str, Value]) -> list[Effect]:
        """Begin a talk, go on with it, or end it."""
        talk = message["id"]
        state = self.talks.get(talk)
        if state is None:
            return self.begin(message) if message["type"] == "offer" else []
        if not state["quoted"]:
            return []
        if message["type"] != "offer":
            self.talks.pop(talk)
            return self.stop(talk)
        # A lower offer, or one for another item, breaks the protocol.
        if message["price"] <= state["offer"] or message["item"] != state["item"]:
            return self.refuse(talk, 409, "The next offer is for the same item, and higher.")
        state["offer"], state["offers"] = message["price"], state["offers"] + 1
        return self.answer(talk)

    def begin(self, message: dict[str, Value]) -> list[Effect]:
        """Ask the application for its prices."""
        if len(self.talks) >= MAX_TALKS or not 1 <= len(message["item"]) <= 100:
            return self.say(message["id"], "refuse", code=500, message="This cannot be talked about now.")
        self.made += 1
        call, item = str(self.made), message["item"]
        self.talks[message["id"]] = {"call": call, "item": item, "offer": message["price"], "offers": 1, "quoted": False}
        return [Invoke(call=call, operation="quote", arguments={"item": item})]

    def answer(self, talk: str, *, first: bool = False) -> list[Effect]:
        """Accept the offer, lower the price, or give up. The first answer tells the first price."""
        state = self.talks[talk]
        offer, ask = state["offer"], state["ask"]
        following = ask if first else max(state["floor"], ask - (ask - offer) // 2)
        if offer >= following or (following == ask and not first and offer >= state["floor"]):
            self.talks.pop(talk)
            return self.say(talk, "accept", price=offer)
        if state["offers"] >= MAX_OFFERS:
            return self.refuse(talk, 409, "We do not meet.")
        state["ask"] = following
        return self.say(talk, "counter", price=following)

    def refuse(self, talk: str, code: int, text: str) -> list[Effect]:
        """End a talk without a price."""
        self.talks.pop(talk)
        return self.say(talk, "refuse", code=code, message=text[:200])
