"""Four agents pass ten tasks round: python protocols/message-routing/example [--keep FOLDER] [--json]

The environment is an agent in this process. Each member is an agent in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from members import MEMBERS, PROTOCOLS, ROUTING, take_part
from rich.console import Console
from rich.table import Table

from treaty_agent import Agent, Identity, Session


class Member:
    """The process of a member, which ends with its standard input."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._worked_on: dict[str, int] | None = None

    @classmethod
    async def start(cls, name: str, port: int, folder: Path) -> Member:
        """Start it, and wait until it has joined. Raises `RuntimeError` if it ends before."""
        pipe, command = asyncio.subprocess.PIPE, (sys.executable, Path(__file__).parent, "--member", name, str(port))
        process = await asyncio.create_subprocess_exec(*command, "--keep", folder, stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        if not await process.stdout.readline():
            await process.wait()
            raise RuntimeError(f"{name} did not join.")
        return cls(process)

    async def end(self) -> dict[str, int]:
        """End it. Return how many messages it worked on, by their cause. May be called again."""
        if self._worked_on is None:
            output, _ = await self._process.communicate(b"")
            self._worked_on = dict(json.loads(output)) if output else {}
        return self._worked_on


async def lead(folder: Path) -> dict[str, Any]:
    """Be the environment: wait for the members, publish a requirement, and run rounds until all are idle. Return the outcome."""
    async with Agent(Identity.create(), PROTOCOLS, home=folder / "environment") as agent, AsyncExitStack() as stack:

        @agent.on_session(ROUTING, role="environment")
        async def joined(session: Session) -> None:
            """Leave the sessions to the handler."""

        port = await stack.enter_async_context(agent.listen("127.0.0.1", 0))
        environment, members = agent.shared(ROUTING), {}
        for name in MEMBERS:
            members[name] = await Member.start(name, port, folder)
            stack.push_async_callback(members[name].end)
        await environment.call("publish", content="Build it.", send_to=["Planner"])
        ended = await environment.call("run", rounds=100)
        history: list[dict[str, Any]] = []
        while page := (await environment.call("readHistory", start=len(history)))["messages"]:
            history += page
        worked_on = {name: await member.end() for name, member in members.items()}
    return {"rounds": ended["rounds"], "idle": ended["idle"], "worked_on": worked_on, **told(history)}


def told(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the number of messages by cause, and for each order of actions the number of tasks that had it."""
    orders: defaultdict[int, list[str]] = defaultdict(list)
    for message in history:
        if message["instruct_content"] is not None:
            orders[message["instruct_content"]["task"]].append(message["cause_by"])
    order_counts = Counter(" → ".join(order) for order in orders.values())
    return {"history": len(history), "by_cause": Counter(message["cause_by"] for message in history), "orders": order_counts}


def show(result: dict[str, Any], console: Console) -> None:
    """Show a result to a person."""
    table = Table("member", "class", "watches", "worked on", box=None, pad_edge=False)
    for name, (address, _, watch) in MEMBERS.items():
        causes = ", ".join(f"{number} × {cause}" for cause, number in result["worked_on"][name].items())
        table.add_row(name, address, ", ".join(watch), causes)
    console.print(table)
    causes = ", ".join(f"{number} × {cause}" for cause, number in result["by_cause"].items())
    console.print(f"\n{result['history']} messages in {result['rounds']} rounds: {causes}.")
    for order, tasks in result["orders"].items():
        console.print(f"{tasks} tasks: {order}.")
    console.print(f"The environment is {'idle' if result['idle'] else 'not idle'}.")


def main() -> int:
    """Run the example; the exit status is 0 if the environment is idle in the end."""
    parser = argparse.ArgumentParser(prog="python protocols/message-routing/example", description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the homes of the agents here (default: keep nothing)")
    parser.add_argument("--json", action="store_true", help="write one JSON object")
    parser.add_argument("--member", nargs=2, help=argparse.SUPPRESS)  # a process that this program starts
    arguments = parser.parse_args()
    if arguments.member:
        name, port = arguments.member
        asyncio.run(take_part(name, int(port), arguments.keep / name))
        return 0
    with tempfile.TemporaryDirectory(prefix="treaty-") as temporary:
        result = asyncio.run(lead(arguments.keep or Path(temporary)))
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result, Console(highlight=False, emoji=False))
    return 0 if result["idle"] else 1


if __name__ == "__main__":
    sys.exit(main())
