"""The protocol `handoff` is published, fetched by its URI at a handshake, verified in ten steps, and spoken from the sandbox."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from handoffs import DATA, FOLDER, until
from meetings import identity
from signers import ORIGIN
from simulated_registry import ALICE, NAME
from simulated_sigstore import Authority, serving
from working_agents import CUSTOMER, SELLER, agents_registry

from treaty_agent import Agent, AgentConfig, Identity, Policy
from treaty_client.protocols.project import load_project
from treaty_client.registries.api import RegistryClient
from treaty_client.statements.publish import Publisher
from treaty_handoff import Kind, Priority, build


async def test_004_18_published_fetched_verified_and_spoken(tmp_path: Path) -> None:
    registry = agents_registry(published=False)
    registry.now = int(time.time())
    with serving(cast(Authority, registry)) as registry.services:
        network = registry.network()
        alice = Identity(ALICE.did, ALICE.key_id, ALICE.private_key)
        async with RegistryClient(f"https://{ORIGIN}", network) as client:
            trusted = registry.trusted_in(tmp_path / "alice")
            publisher = Publisher(alice, client, trusted, ORIGIN, network, clock=lambda: registry.now)
            uri = [step async for step in publisher.publish(load_project(FOLDER))][-1].uri
        config = {
            name: AgentConfig(Policy(publishers=[ALICE.did], report=False), home=tmp_path / name) for name in (SELLER, CUSTOMER)
        }
        seller = Agent(identity(SELLER), str(NAME), config[SELLER], network=network)
        customer = Agent(identity(CUSTOMER), str(NAME), config[CUSTOMER], network=network)
        async with seller, customer:
            await _speak(seller, customer, uri)


async def _speak(seller: Agent, customer: Agent, uri: str) -> None:
    escalated: list[str] = []
    reports: list[str] = []

    async def work(message: Any) -> Any:
        raise RuntimeError("The line is dead.")

    async def escalate(message: Any, target: str) -> Any:
        escalated.append(target)
        return {"status": "ACCEPTED"}

    async def fall_back(message: Any, target: str) -> Any:
        return {"status": "COMPLETED"}

    async def take(message: Any) -> Any:
        reports.append(message["payload"]["data"]["status"])
        return {"status": "COMPLETED"}

    for function, name in ((work, "handOff"), (escalate, "escalate"), (fall_back, "fallBack"), (take, "handOff")):
        function.__name__ = name
    for function in (work, escalate, fall_back):
        seller.provides(uri, role="receiver")(function)
    message = build(
        Kind.ESCALATION,
        DATA[Kind.ESCALATION],
        sender="desk",
        recipient="support",
        task="task-1",
        state="ESCALATED",
        now=datetime.now(UTC),
        priority=Priority.HIGH,
        instructions={"failure_handling_strategy": {"retry_count": 1, "escalate_to": "experts"}},
    )
    async with seller.listen("127.0.0.1", 0) as port:
        connecting = customer.connect(f"ws://127.0.0.1:{port}", protocols=[uri], role="sender", serving=[take])
        async with connecting as session:
            assert await session.call("handOff", message=message) == {"status": "ACCEPTED"}
            await until(lambda: reports == ["ESCALATED"])
    assert escalated == ["experts"]
