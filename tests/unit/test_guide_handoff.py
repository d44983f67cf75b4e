"""The guide to handing work off is executed: its agents work with a real database."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import asyncpg
from handoffs import Inbox, until

from treaty_handoff import HandoffAgent, Journal, Kind, PostgresBroker

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "handoff.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


async def test_the_agents_of_the_guide_work_together(database: str) -> None:
    guide: Any = types.ModuleType("handoff_guide")
    for block in BLOCKS:
        exec(compile(block, "docs/guides/handoff.md", "exec"), guide.__dict__)
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
