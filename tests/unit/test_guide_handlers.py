"""The guide to handlers is executed: from `treaty new` to two agents that stream items by the generated stubs."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from meetings import identity
from signers import ORIGIN
from simulated_registry import ALICE, NAME, SimulatedRegistry
from simulated_sigstore import Authority, serving
from working_agents import CUSTOMER, SELLER, agents_registry

from treaty_agent import Agent, AgentConfig, Identity, Policy
from treaty_client.authoring.check import check_package
from treaty_client.authoring.stubs import write_stubs
from treaty_client.protocols.project import load_project
from treaty_client.registries.api import RegistryClient
from treaty_client.statements.publish import Publisher
from treaty_handler import Multicast, PeerJoined, PeerLost, Received

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "handlers.md").read_text(encoding="utf-8")
PACKAGES = Path(__file__).parents[2] / "docs" / "specification" / "handler-packages.md"
LINKED = ("Streams, events and cancellation", "Shared roles")
"""Its sections with the events and effects that the guide does not repeat."""
WALK = GUIDE.partition("## From an idea")[2].partition("## Without code")[0]


def blocks(language: str) -> list[str]:
    matches = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", WALK, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{space}", "", block, flags=re.MULTILINE) for space, block in matches]


@pytest.fixture
def registry() -> Iterator[SimulatedRegistry]:
    registry = agents_registry(published=False)
    registry.now = int(time.time())
    with serving(cast(Authority, registry)) as registry.services:
        yield registry


def run(folder: Path, line: str) -> None:
    command = [sys.executable, "-c", "from treaty_command.main import main; main()", *shlex.split(line)[1:], "--home", "home"]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.deep
async def test_the_walk_from_an_idea_to_two_agents(
    registry: SimulatedRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (new, first), (second,), publishing, (stubs,) = (block.splitlines() for block in blocks("sh"))
    for line in (new, first):
        await asyncio.to_thread(run, tmp_path, line)
    (vector,) = blocks("json")
    (tmp_path / "weather" / "vectors" / "late.json").write_text(vector)
    await asyncio.to_thread(run, tmp_path, second)
    # The registry is simulated, so the two commands are called instead of started.
    assert publishing == ["treaty publish weather --dry-run", "treaty publish weather"]
    network = registry.network()
    alice = Identity(ALICE.did, ALICE.key_id, ALICE.private_key)
    async with RegistryClient(f"https://{ORIGIN}", network) as client:
        publisher = Publisher(alice, client, registry.trusted_in(tmp_path / "alice"), ORIGIN, network, clock=lambda: registry.now)
        project = load_project(tmp_path / "weather")
        dry = [step.what async for step in publisher.publish(project, dry_run=True)]
        steps = [step async for step in publisher.publish(project)]
    assert dry == ["built", "tried", "unpublished"]
    assert steps[-1].what == "attached"
    # `treaty stubs URI` writes the module of the verified package.
    assert stubs == "treaty stubs URI --output weather_report.py"

    def agent(domain: str) -> Agent:
        config = AgentConfig(Policy(publishers=[ALICE.did], report=False), home=tmp_path / domain)
        return Agent(identity(domain), str(NAME), config, network=network)

    async with agent(SELLER) as seller, agent(CUSTOMER) as customer:
        package = (await seller.context.ports.protocols.fetch(steps[-1].uri)).package
        assert (await check_package(package)).passed
        for name, text in (("weather_report", write_stubs(package)), ("application", blocks("python")[0])):
            module = types.ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            exec(compile(text, name, "exec"), module.__dict__)
        application: Any = sys.modules["application"]
        sys.modules["weather_report"].provide_provider(seller, application.Station())
        async with seller.listen("127.0.0.1", 0) as port:
            items = await application.ask(customer, f"ws://127.0.0.1:{port}")
    assert items == [f"{hour}:00 rain" for hour in range(24)]


def test_the_room_of_the_guide_sends_to_its_members() -> None:
    (source,) = [
        block for block in re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL) if "class Room:" in block
    ]
    space: dict[str, Any] = {}
    exec(compile(source, "docs/guides/handlers.md", "exec"), space)
    room, peers = space["Room"](), ("did:example:ada", "did:example:bob")
    for peer in peers:
        assert room.handle(PeerJoined(peer=peer, role="member")) == []
    assert room.handle(Received(peer=peers[0], data=b"x")) == [Multicast(peers=peers, data=b"x")]
    room.handle(PeerLost(peer=peers[0]))
    assert room.handle(Received(peer=peers[1], data=b"y")) == [Multicast(peers=peers[1:], data=b"y")]


def test_each_event_and_each_effect_is_in_the_guide_or_behind_its_links() -> None:
    from treaty_sandbox.worker.framing import EFFECTS, EVENTS

    linked = (
        PACKAGES.read_text(encoding="utf-8").partition(f"\n### {heading}\n")[2].partition("\n### ")[0] for heading in LINKED
    )
    text = "".join((GUIDE, *linked))
    assert [kind.__name__ for kind in (*EVENTS.values(), *EFFECTS.values()) if f"`{kind.__name__}(" not in text] == []
    for heading in LINKED:
        assert f"handler-packages.md#{heading.lower().replace(' ', '-').replace(',', '')})" in GUIDE
