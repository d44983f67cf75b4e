"""`python protocols/handoff/example [--json]`: a customer's problem moves from a desk to a technician, an expert and a person.

The four agents are processes, with a PostgreSQL of their own. The person's answer is read from the standard input. At the end,
the flow is shown as the journals recorded it, without personal data. `--json` writes lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from settings import DESK, EXPERT, FLOW, PERSON, SUPPORT, Deployment

from treaty_handoff.redaction import HIDDEN, redacted
from treaty_registry.storage.embedded import embedded_postgres

AGENTS = Path(__file__).with_name("agents.py")
COLOURS = {DESK: "cyan", SUPPORT: "green", EXPERT: "magenta", PERSON: "yellow"}
PATIENCE = 120.0
"""Seconds for the whole story, without the person's."""


class Output(Protocol):
    """How the story and the flow are shown."""

    def said(self, agent: str, text: str) -> None:
        """Show the words of an agent."""

    def flow(self, entries: list[dict[str, Any]]) -> None:
        """Show the messages in the order in which they were sent."""


class TerminalOutput:
    """Colours and lines."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def said(self, agent: str, text: str) -> None:
        """A line in the agent's colour."""
        self._console.print(f"[bold {COLOURS[agent]}]{agent}[/]", escape(text), soft_wrap=True)

    def flow(self, entries: list[dict[str, Any]]) -> None:
        """Two lines for each message, of at most 80 columns: its way, and its type with the data that are not personal."""
        self._console.print("\nThe flow, without personal data", style="bold")
        for number, entry in enumerate(entries, 1):
            data = {name: value for name, value in entry["payload"]["data"].items() if isinstance(value, str | int)}
            members = [f"{name}={value}" for name, value in data.items() if name != "in_reply_to" and value != HIDDEN]
            line = "  ".join([entry["payload"]["handoff_type"], *members])
            self._console.print(f"{number:2} {entry['from']} → {entry['to']}", f"   {line}", sep="\n", markup=False)


class JsonOutput:
    """Lines of JSON, for programs."""

    def said(self, agent: str, text: str) -> None:
        """`{"agent": …, "text": …}`."""
        print(json.dumps({"agent": agent, "text": text}), flush=True)

    def flow(self, entries: list[dict[str, Any]]) -> None:
        """`{"from": …, "to": …, "payload": …}`."""
        for entry in entries:
            print(json.dumps(entry), flush=True)


async def main(output: Output) -> None:
    with _open_folder() as folder:
        async with embedded_postgres(folder) as url:
            deployment = Deployment(folder, url)
            deployment.prepare(os.urandom(32))
            # The desk begins alone: its message waits until the others are there.
            processes: list[Process] = []
            telling = []
            try:
                for agent in (DESK, SUPPORT, EXPERT, PERSON):
                    command = [sys.executable, str(AGENTS), agent, str(folder), url]
                    processes.append(await asyncio.create_subprocess_exec(*command, stdout=PIPE))
                    telling.append(asyncio.create_task(_tell(processes[-1], output)))
                await asyncio.wait_for(_end(deployment), PATIENCE if not sys.stdin.isatty() else None)
            finally:
                for process in processes:
                    process.terminate()
                    await process.wait()
                await asyncio.gather(*telling)
            await _show(deployment, output)


@contextmanager
def _open_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="handoff-") as name:
        # PostgreSQL, started by root, runs as another user, who has to reach its directory.
        Path(name).chmod(0o755)
        yield Path(name)


async def _tell(process: Process, output: Output) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        entry = json.loads(line)
        output.said(entry["agent"], entry["text"])


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


async def _show(deployment: Deployment, output: Output) -> None:
    async with deployment.agent(DESK) as (_, journal):
        sent = [entry for entry in await journal.flow(FLOW) if entry.direction == "sent"]
    output.flow(
        [
            {
                "from": entry.holder,
                "to": entry.message["metadata"]["recipient_id"],
                "payload": redacted(entry.message)["payload"],
            }
            for entry in sent
        ]
    )


if __name__ == "__main__":
    asyncio.run(main(JsonOutput() if "--json" in sys.argv[1:] else TerminalOutput()))
