"""The four members of the example, each an agent in a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from treaty_agent import Agent, Identity, LocalProtocols

PROTOCOLS = LocalProtocols([Path(__file__).parents[1] / "1.0"])
ROUTING = PROTOCOLS.uri("message-routing")
TASKS, ROUNDS = 10, 3
# Name: class, action, and the causes that the member watches.
MEMBERS = {
    "Alice": ("Planner", "Split", ["UserRequirement"]),
    "Bob": ("Worker", "Work", ["Split", "Review"]),
    "Carol": ("Compiler", "Compile", ["Work"]),
    "Dave": ("Reviewer", "Review", ["Compile"]),
}


def answer(action: str, news: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Do an action: one message for each of the news. A language model would write them."""
    if action == "Split":
        return [_message(action, task, 1) for task in range(TASKS)]
    about = [message["instruct_content"] for message in news]
    return [_message(action, one["task"], one["round"] + (action == "Review")) for one in about]


def _message(action: str, task: int, number: int) -> dict[str, Any]:
    # The review of the last round goes to nobody: the task is done.
    done = action == "Review" and number > ROUNDS
    about = {"task": task, "round": number}
    content = f"{action} of task {task}"
    return {"content": content, "cause_by": action, "instruct_content": about, "send_to": ["<none>"] if done else ["<all>"]}


async def take_part(name: str, port: int, home: Path) -> None:
    """Be a member until the standard input ends. Then write how many messages it worked on, by their cause."""
    worked_on: Counter[str] = Counter()

    async def act(action: str, news: list[dict[str, Any]]) -> dict[str, Any]:
        worked_on.update(message["cause_by"] for message in news)
        return {"publish": answer(action, news)}

    async def think(state: str, choices: list[str], news: list[dict[str, Any]]) -> dict[str, str]:
        """Choose the next action. A member with one action is not asked."""
        return {"state": choices[0]}

    address, action, watch = MEMBERS[name]
    async with Agent(Identity.create(), PROTOCOLS, home=home) as agent:
        connection = agent.connect(f"ws://127.0.0.1:{port}", protocols=[ROUTING], role="member", serving=[act, think])
        async with connection as session:
            transitions = {"<idle>": [action], action: ["<idle>"]}
            await session.call("join", name=name, address=address, watch=watch, transitions=transitions)
            print("joined", flush=True)
            await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(worked_on), flush=True)
