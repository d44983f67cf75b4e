"""What two agents agreed on happens: chunks, compression, encryption, time, state; and a session in trouble is changed."""

from __future__ import annotations

import asyncio
import gzip
import json
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from data_sharing import QUERY, ROWS, SHARING, TRANSFER, offer, published, sharer
from flow_peers import SHOP, agent
from flow_peers import meeting as flow_meeting
from meetings import LAPTOP, MAX_AGE, Tap, meeting

from treaty_agent import Policy
from treaty_agent.sessions.flow_context import FlowSettings
from treaty_agent.sessions.session import Session
from treaty_agent.testing.virtual_time import run
from treaty_agent.transport.connection import next_message
from treaty_anp.flow_profile import processor
from treaty_anp.flow_profile.adaptation import Adaptation, Thresholds
from treaty_anp.flow_profile.capabilities import FlowRequest, ProtocolOffer
from treaty_anp.flow_profile.parameters import Choice, Range
from treaty_anp.flow_profile.states import FlowLimits, FlowTimeouts
from treaty_anp.flow_profile.strategy import Evaluation, StrategyEngine
from treaty_consensus.errors import Refused, TreatyError, Unavailable

HASTY = Thresholds(latency=1e-9, samples=2, window=2, patience=1, pause=0.001)
"""Every pair of calls is found to be slow."""
MARKED = "x" * 3000


def payloads(tap: Tap, way: str, type: str = "data-sharing") -> list[dict[str, Any]]:
    """The payloads of the protocol that went one way."""
    messages = [json.loads(text) for direction, text in tap.seen if direction == way and isinstance(text, str)]
    return [message["payload"] for message in messages if message["type"] == type]


def pair(home: Path, *offers: ProtocolOffer, shop: FlowSettings | None = None, buyer: FlowSettings | None = None) -> Any:
    return (
        sharer("shop", home, *offers, flow=shop or FlowSettings()),
        sharer("buyer", home, *offers, flow=buyer or FlowSettings()),
    )


async def ask(session: Session, query: str = QUERY) -> dict[str, Any]:
    answer: dict[str, Any] = await session.call("query", query=query)
    return answer


# Agreed parameters


async def test_001_05_agreed_terms_are_on_the_wire_and_in_handlers(tmp_path: Path) -> None:
    rules = {"chunkSize": Range(1024, 2048), "compressionFormat": Choice(("gzip",)), "streamingMode": Choice(("chunked",))}
    shop, buyer = pair(tmp_path, offer(parameters=rules))
    async with meeting(shop) as tap, buyer.agent.connect_over(tap, protocols=[SHARING], did=shop.agent.did) as session:
        answer = await ask(session, QUERY + MARKED)
        terms = {"chunkSize": 2048, "compressionFormat": "gzip", "streamingMode": "chunked"}
        assert (answer["terms"], dict(session.parameters)) == (terms, terms)
        (whole,) = payloads(tap, ">")
        assert whole["encoding"] == "gzip"
        assert json.loads(gzip.decompress(b64decode(whole["data"])))["query"].endswith(MARKED)
        await ask(session, "".join(map(chr, range(0x4E00, 0x4E00 + 4000))))
        parts = payloads(tap, ">")[1:]
        assert [(part["part"], part["parts"]) for part in parts] == [(number + 1, len(parts)) for number in range(len(parts))]
        assert len(parts) > 2
        assert max(len(b64decode(part["data"])) for part in parts) == 2048


