"""`python -m handoff_desk`, with PYTHONPATH=examples: the four agents as processes, with a PostgreSQL of their own.

The person's answer is read from the standard input. At the end, the flow is shown as the journals recorded it, without personal
data.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treaty_handoff.redaction import redacted
from treaty_registry.storage.embedded import embedded_postgres

from .settings import DESK, EXPERT, FLOW, PERSON, SUPPORT, Deployment

PATIENCE = 120.0
"""Seconds for the whole story, without the person's."""


async def main() -> None:
    with _open_folder() as folder:
        async with embedded_postgres(folder) as url:
            deployment = Deployment(folder, url)
            deployment.prepare(os.urandom(32))
            # The desk begins alone: its message waits until the others are there.
            processes = []
            try:
                for agent in (DESK, SUPPORT, EXPERT, PERSON):
                    module = ["-m", "handoff_desk.agents", agent, str(folder), url]
                    processes.append(await asyncio.create_subprocess_exec(sys.executable, *module))
                await asyncio.wait_for(_end(deployment), PATIENCE if not sys.stdin.isatty() else None)
            finally:
                for process in processes:
                    process.terminate()
                    await process.wait()
            await _show(deployment)


@contextmanager
def _open_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="handoff-") as name:
        # PostgreSQL, started by root, runs as another user, who has to reach its directory.
        Path(name).chmod(0o755)
        yield Path(name)


async def _end(deployment: Deployment) -> None:
    """Wait until the desk worked on the last message."""
    async with deployment.agent(DESK) as (_, journal):
        while True:
            async with journal.transaction() as transaction:
                query = "select count(*) from handoff_event where holder = $1 and event = 'completed'"
                # The desk works on a question, the report of the escalation, and the notification at the end.
                if await transaction.connection.fetchval(query, DESK) >= 3:
                    return
            await asyncio.sleep(0.2)


async def _show(deployment: Deployment) -> None:
    async with deployment.agent(DESK) as (_, journal):
        print("\nThe flow:")
        for entry in await journal.flow(FLOW):
            if entry.direction == "sent":
                payload = redacted(entry.message)["payload"]
                print(f"  {entry.holder} → {entry.message['metadata']['recipient_id']}: {json.dumps(payload)}")


if __name__ == "__main__":
    asyncio.run(main())
