"""The official SDK and a live agent over real sockets, in both roles: negotiation, code, one call; refusals in due time.

`sdk/live.py` says what its bridge adds to the SDK. The language models on both sides read from scripts. The DIDs of the SDK's
agents are served over https by a host of this test, and are fetched from there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback, answering
from meetings import LAPTOP, Party, identity, party
from scripted_negotiators import CHANGED, DOCUMENT, WANTED, Script, ScriptedNegotiators

from treaty_agent import Identity, Policy
from treaty_agent.negotiators.negotiator import Proposal, Rejection
from treaty_agent.sessions.operation_errors import OperationError
from treaty_consensus.did import Did
from treaty_consensus.errors import Refused, TreatyError
from treaty_io.network.did_documents import DidDocument, fetch_did_document
from treaty_io.network.egress import EgressGuard

REQUESTER = """```python
import asyncio, json, secrets

class ProductRequester:
    def __init__(self):
        self._send_callback, self._received, self._event = None, [], asyncio.Event()

    def set_send_callback(self, callback):
        self._send_callback = callback

    async def handle_message(self, message):
        self._received.append(message)
        self._event.set()

    async def send_request(self, input):
        request = {"messageId": secrets.token_hex(8), "type": "REQUEST", "action": "getProductInfo", **input}
        await self._send_callback(json.dumps(request).encode())
        await self._event.wait()
        return json.loads(self._received.pop(0))
```"""
PROVIDER = """```python
import json

class ProductProvider:
    def set_send_callback(self, callback):
        self._send_callback = callback

    def set_protocol_callback(self, callback):
        self._protocol_callback = callback

    async def handle_message(self, message):
        request = json.loads(message)
        found = await self._protocol_callback(request)
        status = {"code": found["code"], "message": found["message"]}
        answer = {"messageId": request["messageId"], "type": "RESPONSE", "status": status}
        await self._send_callback(json.dumps({**answer, "productInfo": found.get("productInfo")}).encode())
```"""
DESCRIPTION = {"text": json.dumps({"module_name": "product"})}
CODE = [DESCRIPTION, {"text": REQUESTER}, DESCRIPTION, {"text": PROVIDER}]
"""What the SDK's model writes after an agreement. It names no base class: the SDK's prompts import one from `anp.app_protocols`,
a module that version 1.0.7 does not have."""
TRANSPORTS = ["ws", "http"]
SDK_TIMEOUT = 60.0
"""Seconds for which the SDK waits for a word. A side that is told of a refusal does not wait."""


def says(status: str, text: str = "", summary: str = "") -> dict[str, Any]:
    """A verdict of the SDK's model."""
    return {"text": json.dumps({"status": status, "candidate_protocol": text, "modification_summary": summary})}


@pytest.fixture(scope="module")
def live(sdk_script: Callable[[str], Any]) -> Iterator[Any]:
    with sdk_script("live.py") as running:
        yield running


def fetcher(loopback: Loopback, policy: Policy) -> Callable[[Did], Any]:
    """Fetches documents as the agent of this policy does, from the hosts of the test."""
    guard = EgressGuard(loopback.network(), other_ports=True, interval=0)

    async def fetch(did: Did) -> DidDocument:
        return await fetch_did_document(did, guard, secp256k1=policy.accept_secp256k1)

    return fetch


@asynccontextmanager
async def shop(folder: Path, sdk: Any, profile: str, script: Script, policy: Policy) -> AsyncIterator[tuple[Party, int, Any]]:
    """A listening agent that negotiates, its port, and an identity of the SDK whose document is served."""
    created = await asyncio.to_thread(sdk.call, "create", host="sdk.example", path=["u"], profile=profile)
    loopback = Loopback(folder)
    async with loopback.serving(answering(json.dumps(created["document"]).encode()), "sdk.example"):
        fetch = fetcher(loopback, policy)
        seller = party("shop", folder, negotiators=ScriptedNegotiators(script), policy=policy, fetch=fetch)

        @seller.agent.offers
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
            """Everything about one product."""
            if productId != LAPTOP["productId"]:
                raise OperationError(404, "There is no such product.")
            return LAPTOP

        async with seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
            yield seller, port, created


async def requested(
    live: Any, sdk: Any, folder: Path, scheme: str, answers: list[dict[str, Any]], script: Script | None = None, **how: Any
) -> tuple[dict[str, Any], Party]:
    """What became of a request of the SDK to our live agent."""
    profile, policy = how.pop("profile", "e1"), how.pop("policy", Policy())
    async with shop(folder, sdk, profile, script or Script(), policy) as (seller, port, made):
        arguments = {**made, "answers": answers, "product": LAPTOP["productId"], **how}
        url = f"{scheme}://127.0.0.1:{port}"
        return await asyncio.to_thread(live.call, "request", url=url, **arguments), seller


@pytest.mark.sample(1)
@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_the_sdk_proposes_to_our_agent_and_calls_it(live: Any, sdk: Any, tmp_path: Path, scheme: str) -> None:
    outcome, seller = await requested(live, sdk, tmp_path, scheme, [{"text": DOCUMENT}, *CODE])
    assert (outcome["agreed"], outcome["peer_generated"]) == (True, True)
    assert outcome["result"]["status"]["code"] == 200
    assert outcome["result"]["productInfo"] == LAPTOP
    assert [event.name for event in seller.events if event.name == "running"] == ["running"]
    assert [frame[:2] for frame in outcome["seen"]] == [["protocolNegotiation", "accepted"], ["codeGeneration", "generated"]]


