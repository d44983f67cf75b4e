"""The guide to handing work off is executed: its agents work with a real database."""

from __future__ import annotations

import asyncio
import re
import types
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from handoffs import Inbox, until
from ports import free_port
from tls_servers import TestAuthority

from treaty_agent import Identity
from treaty_handoff import HandoffAgent, Journal, Kind, Outcome, Permissions, PostgresBroker, Status, build
from treaty_handoff.messages import encode

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "handoff.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def guide() -> Any:
    module: Any = types.ModuleType("handoff_guide")
    for block in BLOCKS:
        exec(compile(block, "docs/guides/handoff.md", "exec"), module.__dict__)
    return module


async def test_the_agents_of_the_guide_work_together(database: str, guide: Any) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("create table if not exists visits (customer text)")
    async with (
        Journal.open(database, "support") as journal,
        Journal.open(database, "desk") as own,
        PostgresBroker.open(database) as broker,
    ):
        desk = HandoffAgent("desk", own, broker)
        feedback = Inbox(desk, Kind.STATUS_UPDATE)
        async with guide.support(journal, broker).running(), desk.running():
            await guide.ask_for_help(desk)
            await feedback.wait()
            await until(lambda: _has_visit(connection))
    await connection.close()
    assert feedback.statuses == ["COMPLETED"]
    assert guide.permissions.senders["desk"].did == guide.desk.did


async def _has_visit(connection: Any) -> bool:
    return [row["customer"] for row in await connection.fetch("select customer from visits")] == ["u-1"]


async def test_the_agent_of_the_guide_serves_https(database: str, guide: Any, tmp_path: Path) -> None:
    sender, port, authority = Identity.create(), free_port(), TestAuthority(tmp_path)
    async with Journal.open(database, "billing") as journal, PostgresBroker.open(database) as broker:
        billing = HandoffAgent("billing", journal, broker, permissions=Permissions.of({"desk": sender.did}))
        inbox = Inbox(billing, Kind.TASK_TRANSFER)
        serving = asyncio.create_task(guide.serve(billing, str(authority.certificate), str(authority.key), port))
        try:
            await until(lambda: _listens(port))
            status = await guide.credit_now(f"https://127.0.0.1:{port}", sender, "desk", authority.trusting())
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
    assert status == "COMPLETED" and inbox.messages[0]["payload"]["data"]["inputs"] == {"customer": "u-1"}


async def test_an_agent_of_the_guide_demands_the_form_of_its_owner(database: str, guide: Any) -> None:
    document = '```json schema\n{"required": ["ticket"]}\n```\n'
    async with Journal.open(database, "tickets") as journal, PostgresBroker.open(database) as broker:
        tickets = guide.ticket_desk(journal, broker, document)
        inbox, now = Inbox(tickets), datetime.now(UTC)
        for data in ({"ticket": "T-1"}, {"event": "OPENED"}):
            note = build(Kind.NOTIFICATION, data, sender="desk", recipient="tickets", task="t", state="OPEN", now=now)
            processed = await tickets.receive(encode(note))
            assert (processed.error is None) == ("ticket" in data)
    assert len(inbox.messages) == 1


async def test_the_coordinator_of_the_guide_leads_its_steps(database: str, guide: Any) -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(PostgresBroker.open(database))
        journals = {name: await stack.enter_async_context(Journal.open(database, name)) for name in ("lead", "collect", "review")}
        agents = {name: HandoffAgent(name, journal, broker) for name, journal in journals.items()}
        inboxes = {name: Inbox(agents[name], Kind.TASK_TRANSFER) for name in ("collect", "review")}
        inboxes["collect"].outcome = Outcome(result={"pages": 3})
        coordinator = guide.lead(agents["lead"])
        for agent in agents.values():
            await stack.enter_async_context(agent.running())
        await guide.review_year(coordinator, journals["lead"], 2023)
        inboxes["review"].outcome = Outcome(Status.FAILED)
        with pytest.raises(RuntimeError, match="1/FAILED"):
            await guide.review_year(coordinator, journals["lead"], 2024)
    inputs = {name: [entry["payload"]["data"]["inputs"] for entry in inbox.messages] for name, inbox in inboxes.items()}
    assert inputs == {"collect": [{"year": 2023}, {"year": 2024}], "review": [{"pages": 3}, {"pages": 3}]}


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
