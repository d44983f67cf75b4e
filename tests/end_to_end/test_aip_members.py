"""AIP's gateway as a shared role: agents register in sessions of Treaty, find each other, speak and call tools through it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from treaty_agent import Agent, Identity, LocalProtocols, OperationError, Session

ROOT = Path(__file__).parents[2]
PROTOCOLS = LocalProtocols([ROOT / "protocols" / "aip" / "0.0.1"])
URI = PROTOCOLS.uri("aip")


class Node:
    """A member: the events that its handler gave it, and its session. Its tool answers with its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: dict[str, asyncio.Queue[Any]] = {name: asyncio.Queue() for name in ("inquiry", "feedback", "node_changed")}
        self.session: Session

    def functions(self) -> list[Any]:
        async def inquiry(message: dict[str, Any]) -> None:
            self.events["inquiry"].put_nowait(message)

        async def feedback(message: dict[str, Any]) -> None:
            self.events["feedback"].put_nowait(message)

        async def node_changed(update: dict[str, Any]) -> None:
            self.events["node_changed"].put_nowait(update)

        async def process_request(request: dict[str, Any]) -> dict[str, Any]:
            return {"content": [{"text": f"{request['arguments']['x']} by {self.name}"}]}

        return [inquiry, feedback, node_changed, process_request]

    async def next(self, event: str) -> Any:
        async with asyncio.timeout(30):
            return await self.events[event].get()

    async def register(self, **kind: Any) -> Any:
        ((kind_name, more),) = (kind or {"agent_info": {"agent_id": self.name}}).items()
        return await self.session.call("register", peer={kind_name: {"address": f"{self.name}:1", **more}})


@asynccontextmanager
async def joined(folder: Path, *names: str) -> AsyncIterator[tuple[Agent, list[Node], list[AsyncExitStack]]]:
    """A gateway and its members, each an agent of its own; and the stack that ends each member."""
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Agent(Identity.create(), PROTOCOLS, home=folder / "gateway"))

        @gateway.on_session(URI, role="gateway")
        async def ignored(session: Session) -> None:
            """The gateway has one session, and calls none of its members' own."""

        port = await stack.enter_async_context(gateway.listen("127.0.0.1", 0))
        nodes, stacks = [Node(name) for name in names], []
        for node in nodes:
            stacks.append(await stack.enter_async_context(AsyncExitStack()))
            agent = await stacks[-1].enter_async_context(Agent(Identity.create(), PROTOCOLS, home=folder / node.name))
            connection = agent.connect(f"ws://127.0.0.1:{port}", protocols=[URI], role="node", serving=node.functions())
            node.session = await stacks[-1].enter_async_context(connection)
        yield gateway, nodes, stacks


async def test_members_of_a_gateway_outlive_a_lost_one(tmp_path: Path) -> None:
    async with joined(tmp_path, "alice", "bob", "adder") as (gateway, (alice, bob, adder), stacks):
        assert (await alice.register())["peers"] == []
        assert [peer["agent_info"]["agent_id"] for peer in (await bob.register())["peers"]] == ["alice"]
        assert await adder.register(tool_info={"tool_id": "adder"}) == {"success": True}
        peers = (await alice.session.call("get_nodes", domain=""))["peers"]
        assert [next(iter(peer)) for peer in peers] == ["agent_info", "agent_info", "tool_info"]

        ids = {"session_id": "s", "sender_id": "alice", "receiver_id": "bob"}
        await alice.session.call("create_client", session_id="s", receiver_id="bob")
        await alice.session.call("submit_inquiry", message={**ids, "content": [{"text": "hello"}]})
        assert (await bob.next("inquiry"))["content"] == [{"text": "hello"}]
        back = {"session_id": "s", "sender_id": "bob", "receiver_id": "alice"}
        await bob.session.call("submit_feedback", message={**back, "content": [{"text": "welcome"}]})
        assert (await alice.next("feedback"))["content"] == [{"text": "welcome"}]

        request = {"sender_id": "alice", "receiver_id": "adder", "session_id": "t", "arguments": {"x": "1"}}
        answer = await alice.session.call("call_tool", request=request)
        assert (answer["content"], answer["sender_id"], answer["receiver_id"]) == ([{"text": "1 by adder"}], "adder", "alice")

        ids["session_id"] = "s2"
        await alice.session.call("create_client", session_id="s2", receiver_id="bob")
        await alice.session.call("submit_inquiry", message={**ids, "message_id": "m2"})
        begun = await bob.next("inquiry")
        await bob.session.call("submit_feedback", message={**back, "session_id": "s2"})
        assert (await alice.next("feedback"))["reply_to_message_id"] == "m2"
        await alice.session.call("close_client", session_id="s2", receiver_id="bob")
        ended = await bob.next("inquiry")
        assert [(each["session_id"], each["session_status"]) for each in (begun, ended)] == [
            ("s2", "START_QUEST"),
            ("s2", "STOP_QUEST"),
        ]

        await alice.session.call("subscribe", node_ids=[])
        await stacks[1].aclose()
        lost = await alice.next("feedback")
        assert (lost["session_status"], lost["session_id"]) == ("STOP_RESPONSE", "s")
        change = await alice.next("node_changed")
        assert (change["update_type"], change["node_id"]) == ("REMOVED", "bob")
        assert sorted(await gateway.shared(URI).call("registered_nodes")) == ["adder", "alice"]
        assert (await alice.session.call("call_tool", request=request))["content"] == [{"text": "1 by adder"}]


async def test_the_program_of_the_page_runs() -> None:
    (program,) = re.findall(r"```python sessions\n(.*?)```", (ROOT / "protocols" / "aip" / "README.md").read_text(), re.DOTALL)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out) == (0, b"3\n"), errors.decode()


@pytest.mark.threat(235)
async def test_a_member_acts_for_its_own_nodes_alone(tmp_path: Path) -> None:
    async with joined(tmp_path, "alice", "mallory") as (gateway, (alice, mallory), _):
        await alice.register()
        with pytest.raises(OperationError) as error:
            await mallory.register(agent_info={"agent_id": "alice", "address": "elsewhere:1"})
        assert error.value.status == 409
        await mallory.register()
        for sender in ("alice", "root"):
            with pytest.raises(OperationError) as refused:
                await mallory.session.call("call_tool", request={"sender_id": sender, "receiver_id": "alice", "arguments": {}})
            assert refused.value.status == 403
        nodes = await gateway.shared(URI).call("registered_nodes")
        assert {name: node["agent_info"]["address"] for name, node in nodes.items()} == {
            "alice": "alice:1",
            "mallory": "mallory:1",
        }