@pytest.mark.parametrize("encryption", ["off", "required"])
async def test_001_05_encryption_is_agreed_where_it_exists(tmp_path: Path, encryption: Any) -> None:
    policy = Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, encryption=encryption)
    own_offer = offer(parameters={"encryptionLevel": Choice(("AES-128-GCM",))})
    shop, buyer = (sharer(name, tmp_path, own_offer, policy=policy) for name in ("shop", "buyer"))
    uri = published(SHARING).uri
    await shop.agent.prepare()
    shop.agent.context.served.services[uri].protocol = None  # the flow profile alone is in common
    connecting = buyer.agent.connect_over
    async with meeting(shop) as tap:
        if encryption == "required":
            async with connecting(tap, protocols=[uri], did=shop.agent.did) as session:
                assert session.profile == "flow"
                assert (await ask(session))["terms"] == {"encryptionLevel": "AES-128-GCM"}
        else:
            with pytest.raises(Refused) as failure:
                async with connecting(tap, protocols=[SHARING], did=shop.agent.did):
                    raise AssertionError
            assert failure.value.code in ("flow.parameters", "session.no-common-protocol")
    assert not any(QUERY in str(text) for _, text in tap.seen)


# Changes


async def test_001_09_10_and_11_smaller_chunks_follow_a_step(tmp_path: Path) -> None:
    rules = {"chunkSize": Range(512, 2048), "responseTimeout": Range(5000, 60_000, wanted=5000)}
    shop, buyer = pair(tmp_path, offer(parameters=rules), buyer=FlowSettings(thresholds=HASTY))
    async with meeting(shop) as tap, buyer.agent.connect_over(tap, protocols=[SHARING], did=shop.agent.did) as session:
        for _ in range(2):
            await ask(session, MARKED)
        before = len(payloads(tap, ">"))
        await changed(session)
        assert dict(session.parameters) == {"chunkSize": 1024, "responseTimeout": 10_000}
        await ask(session, MARKED)
        after = payloads(tap, ">")[before:]
        assert (before, len(after)) == (4, 3)  # of a little more than 3,000 bytes
        assert len(b64decode(after[0]["data"])) == 1024


async def changed(session: Session) -> None:
    """Wait for the next change of the terms."""
    for _ in range(500):
        if any(event.name == "changed" for event in session.timeline):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing changed")


async def test_001_09_a_responder_watches_its_functions_too(tmp_path: Path) -> None:
    rules = {"chunkSize": Range(512, 2048)}
    shop, buyer = pair(tmp_path, offer(parameters=rules), shop=FlowSettings(thresholds=HASTY))
    async with meeting(shop) as tap, buyer.agent.connect_over(tap, protocols=[SHARING], did=shop.agent.did) as session:
        for _ in range(2):
            await ask(session)
        await changed(session)
        assert dict(session.parameters) == {"chunkSize": 1024}
    messages = [json.loads(text) for way, text in tap.seen if way == "<" and "contextInfo" in str(text)]
    assert messages[-1]["payload"]["contextInfo"]["resourceAvailability"] == "low"
    assert shop.agent.flow.capabilities.context.resource_availability is None  # the other peers are told nothing
    assert "adapting: slow" in shop.names()


async def test_001_12_state_goes_there_and_back_and_nothing_is_lost(tmp_path: Path) -> None:
    shop, buyer = pair(tmp_path, offer(), offer(TRANSFER, preference=0.1))
    async with meeting(shop) as tap, buyer.agent.connect_over(tap, protocols=[TRANSFER], did=shop.agent.did) as session:
        assert (await ask(session))["queries"] == 1  # basic-transfer was spoken before
    request = FlowRequest("sharing", protocols=(SHARING, TRANSFER))
    async with meeting(shop) as tap:
        session = await buyer.agent.flow.negotiate(tap, request, peer=shop.agent.did)
        assert session.protocol == published(SHARING).uri
        counts = [(await ask(session))["queries"] for _ in range(3)]
        await session.renegotiate(protocol=TRANSFER)
        counts += [(await ask(session))["queries"] for _ in range(2)]
        await session.renegotiate(protocol=SHARING)
        counts.append((await ask(session))["queries"])
        assert counts == [1, 2, 3, 4, 5, 6]
        await session.close()


