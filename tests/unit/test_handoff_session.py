"""The handler of the protocol `handoff`: its vectors, and sessions of two agents."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from handoffs import FOLDER

from treaty_agent import OperationError
from treaty_agent.testing import Simulation, run
from treaty_client.protocols.project import load_project
from treaty_consensus.handler import read_wheel
from treaty_handoff import Kind, build
from treaty_sandbox import Isolation, SandboxPool, run_vectors

SYMPTOMS = {"objective": "Restore the line.", "sub_tasks": []}


@pytest.mark.sample(1)
@pytest.mark.parametrize("isolation", ["bubblewrap", "none"])
async def test_vectors(isolation: Isolation) -> None:
    project = load_project(FOLDER)
    package = read_wheel(*project.build_wheel("https://registry.example/protocols/example.com/handoff/1.0"))
    assert not package.is_declarative and {role for vector in project.vectors for role in vector.roles} == {
        "sender",
        "receiver",
        "member",
        "broker",
    }
    async with SandboxPool(size=0, levels=(isolation,)) as pool:
        assert await run_vectors(pool, package, project.vectors) == []


def message(kind: Kind = Kind.TASK_TRANSFER, **parts: Any) -> dict[str, Any]:
    parts = {"data": SYMPTOMS, "sender": "guest", "recipient": "host", "task": "t", "state": "OPEN", **parts}
    parts.setdefault("now", datetime.now(UTC))
    return build(kind, parts.pop("data"), **parts)


def test_004_38_two_agents_hand_off_in_a_session() -> None:
    """A session is the other synchronous way."""
    priorities: list[str] = []

    async def main() -> None:
        async with Simulation([FOLDER]) as simulation:
            host, guest = simulation.agent("host.example"), simulation.agent("guest.example")
            uri = simulation.uri("handoff")

            @host.provides(uri, role="receiver")
            async def handOff(message: Any) -> Any:  # noqa: N802
                priorities.append(message["metadata"]["priority"])
                return {"status": "COMPLETED"}

            @host.provides(uri, role="receiver")
            async def escalate(message: Any, target: str) -> Any:
                return {"status": "ACCEPTED"}

            @host.provides(uri, role="receiver")
            async def fallBack(message: Any, target: str) -> Any:  # noqa: N802
                return {"status": "COMPLETED"}

            async def feedback(message: Any) -> Any:
                return {"status": "COMPLETED"}

            feedback.__name__ = "handOff"
            connecting = guest.connect("wss://host.example", protocols=[uri], role="sender", serving=[feedback])
            async with simulation.serving(host), connecting as session:
                first = message()
                assert await session.call("handOff", message=first) == {"status": "ACCEPTED"}
                again = await session.call("handOff", message=copy.deepcopy(first))
                # The report on the first may come before the answer to the second.
                assert again["status"] in ("DUPLICATE", "COMPLETED")
                with pytest.raises(OperationError) as caught:
                    await session.call("handOff", message=message(now=datetime(2020, 1, 1, tzinfo=UTC), lifetime=timedelta(1)))
                assert caught.value.code == "operation.410"

    run(main())
    assert priorities == ["MEDIUM"]
