"""Two agents as they are used: WebSockets, the sandbox, and a fetcher that verifies what a simulated registry serves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, PROTOCOLS, TOPIC, identity
from signers import Signer, domain_signer, identity_body, key_signer
from simulated_registry import ALICE, NAME, OPERATOR, SimulatedRegistry, flipped, uri_of, with_echo

from treaty_client.agent import Agent
from treaty_client.attestation import Binding
from treaty_client.policy import Policy
from treaty_client.project import load_project
from treaty_client.session.operations import OperationError
from treaty_client.session.sides import AgentEvent
from treaty_client.verification.steps import VerificationFailed
from treaty_consensus import canonical, kinds
from treaty_consensus.admit import keys_of
from treaty_consensus.did import encode_multikey, parse_did
from treaty_consensus.errors import NotFound, TreatyError
from treaty_consensus.facts import LogFact

OLD, NEW = (uri_of(version, name="product-info") for version in ("1.0", "1.1"))
SELLER, CUSTOMER = "shop.example", "buyer.example"


def publish(registry: SimulatedRegistry, uri: str, author: Signer = ALICE) -> None:
    """Publish a version of product-info with its handler, as `treaty publish` does."""
    project = load_project(PROTOCOLS / uri.rpartition("/")[2])
    document, card = registry.put(project.document), registry.put(project.card.encode())
    registry.add(kinds.Publish(uri, project.topic, document, card, project.origin), author)
    filename, wheel = project.build_wheel(uri)
    assert project.handler is not None
    entry_point = project.handler.entry_point
    bundle = registry.attest(Binding(canonical.hex_digest(wheel), uri, document.sha256, entry_point), filename, author)
    body = kinds.Handler(uri, document.sha256, filename, registry.put(wheel), entry_point, registry.put(bundle))
    registry.add(body, author)


@cache
def _published() -> SimulatedRegistry:
    registry = with_echo()
    for uri in (OLD, NEW):
        publish(registry, uri)
    for domain in (SELLER, CUSTOMER):
        registry.add(identity_body(domain_signer(domain)), OPERATOR)
    return registry


@pytest.fixture
def registry() -> SimulatedRegistry:
    """Both versions are published, both agents known."""
    made = _published().copy()
    answer = made.answer

    def answer_more(request: Any) -> tuple[int, bytes]:
        """What reports need of a registry, beside what fetching needs."""
        log = made.facts["log"]
        assert isinstance(log, LogFact)
        if request.url.path == "/log":
            keys = {"key": "", "clock_key": "", "operator": OPERATOR.did, "electorate": "development"}
            return 200, json.dumps({**keys, "origin": log.origin, "epoch": log.epoch, "size": made.size}).encode()
        if request.url.path.startswith("/identities/"):
            did = parse_did(request.url.path.removeprefix("/identities/"))
            keys = {key_id: encode_multikey(key) for key_id, key in keys_of(made.facts, did).items()}
            if not keys:
                raise NotFound("identity.unknown", "This log does not know that DID.")
            return 200, json.dumps({"did": did.text, "tenure": 1, "keys": keys}).encode()
        return answer(request)

    made.answer = answer_more  # type: ignore[method-assign]
    return made


@asynccontextmanager
async def agent(
    registry: SimulatedRegistry, home: Path, domain: str, *, on_event: Callable[[AgentEvent], None] | None = None, **policy: Any
) -> AsyncIterator[Agent]:
    """An agent that trusts the registry and runs ALICE's handlers."""
    allowed = Policy(**{"publishers": [ALICE.did], "report_delay": 0, **policy})
    made = Agent(identity(domain), str(NAME), allowed, home=home / domain, network=registry.network(), on_event=on_event)
    async with made:
        yield made


@asynccontextmanager
async def open_shop(registry: SimulatedRegistry, home: Path, *uris: str, **policy: Any) -> AsyncIterator[str]:
    """A shop that serves, and its address."""
    async with agent(registry, home, SELLER, **policy) as seller:
        for uri in uris or (NEW, OLD):

            @seller.provides(uri)
            async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
                if LAPTOP["productId"] != productId:
                    raise OperationError(404, "产品未找到")
                return LAPTOP

        async with seller.listen("127.0.0.1", 0) as port:
            yield f"ws://127.0.0.1:{port}"


