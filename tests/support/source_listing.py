"""The source's listing, which MetaGPT and `treaty_routing` run in the same way, and what its actions see and return.

`source_listing.txt` has the printed code with its indentation. Three actions have no body there: their author fills it in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

LISTING = Path(__file__).with_suffix(".txt")
FILLED = ("AgentBAction", "AgentCAction", "AgentDAction")


def prepared(names: dict[str, Any], rounds: int) -> tuple[dict[str, Any], list[tuple[str, list[str]]]]:
    """Execute the classes of the listing with these names in the place of its imports. Return its namespace, and a list that gets
    each run of an action: its class, and the contents that it was given."""
    runs: list[tuple[str, list[str]]] = []
    text = "".join(line for line in LISTING.read_text(encoding="utf-8").splitlines(keepends=True) if "treaty_routing" not in line)
    namespace = {**names, "split_10_subtask": lambda content: [f"{content} {number}" for number in range(10)]}
    exec(compile(text, LISTING.name, "exec"), namespace)
    for name in FILLED:
        namespace[name].run = _filled(name, namespace, rounds, runs)
    return namespace, runs


def _filled(name: str, namespace: dict[str, Any], rounds: int, runs: list[tuple[str, list[str]]]) -> Callable[..., Any]:
    async def run(self: Any, with_messages: Any = None, **kwargs: Any) -> Any:
        runs.append((name, [message.content for message in with_messages]))
        number = sum(who == name for who, _ in runs)
        # The last feedback goes to nobody: without that the loop has no end.
        done = name == "AgentDAction" and number == rounds
        team = {namespace[role] for role in ("AgentB", "AgentC", "AgentD")}
        recipients = namespace["MESSAGE_ROUTE_TO_NONE"] if done else team
        return namespace["Message"](content=f"{name} {number}", cause_by=namespace[name], send_to=recipients)

    return run
