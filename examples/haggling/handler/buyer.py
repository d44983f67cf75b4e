"""The side that wants to pay little."""

from __future__ import annotations

from treaty_handler import (
    Call,
    Close,
    Effect,
    End,
    Event,
    Failure,
    PeerLost,
    Received,
    Return,
    Timer,
    Value,
    derive_id,
)

from .talks import Talks


class Buyer(Talks):
    """State of a talk: the call, the item, the last offer, and the limit."""

    def handle(self, event: Event) -> list[Effect]:
        """A call begins a talk; each counter-offer is answered."""
        match event:
            case Call(call=call, arguments=arguments):
                self.made += 1
                talk = derive_id(self.seed, self.made)
                offer = min(arguments["offer"], arguments["limit"])
                self.talks[talk] = {
                    "call": call,
                    "item": arguments["item"],
                    "offer": offer,
                    "limit": arguments["limit"],
                }
                return self.say(talk, "offer", item=arguments["item"], price=offer)
            case Received(data=data):
                message = self.read(data, "seller")
                return self.answer(message) if message is not None and message["id"] in self.talks else []
            case Timer(name=talk):
                return [self.fail(talk, 504, "The seller does not answer.")]
            case PeerLost():
                failed = [self.fail(talk, 503, "The seller is gone.") for talk in tuple(self.talks)]
                return [*failed, End(status="failed" if failed else "completed")]
            case Close():
                return [End()]
        return []

    def answer(self, message: dict[str, Value]) -> list[Effect]:
        """Accept a price, raise the offer, or give up."""
        talk, state = message["id"], self.talks[message["id"]]
        if message["type"] == "refuse":
            code = message["code"] if message["code"] in (404, 409) else 500
            return [*self.stop(talk), self.fail(talk, code, message["message"][:500])]
        price = message["price"]
        if message["type"] == "accept":
            if price == state["offer"]:
                return [*self.stop(talk), Return(call=self.talks.pop(talk)["call"], value=price)]
            return [*self.stop(talk), self.fail(talk, 502, "The seller accepted another price than was offered.")]
        following = min(state["limit"], (state["offer"] + price) // 2)
        if price <= max(following, state["offer"]) or (following <= state["offer"] and price <= state["limit"]):
            return [*self.say(talk, "accept", price=price), Return(call=self.talks.pop(talk)["call"], value=price)]
        if following <= state["offer"]:
            refusal = self.say(talk, "refuse", code=409, message="We do not meet.")
            return [*refusal, self.fail(talk, 409, "The two sides do not meet.")]
        state["offer"] = following
        return self.say(talk, "offer", item=state["item"], price=following)

    def fail(self, talk: str, code: int, text: str) -> Return:
        """The end of a talk without a price."""
        return Return(call=self.talks.pop(talk)["call"], error=Failure(code=code, message=text))