async def test_000_31_strangers_meet_download_the_code_by_its_uri_speak_and_resume(
    tmp_path: Path, registry: SimulatedRegistry
) -> None:
    events: list[AgentEvent] = []
    async with open_shop(registry, tmp_path) as url, agent(registry, tmp_path, CUSTOMER, on_event=events.append) as customer:
        async with customer.connect(url, topic=TOPIC) as session:
            assert (session.protocol, session.resumed) == (NEW, False)
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            with pytest.raises(OperationError) as failure:
                await session.call("getProductInfo", productId="P99999")
            assert (failure.value.status, failure.value.message) == (404, "产品未找到")
        registry.requests.clear()
        async with customer.connect(url, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert session.resumed
        assert registry.requests == []  # the second time only the Hellos remained
    assert [event.name for event in events][:6] == ["hello", "verified", "sandbox", "running", "first reply", "end"]
    assert {event.peer for event in events} <= {"", f"did:wba:{SELLER}"}


async def test_a_resumed_session_after_a_restart_asks_nobody(tmp_path: Path, registry: SimulatedRegistry) -> None:
    async with open_shop(registry, tmp_path) as url:
        for resumed in (False, True):
            registry.requests.clear()
            async with agent(registry, tmp_path, CUSTOMER) as customer, customer.connect(url, topic=TOPIC) as session:
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
                assert session.resumed is resumed
            assert bool(registry.requests) is not resumed


async def test_a_tampered_wheel_is_refused_at_step_7_before_anything_runs(tmp_path: Path, registry: SimulatedRegistry) -> None:
    async with open_shop(registry, tmp_path) as url, agent(registry, tmp_path, CUSTOMER) as customer:
        registry.tamper = lambda path, body: flipped(body, 2000) if path.startswith("/blobs/") else body
        with pytest.raises(VerificationFailed) as refusal:
            async with customer.connect(url, topic=TOPIC):
                raise AssertionError("a session with a tampered handler")
        assert refusal.value.step == 7
        assert not (tmp_path / CUSTOMER / "agreements.json").exists()
        registry.tamper = lambda path, body: body
        async with customer.connect(url, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP


async def test_a_publisher_whom_the_policy_does_not_name_is_not_run(tmp_path: Path, registry: SimulatedRegistry) -> None:
    nobody = key_signer("nobody").did
    async with (
        open_shop(registry, tmp_path) as url,
        agent(registry, tmp_path, CUSTOMER, publishers=[nobody]) as customer,
    ):
        with pytest.raises(VerificationFailed) as refusal:
            async with customer.connect(url, topic=TOPIC):
                raise AssertionError("a session with an unknown publisher's handler")
        assert refusal.value.step == 6


async def test_both_sides_report_to_the_log(tmp_path: Path, registry: SimulatedRegistry) -> None:
    size = registry.size
    async with (
        open_shop(registry, tmp_path, report=True) as url,
        agent(registry, tmp_path, CUSTOMER, report=True) as customer,
    ):
        for _ in range(2):  # the second one says nothing new
            async with customer.connect(url, topic=TOPIC) as session:
                await session.call("getProductInfo", productId="P12345")
    assert registry.size == size + 1
    _, report = registry.statements()[-1]
    assert isinstance(report.body, kinds.Report)
    assert report.body.document == registry.document_of(NEW).sha256
    assert [did.text for did in report.authors] == [f"did:wba:{CUSTOMER}", f"did:wba:{SELLER}"]


async def test_a_shop_that_stops_is_noticed(tmp_path: Path, registry: SimulatedRegistry) -> None:
    async with agent(registry, tmp_path, CUSTOMER) as customer, AsyncExitStack() as stack:
        async with open_shop(registry, tmp_path) as url:
            session = await stack.enter_async_context(customer.connect(url, topic=TOPIC))
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        with pytest.raises(TreatyError):
            await session.call("getProductInfo", productId="P12345")
        with pytest.raises(TreatyError) as nobody:
            await stack.enter_async_context(customer.connect(url, topic=TOPIC))
        assert nobody.value.code == "connection.failed"


async def test_several_customers_at_once(tmp_path: Path, registry: SimulatedRegistry) -> None:
    async def visit(number: int, url: str) -> Any:
        async with agent(registry, tmp_path / str(number), CUSTOMER) as customer, customer.connect(url, topic=TOPIC) as session:
            return await session.call("getProductInfo", productId="P12345")

    async with open_shop(registry, tmp_path, OLD) as url:
        assert await asyncio.gather(*(visit(number, url) for number in range(4))) == [LAPTOP] * 4