def test_001_06_a_session_renews_itself_and_lives_on(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = (agent(name, tmp_path, limits=FlowLimits(lifetime=60)) for name in ("shop", "buyer"))
        async with flow_meeting(shop) as tap:
            session = await buyer.manager.negotiate(tap, FlowRequest("buying"), peer=SHOP.did)
            for _ in range(10):
                await asyncio.sleep(45)
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            await session.close()

    run(main())


# The owner's choices


class Contrary(StrategyEngine):
    """Takes the worst protocol first."""

    def rank(self, evaluations: Iterable[Evaluation]) -> list[Evaluation]:
        return super().rank(evaluations)[::-1]


class Broken(StrategyEngine):
    def rank(self, evaluations: Iterable[Evaluation]) -> list[Evaluation]:
        raise RuntimeError("not today")


async def test_001_32_a_failing_own_strategy_ends_the_negotiation(tmp_path: Path) -> None:
    for number, (strategy, expected) in enumerate(((StrategyEngine(), SHARING), (Contrary(), TRANSFER), (Broken(), ""))):
        offers = offer(), offer(TRANSFER, preference=0.1)
        shop, buyer = pair(tmp_path / str(number), *offers, buyer=FlowSettings(strategy=strategy))
        async with meeting(shop) as tap:
            negotiating = buyer.agent.flow.negotiate(tap, FlowRequest("x"), peer=shop.agent.did)
            if not expected:
                with pytest.raises(Refused):
                    await negotiating
                continue
            session = await negotiating
            assert session.protocol_id == expected
            await session.close()


async def test_001_11_the_adaptation_can_be_replaced(tmp_path: Path) -> None:
    def eager(thresholds: Thresholds) -> Adaptation:
        return Adaptation(thresholds, lambda finding, agreed: {"chunkSize": 600})

    settings = FlowSettings(thresholds=HASTY, adaptation=eager)
    shop, buyer = pair(tmp_path, offer(parameters={"chunkSize": Range(512, 2048)}), buyer=settings)
    async with meeting(shop) as tap, buyer.agent.connect_over(tap, protocols=[SHARING], did=shop.agent.did) as session:
        for _ in range(2):
            await ask(session)
        await changed(session)
        assert dict(session.parameters) == {"chunkSize": 600}
        assert (await ask(session))["terms"] == {"chunkSize": 600}  # the handler of the shop was told


async def test_001_14_the_wait_for_the_first_message_is_the_owners(tmp_path: Path) -> None:
    shop = sharer("shop", tmp_path, flow=FlowSettings(timeouts=FlowTimeouts(first=0.1)))
    async with meeting(shop) as tap:
        with pytest.raises(TreatyError) as failure:
            async with asyncio.timeout(5):
                await next_message(tap)
        assert getattr(failure.value, "reason", "") == "session.reply-timeout"


async def test_001_21_a_pinned_id_costs_two_round_trips(tmp_path: Path) -> None:
    shop, buyer = pair(tmp_path, buyer=FlowSettings(shortcuts=False))
    request = FlowRequest("x", protocols=(SHARING,), simplified=True)
    for _ in range(2):  # nothing is remembered
        async with meeting(shop) as tap:
            session = await buyer.agent.flow.negotiate(tap, request, peer=shop.agent.did)
            ways = "".join(way for way, _ in tap.seen)
            assert (ways[:5], ways.count("><")) == (">>><<", 2)
            assert (await ask(session))["rows"] == ROWS
            await session.close()


async def test_a_busy_sender_is_told_when_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "MAX_OF_SENDER", 2)
    shop, buyer = pair(tmp_path)
    async with meeting(shop) as tap:
        with pytest.raises(Unavailable) as failure:
            async with buyer.agent.connect_over(tap, protocols=[SHARING], did=shop.agent.did):
                raise AssertionError
    assert (failure.value.code, "150 seconds" in failure.value.message) == ("flow.busy", True)
    data = json.loads(str(tap.seen[-1][1]))
    assert (data["payload"]["errorCode"], data["payload"]["retryAfter"]) == ("BUSY", 150)
