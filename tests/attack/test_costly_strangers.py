"""Strangers that make an agent's language model work for nothing, and peers that say where a protocol is published."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from meetings import LAPTOP, URI_1, SimulatedProtocols, meeting, party, product_info
from scripted_negotiators import CHANGED, DOCUMENT, WANTED, Script, ScriptedNegotiators
from signers import ORIGIN

from treaty_agent import Agent, Allowance, Budget, ModelNegotiators, Policy
from treaty_agent.negotiators.language_model import Prompt
from treaty_agent.sessions.roles import serve_published
from treaty_agent.testing.virtual_time import run
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Refused, TreatyError
from treaty_io.errors import PeerUnavailable

CALLS = 400
TOLD = f"https://{ORIGIN}/protocols/buyer.example/product-info/1.0"
T = TypeVar("T")


@dataclass
class PaidModel:
    """A model that accepts all documents and writes no code. Each answer is charged."""

    budget: Budget = field(default_factory=lambda: Budget(Allowance(calls=CALLS), period=86_400))

    async def complete(self, prompt: Prompt[T], budget: Budget | None = None) -> T:
        for each in (self.budget, budget):
            assert each is not None
            each.left()
            each.spend(calls=1)
        if prompt.name != "consider":
            raise Refused("model.answer", "No.")
        return prompt.read({"decision": "accept", "document": "", "summary": "", "reason": ""})

    async def aclose(self) -> None:
        pass


def sell(agent: Agent) -> None:
    @agent.offers
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        """Everything about one product."""
        return LAPTOP


async def attempt(shop: Agent, name: str, home: Path) -> TreatyError:
    """A stranger of another name each time, whose own code fails."""
    stranger = party(name, home, negotiators=ScriptedNegotiators(Script(code_error=Refused("negotiation.handler", "Bad."))))
    side = party("shop", home)
    side.agent = shop
    with pytest.raises(TreatyError) as refusal:
        async with meeting(side) as tap, stranger.agent.connect_over(tap, requirement=WANTED):
            raise AssertionError("a session without code")
    return refusal.value


@pytest.mark.threat(370)
@pytest.mark.parametrize("attempts", [20, pytest.param(1_000, marks=pytest.mark.deep)])
def test_a_stranger_costs_a_twentieth_of_the_budget(tmp_path: Path, attempts: int) -> None:
    async def main() -> None:
        model = PaidModel()
        shop = party("shop", tmp_path, negotiators=ModelNegotiators(model)).agent
        sell(shop)
        errors = [await attempt(shop, f"stranger{number}", tmp_path) for number in range(attempts)]
        assert 0 < model.budget.calls <= CALLS / 20
        last = errors[-1]
        assert isinstance(last, PeerUnavailable)
        assert (last.code, last.peer_code, last.retryable) == ("negotiation.rejected", "session.busy", True)
        assert last.retry_after is not None
        assert shop.metrics().negotiations == 0
        assert not (tmp_path / "shop" / "negotiated").exists()

    run(main())


def test_a_budget_that_is_used_up_is_told_as_one_that_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        model = PaidModel()
        model.budget.spend(calls=CALLS)
        shop = party("shop", tmp_path, negotiators=ModelNegotiators(model)).agent
        sell(shop)
        errors = [await attempt(shop, f"buyer{number}", tmp_path) for number in range(5)]
        assert {(error.code, error.peer_code, error.retryable) for error in errors} == {
            ("negotiation.rejected", "model.budget", True)
        }, "it is no failure of the buyer, so no pause follows"
        assert all(error.retry_after and 86_000 < error.retry_after <= 86_400 for error in errors)

    run(main())


@pytest.mark.threat(373)
@pytest.mark.parametrize(("text", "served"), [(DOCUMENT, 1), (CHANGED, 0), ("", 0)])
def test_a_claimed_uri_is_served_if_a_registry_has_it(tmp_path: Path, text: str, served: int) -> None:
    async def main() -> None:
        claimed = replace(product_info(URI_1), uri=TOLD, document=text.encode(), hash=hex_digest(text.encode()))
        later = replace(claimed, uri=URI_1)
        registry = SimulatedProtocols({TOLD: claimed, URI_1: later} if text else {})
        shop = party("shop", tmp_path, negotiators=ScriptedNegotiators(Script()), protocols=registry)
        sell(shop.agent)
        buyer = party("buyer", tmp_path, negotiators=ScriptedNegotiators(Script()), policy=Policy(publish=True))
        async with meeting(shop) as tap, buyer.agent.connect_over(tap, requirement=WANTED) as session:
            await session.call("getProductInfo", productId="P12345")
        await asyncio.sleep(1)
        assert buyer.publisher.published == [TOLD]
        assert shop.agent.metrics().protocols == served
        assert [protocol.published for protocol in shop.agent.context.served.published] == [TOLD] * served
        if served:  # no later peer renames it, although its URI has the same document
            await serve_published(shop.agent.context, claimed.hash, URI_1)
            assert shop.agent.context.served.published[0].published == TOLD

    run(main())