@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_the_sdk_accepts_the_counter_offer_of_our_agent(live: Any, sdk: Any, tmp_path: Path, scheme: str) -> None:
    script = Script(verdicts=[Proposal(CHANGED, "For buyers of laptops.")])
    answers = [{"text": DOCUMENT}, says("accepted", CHANGED), *CODE]
    outcome, _ = await requested(live, sdk, tmp_path, scheme, answers, script)
    assert outcome["agreed"] and outcome["result"]["productInfo"] == LAPTOP
    assert outcome["seen"][0] == ["protocolNegotiation", "negotiating", "For buyers of laptops."]


@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_the_sdk_knows_at_once_that_our_agent_rejects(live: Any, sdk: Any, tmp_path: Path, scheme: str) -> None:
    script = Script(verdicts=[Rejection("We sell no products.")])
    outcome, seller = await requested(live, sdk, tmp_path, scheme, [{"text": DOCUMENT}], script)
    assert (outcome["agreed"], outcome["result"]) == (False, None)
    assert outcome["seconds"] < SDK_TIMEOUT, "the SDK was told, and did not wait for its own timeout"
    assert outcome["seen"][-1] == ["protocolNegotiation", "rejected", "We sell no products."]
    assert "running" not in seller.names()


@pytest.mark.parametrize("mode", ["http_signatures", "legacy_didwba"])
@pytest.mark.parametrize("profile", ["k1", "plain_legacy"])
async def test_the_sdks_older_identities_open_sessions_where_allowed(
    live: Any, sdk: Any, tmp_path: Path, profile: str, mode: str
) -> None:
    answers = [{"text": DOCUMENT}, *CODE]
    for folder in ("off", "on"):
        (tmp_path / folder).mkdir()
    with pytest.raises(AssertionError, match=r"401 .*authentication"):
        await requested(live, sdk, tmp_path / "off", "http", answers, profile=profile, mode=mode)
    policy = Policy(accept_secp256k1=True, accept_didwba=mode == "legacy_didwba")
    outcome, _ = await requested(live, sdk, tmp_path / "on", "http", answers, profile=profile, mode=mode, policy=policy)
    assert outcome["result"]["productInfo"] == LAPTOP


async def provided(
    live: Any, folder: Path, scheme: str, answers: list[dict[str, Any]], script: Script | None = None
) -> tuple[Any, dict[str, Any]]:
    """What our agent got from a provider of the SDK, and what the provider says of it."""
    did, buyer = "did:wba:sdk.example", identity("buyer.example")
    arguments = {"did": did, "answers": answers, "peer": buyer.did_document(), "product": LAPTOP}
    port = await asyncio.to_thread(live.call, "provide", **arguments)
    customer = party("buyer", folder, negotiators=ScriptedNegotiators(script or Script()))
    got: Any
    async with customer.agent:
        try:
            async with customer.agent.connect(f"{scheme}://127.0.0.1:{port}", requirement=WANTED, did=did) as session:
                got = await session.call("getProductInfo", productId=LAPTOP["productId"])
                with pytest.raises(OperationError) as missing:
                    await session.call("getProductInfo", productId="P99999")
                assert missing.value.status == 404
        except TreatyError as error:
            got = error
    return got, await asyncio.to_thread(live.call, "outcome")


@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_our_agent_proposes_to_the_sdk_and_calls_it(live: Any, tmp_path: Path, scheme: str) -> None:
    got, outcome = await provided(live, tmp_path, scheme, [says("accepted"), *CODE])
    assert got == LAPTOP
    assert (outcome["agreed"], outcome["peer_generated"]) == (True, True)
    assert outcome["proved"] == (["did:wba:buyer.example"] if scheme == "http" else []), "over HTTP the SDK verified our requests"


@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_our_agent_accepts_the_counter_offer_of_the_sdk(live: Any, tmp_path: Path, scheme: str) -> None:
    answers = [says("negotiating", CHANGED, "For buyers of laptops."), *CODE]
    got, outcome = await provided(live, tmp_path, scheme, answers)
    assert got == LAPTOP and outcome["agreed"]


@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_the_sdk_learns_at_once_of_a_rejected_counter_offer(live: Any, tmp_path: Path, scheme: str) -> None:
    answers = [says("negotiating", CHANGED, "For buyers of laptops.")]
    got, outcome = await provided(live, tmp_path, scheme, answers, Script(verdicts=[Rejection("We buy no laptops.")]))
    assert isinstance(got, Refused) and got.code == "negotiation.rejected"
    assert not outcome["agreed"]
    assert outcome["seconds"] < SDK_TIMEOUT
    assert outcome["seen"][-1] == ["protocolNegotiation", "rejected", "We buy no laptops."]


@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_our_agent_knows_that_the_sdk_rejects(live: Any, tmp_path: Path, scheme: str) -> None:
    got, outcome = await provided(live, tmp_path, scheme, [says("rejected", summary="We sell no products.")])
    assert isinstance(got, Refused) and got.code == "negotiation.rejected"
    assert "We sell no products." in str(got)
    assert not outcome["agreed"]


async def test_a_did_key_learns_that_the_sdk_cannot_know_it(live: Any, tmp_path: Path) -> None:
    did = "did:wba:sdk.example"
    port = await asyncio.to_thread(live.call, "provide", did=did, answers=[], peer={}, product=LAPTOP)
    customer = party("buyer", tmp_path, negotiators=ScriptedNegotiators(Script()), own=Identity.create())
    async with customer.agent:
        with pytest.raises(Refused) as refusal:
            async with customer.agent.connect(f"http://127.0.0.1:{port}", requirement=WANTED, did=did):
                raise AssertionError
    assert (refusal.value.code, "401" in refusal.value.message) == ("connection.refused", True)
    assert "did:key" in refusal.value.fix and "treaty identity new DOMAIN" in refusal.value.fix
