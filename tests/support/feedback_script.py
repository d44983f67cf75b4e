"""The feedback loop of four members, as a script: what each says to which message. It imports nothing, so that the programs of
others run it too.

Alice splits a requirement into ten tasks. Bob works on a task, Carol compiles it, Dave reviews it and gives feedback to Bob, and
after the last round he is content. A message says what it is in its content: `compile 3 of round 2`.
"""

from __future__ import annotations

from typing import Any

TASKS = 10
REQUIREMENT = "New user requirements"
MEMBERS = {"Alice": "AgentA", "Bob": "AgentB", "Carol": "AgentC", "Dave": "AgentD"}
"""Name and class of each, in the order in which they join."""
ACTIONS = {"Alice": "Split", "Bob": "Work", "Carol": "Compile", "Dave": "Review"}
WATCHES = {"Alice": ["UserRequirement"], "Bob": ["Split", "Review"], "Carol": ["Work"], "Dave": ["Compile"]}
DUMMY = "dummy message"
"""The content of a message that is for no member. The answer to one that reaches a member all the same is empty."""
REQUEST: dict[str, Any] = {"id": "request", "content": REQUIREMENT, "send_to": ["AgentA"]}


def model(prompt: str) -> str:
    """Return the answer of the scripted model to a prompt, `ACTION: CONTENT`."""
    action, _, content = prompt.partition(": ")
    if content == DUMMY:
        return ""
    if action == "Split":
        return "\n".join(f"split {task} of round 1" for task in range(TASKS))
    _, task, _, _, number = content.split()
    following = int(number) + (content.startswith("review"))
    return f"{action.lower()} {task} of round {following}"


def drafts(name: str, answer: str, rounds: int) -> list[dict[str, Any]]:
    """Return the messages that a member publishes for one answer of the model."""
    return [_draft(name, line, rounds) for line in answer.splitlines()]


def dummy(name: str, turn: int) -> dict[str, Any]:
    """Return the message with which a member ends its turn, as its messages are published already. `turn`: counts its turns."""
    return _fields(f"dummy-{name}-{turn}", DUMMY, None, name, ["<none>"])


def _draft(name: str, line: str, rounds: int) -> dict[str, Any]:
    action, task, _, _, number = line.split()
    is_last = action == "review" and int(number) == rounds
    about = {"task": int(task), "round": int(number)}
    return _fields(line.replace(" ", "-"), line, about, name, ["<none>"] if is_last else ["<all>"])


def _fields(id: str, content: str, about: dict[str, int] | None, name: str, send_to: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": id, "content": content, "role": "assistant", "cause_by": ACTIONS[name]}
    return fields | {"instruct_content": about, "sent_from": MEMBERS[name], "send_to": send_to}
