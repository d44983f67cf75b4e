"""Agents as they are used: on sockets, with the sandbox, and a fetcher that verifies what a simulated registry serves.

`agents_registry()` is a registry in which both versions of product-info are published, and a shop and a buyer are known.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from meetings import LAPTOP, PROTOCOLS, identity
from signers import Signer, domain_signer, identity_body
from simulated_registry import ALICE, NAME, OPERATOR, SimulatedRegistry, uri_of, with_echo

from treaty_agent import Agent, AgentConfig, Policy
from treaty_agent.negotiators.negotiator import Negotiators
from treaty_agent.sessions.flow_context import FlowSettings
from treaty_agent.sessions.interfaces import AgentEvent, SessionTimeouts
from treaty_agent.sessions.operation_errors import OperationError
from treaty_client.protocols.attestation import Binding
from treaty_client.protocols.project import load_project
from treaty_consensus import canonical, kinds
from treaty_consensus.did import encode_multikey, parse_did
from treaty_consensus.errors import NotFound
from treaty_consensus.facts import LogFact, keys_of

OLD, NEW = (uri_of(version, name="product-info") for version in ("1.0", "1.1"))
SELLER, CUSTOMER = "shop.example", "buyer.example"


def publish(registry: SimulatedRegistry, uri: str, author: Signer = ALICE, *, folder: Path | None = None) -> None:
    """Publish a version of product-info, or the project in `folder`, with its handler, as `treaty publish` does."""
    project = load_project(folder or PROTOCOLS / uri.rpartition("/")[2])
    document, card = registry.put(project.document), registry.put(project.card.encode())
    registry.add(kinds.Publish(uri, project.topic, document, card, project.origin), author)
    filename, wheel = project.build_wheel(uri)
    assert project.handler is not None
    entry_point = project.handler.entry_point
    bundle = registry.attest(Binding(canonical.hex_digest(wheel), uri, document.sha256, entry_point), filename, author)
    body = kinds.Handler(uri, document.sha256, filename, registry.put(wheel), entry_point, registry.put(bundle))
    registry.add(body, author)


@cache
def _known(published: bool) -> SimulatedRegistry:
    registry = with_echo()
    for uri in (OLD, NEW) if published else ():
        publish(registry, uri)
    for domain in (SELLER, CUSTOMER):
        registry.add(identity_body(domain_signer(domain)), OPERATOR)
    return registry


def agents_registry(*, published: bool = True) -> SimulatedRegistry:
    """A copy of its own for whoever asks; without the protocols unless `published`."""
    registry = _known(published).copy()
    # The known one may be old, and its tokens would have expired.
    registry.now = int(time.time())
    answer = registry.answer

    def answer_more(request: Any) -> tuple[int, bytes]:
        """What reports need of a registry, beside what fetching needs."""
        log = registry.facts["log"]
        assert isinstance(log, LogFact)
        if request.url.path == "/log":
            log_info = {"key": "", "clock_key": "", "operator": OPERATOR.did, "electorate": "development", "origin": log.origin}
            return 200, json.dumps({**log_info, "epoch": log.epoch, "opened": log.opened, "size": registry.size}).encode()
        if request.url.path.startswith("/identities/"):
            did = parse_did(request.url.path.removeprefix("/identities/"))
            keys = {key_id: encode_multikey(key) for key_id, key in keys_of(registry.facts, did).items()}
            if not keys:
                raise NotFound("identity.unknown", "This log does not know that DID.")
            return 200, json.dumps({"did": did.text, "tenure": 1, "keys": keys}).encode()
        return answer(request)

    registry.answer = answer_more  # type: ignore[method-assign]
    return registry


@asynccontextmanager
async def agent(
    registry: SimulatedRegistry,
    home: Path,
    domain: str,
    *,
    on_event: Callable[[AgentEvent], None] | None = None,
    negotiators: Negotiators | None = None,
    timeouts: SessionTimeouts | None = None,
    flow: FlowSettings | None = None,
    **policy: Any,
) -> AsyncIterator[Agent]:
    """An agent that trusts the registry and runs ALICE's handlers."""
    allowed = Policy(**{"publishers": [ALICE.did], "report_delay": 0, **policy})
    network = registry.network()
    config = AgentConfig(allowed, timeouts, flow=flow or FlowSettings(), home=home / domain)
    agent = Agent(identity(domain), str(NAME), config, network=network, on_event=on_event, negotiators=negotiators)
    async with agent:
        yield agent


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
