"""Message routing as a stranger gets it: published in a registry, found by its topic at a handshake, verified, and spoken; and a
member that is killed."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from feedback_script import REQUEST
from routing import FOLDER, Script, joining
from routing_process import PROTOCOLS
from routing_process import URI as ROUTING
from signers import domain_signer, identity_body
from simulated_registry import OPERATOR, uri_of
from working_agents import CUSTOMER, SELLER, agent, agents_registry, publish

from treaty_agent import Agent, Identity

URI, OTHER = uri_of(name="message-routing"), "courier.example"
SUPPORT = Path(__file__).parents[1] / "support"


async def ignored(session: Any) -> None:
    """The environment calls its one session, and none of its members'."""


async def test_members_verify_the_protocol_and_join_one_session(tmp_path: Path) -> None:
    registry = agents_registry()
    registry.add(identity_body(domain_signer(OTHER)), OPERATOR)
    publish(registry, URI, folder=FOLDER)
    contents: dict[str, list[str]] = {CUSTOMER: [], OTHER: []}

    def serving(domain: str) -> list[Any]:
        async def act(action: str, news: list[dict[str, Any]]) -> dict[str, Any]:
            contents[domain] += [message["content"] for message in news]
            return {"response": f"{action} by {domain}"}

        async def think(state: str, choices: list[str], news: list[dict[str, Any]]) -> dict[str, str]:
            return {"state": choices[0]}

        return [act, think]

    async with AsyncExitStack() as stack:
        environment = await stack.enter_async_context(agent(registry, tmp_path, SELLER))
        environment.on_session(URI, role="environment")(ignored)
        port = await stack.enter_async_context(environment.listen("127.0.0.1", 0))
        for domain, name in ((CUSTOMER, "Bob"), (OTHER, "Carol")):
            member = await stack.enter_async_context(agent(registry, tmp_path, domain))
            connection = member.connect(
                f"ws://127.0.0.1:{port}", topic="agents/message-routing", role="member", serving=serving(domain)
            )
            session = await stack.enter_async_context(connection)
            assert session.protocol == URI
            assert await session.call("join", **joining(name)) == {}
        shared = environment.shared(URI)
        assert [one.peer.did for one in shared.members] == [f"did:wba:{domain}" for domain in (CUSTOMER, OTHER)]
        await shared.call("publish", content="Begin.", cause_by="Split")
        assert await shared.call("run", rounds=9) == {"idle": True, "rounds": 3, "failures": []}
        history = (await shared.call("readHistory", start=0))["messages"]
        assert [message["content"] for message in history] == ["Begin.", f"Work by {CUSTOMER}", f"Compile by {OTHER}"]
        assert contents == {CUSTOMER: ["Begin."], OTHER: [f"Work by {CUSTOMER}"]}


HANGING = """
import asyncio, sys
from pathlib import Path
from routing_process import PROTOCOLS, URI
from treaty_agent import Agent, Identity

async def act(action: str, news: list) -> dict:
    print("Working.", flush=True)
    await asyncio.Event().wait()

async def think(state: str, choices: list, news: list) -> dict:
    return {"state": choices[0]}

async def main(port, home):
    async with Agent(Identity.create(), PROTOCOLS, home=home) as agent:
        async with agent.connect(f"ws://127.0.0.1:{port}", protocols=[URI], role="member", serving=[act, think]) as session:
            await session.call("join", name="Bob", address="AgentB", transitions={"<idle>": ["Do"], "Do": ["<idle>"]})
            print("Joined.", flush=True)
            await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
"""


@pytest.mark.deep
async def test_a_member_that_is_killed_in_a_round_ends_it_for_no_other(tmp_path: Path) -> None:
    alice = Script("Alice", 1)
    async with AsyncExitStack() as stack:
        environment = await stack.enter_async_context(Agent(Identity.create(), PROTOCOLS, home=tmp_path / "environment"))
        environment.on_session(ROUTING, role="environment")(ignored)
        port = await stack.enter_async_context(environment.listen("127.0.0.1", 0))
        member = await stack.enter_async_context(Agent(Identity.create(), PROTOCOLS, home=tmp_path / "alice"))
        connection = member.connect(
            f"ws://127.0.0.1:{port}", protocols=[ROUTING], role="member", serving=[alice.act, alice.think]
        )
        session = await stack.enter_async_context(connection)
        await session.call("join", **joining("Alice"))
        (tmp_path / "hanging.py").write_text(HANGING)
        command = (sys.executable, str(tmp_path / "hanging.py"), str(port), str(tmp_path / "bob"))
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])}
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=paths)
        try:
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"Joined.\n"
            shared = environment.shared(ROUTING)
            await shared.call("publish", **{**REQUEST, "send_to": ["<all>"]})
            running = asyncio.create_task(shared.call("run", rounds=5))
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"Working.\n"
            assert not running.done()
        finally:
            process.kill()
            await process.wait()
        done = await asyncio.wait_for(running, 60)
        assert (done["idle"], done["failures"]) == (True, [])
        assert alice.calls.total() == 1
        assert [one["name"] for one in (await shared.call("readMembers"))["members"]] == ["Alice"]
        assert len((await shared.call("readHistory", start=0))["messages"]) == 12
