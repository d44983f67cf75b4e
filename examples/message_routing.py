"""Four agents pass tasks round: python examples/message_routing.py FOLDER.

The environment is an agent in this process. Each member is an agent in a process of its own, which is started as
`python examples/message_routing.py FOLDER NAME PORT`. FOLDER keeps their homes.
"""

import asyncio
import contextlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from treaty_client import Agent, Identity, LocalProtocols, Session

PROTOCOLS = LocalProtocols([Path(__file__).parents[1] / "protocols" / "message-routing" / "1.0"])
ROUTING = PROTOCOLS.uri("message-routing")
ROUNDS = 3
# Name: class, action, and the causes that the member watches.
MEMBERS = {
    "Alice": ("Planner", "Split", ["UserRequirement"]),
    "Bob": ("Worker", "Work", ["Split", "Review"]),
    "Carol": ("Compiler", "Compile", ["Work"]),
    "Dave": ("Reviewer", "Review", ["Compile"]),
}


async def act(action: str, news: list[dict[str, Any]]) -> dict[str, Any]:
    """Do a member's action: one message for each of the news. A language model would write them."""
    if action == "Split":
        return {"publish": [_message(action, task, 1) for task in range(10)]}
    about = [message["instruct_content"] for message in news]
    return {"publish": [_message(action, one["task"], one["round"] + (action == "Review")) for one in about]}


def _message(action: str, task: int, number: int) -> dict[str, Any]:
    # The review of the last round goes to nobody: the task is done.
    done = action == "Review" and number > ROUNDS
    about = {"task": task, "round": number}
    content = f"{action} of task {task}"
    return {"content": content, "cause_by": action, "instruct_content": about, "send_to": ["<none>"] if done else ["<all>"]}


async def think(state: str, choices: list[str], news: list[dict[str, Any]]) -> dict[str, str]:
    """Choose the next action. A member with one action is not asked."""
    return {"state": choices[0]}


async def take_part(agent: Agent, name: str, port: int) -> None:
    """Be a member until the environment says that it is over."""
    address, action, watch = MEMBERS[name]
    connection = agent.connect(f"ws://127.0.0.1:{port}", protocols=[ROUTING], role="member", serving=[act, think])
    async with connection as session:
        transitions = {"<idle>": [action], action: ["<idle>"]}
        await session.call("join", name=name, address=address, watch=watch, transitions=transitions)
        print("Joined.", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


async def lead(agent: Agent, folder: Path) -> None:
    """Be the environment: wait for the members, publish a requirement, and run rounds until all are idle."""

    @agent.on_session(ROUTING, role="environment")
    async def joined(session: Session) -> None:
        """Leave the sessions to the handler."""

    async with agent.listen("127.0.0.1", 0) as port, contextlib.AsyncExitStack() as stack:
        environment = agent.shared(ROUTING)
        for name in MEMBERS:
            await _start(stack, folder, name, port)
        await environment.call("publish", content="Build it.", send_to=["Planner"])
        ended = await environment.call("run", rounds=100)
        history: list[dict[str, Any]] = []
        while page := (await environment.call("readHistory", start=len(history)))["messages"]:
            history += page
        causes = Counter(message["cause_by"] for message in history)
        print(
            f"{len(history)} messages in {ended['rounds']} rounds: {', '.join(f'{n} × {cause}' for cause, n in causes.items())}."
        )
        print("The environment is idle." if ended["idle"] else "The environment is not idle.")


async def _start(stack: contextlib.AsyncExitStack, folder: Path, name: str, port: int) -> None:
    """Start a member, and wait until it has joined. It ends with its standard input."""
    pipe = asyncio.subprocess.PIPE
    member = await asyncio.create_subprocess_exec(sys.executable, __file__, str(folder), name, str(port), stdin=pipe, stdout=pipe)
    stack.push_async_callback(member.communicate, b"")
    assert member.stdout is not None
    print(f"{name}: {(await member.stdout.readline()).decode().strip()}", flush=True)


async def main(folder: Path, name: str = "environment", port: str = "0") -> None:
    async with Agent(Identity.create(), PROTOCOLS, home=folder / name) as agent:
        await (lead(agent, folder) if name == "environment" else take_part(agent, name, int(port)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
