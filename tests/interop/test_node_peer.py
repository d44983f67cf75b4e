"""`examples/node`: an agent in JavaScript that was written from the specification speaks with agents of Treaty, in both roles."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols, OperationError, Session

EXAMPLES = Path(__file__).parents[2] / "examples"
DAY = "2030-05-02"
STARTS = [f"{DAY}T09:00", f"{DAY}T09:30", f"{DAY}T10:00"]


@asynccontextmanager
async def running(program: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec("node", program, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def local(home: Path) -> tuple[Agent, str]:
    protocols = LocalProtocols([EXAMPLES / "appointment"])
    return Agent(Identity.create(), protocols, AgentConfig(home=home)), protocols.uri("appointment")


async def book(session: Session, start: str) -> str | int:
    try:
        number: str = await session.call("book", start=start, name="Ada")
    except OperationError as error:
        return error.status
    return number


async def test_an_office_in_javascript_serves_an_agent(node_peer: Path, tmp_path: Path) -> None:
    agent, uri = local(tmp_path)
    async with agent, running(node_peer / "appointments.js", "office", "0", str(EXAMPLES / "appointment"), uri) as office:
        assert office.stdout is not None
        port = int(await asyncio.wait_for(office.stdout.readline(), 30))
        bookings: list[str | int] = []
        for resumed in (False, True):
            async with agent.connect(f"ws://127.0.0.1:{port}", protocols=[uri], role="customer") as session:
                async with session.stream("find", day=DAY) as slots:
                    free = [slot["start"] async for slot in slots]
                assert free == STARTS[len(bookings) :]
                assert (session.resumed, session.peer.did) == (resumed, "did:wba:office.example")
                with pytest.raises(OperationError, match="no such day") as refusal:
                    async with session.stream("find", day="2031-01-01") as slots:
                        [slot async for slot in slots]
                assert refusal.value.status == 404
                bookings.append(await book(session, free[0]))
                assert await book(session, free[0]) == 409
                assert await book(session, f"{DAY}T23:00") == 404
        assert bookings == ["B1", "B2"]


async def test_an_agent_serves_a_customer_in_javascript(node_peer: Path, tmp_path: Path) -> None:
    agent, uri = local(tmp_path)
    office = _module(EXAMPLES / "appointments.py").Office(*STARTS)
    async with agent:
        office.open(agent, uri)
        async with agent.listen("127.0.0.1", 0) as port:
            arguments = "customer", f"ws://127.0.0.1:{port}", str(EXAMPLES / "appointment"), uri
            async with running(node_peer / "appointments.js", *arguments) as customer:
                output, errors = await asyncio.wait_for(customer.communicate(), 30)
                assert customer.returncode == 0, errors.decode()
    meetings = [json.loads(line) for line in output.splitlines()]
    assert meetings == [
        {"starts": STARTS, "booking": "B1", "again": 409},
        {"starts": STARTS[1:], "booking": "B2", "again": 409},
    ]


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_forms_of_a_later_interface_are_refused(node_peer: Path) -> None:
    newer = EXAMPLES.parent / "protocols" / "mcp-tools-call" / "2026.7.28"
    async with running(node_peer / "appointments.js", "office", "0", str(newer), "https://registry.example/p") as office:
        _, errors = await office.communicate()
    assert office.returncode == 1 and b"forms of a later interface than 4" in errors
