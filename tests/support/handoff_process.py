"""A sender or a receiver of handoffs as a process of its own, to be killed at any time.

    python handoff_process.py sender|drain|receiver SENDER RECEIVER DATABASE-URL [RABBITMQ-URL]

A receiver writes a row of the table `effect` for each message that it works on. A sender goes on until it is killed; `drain` only
empties the sender's outbox. SIGTERM ends each as a supervisor does: with its blocks left in their order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any

from treaty_consensus.errors import Unavailable
from treaty_handoff import Handling, HandoffAgent, Journal, Kind, PostgresBroker, Priority, RabbitBroker, build

POISON, LONG = "End your process.", "Work for a day."
PAUSE = 0.02
"""Seconds between two messages, so that a run does not pile up thousands."""


def broker_of(arguments: list[str]) -> Any:
    """The broker that the arguments name."""
    return RabbitBroker.open(arguments[4]) if len(arguments) > 4 else PostgresBroker.open(arguments[3], lease=2)


async def insisting(attempt: Any) -> Any:
    """Repeat a step while the database does not answer, as a program does that a supervisor restarts."""
    while True:
        try:
            return await attempt()
        except Unavailable:
            await asyncio.sleep(0.1)


async def send(agent: HandoffAgent, recipient: str) -> None:
    """Hand off one message after the other; each is repeated until it is accepted."""
    priorities = list(Priority)
    for number in count():
        message = build(
            Kind.TASK_TRANSFER,
            {"objective": f"Message {number}.", "sub_tasks": []},
            sender=agent.name,
            recipient=recipient,
            task="killed",
            state="OPEN",
            now=datetime.now(UTC),
            priority=priorities[number % len(priorities)],
        )

        async def attempt(message: Any = message) -> None:
            await agent.send(message)

        await insisting(attempt)
        print(message["metadata"]["message_id"], flush=True)
        await asyncio.sleep(PAUSE)


async def work(handling: Handling) -> None:
    """The effect: a row. The table admits rows that are equal, so that a second effect is seen.

    A poisonous task ends the process, and a long one writes a line.
    """
    if handling.data["objective"] == POISON:
        os.kill(os.getpid(), signal.SIGKILL)
    await handling.connection.execute("insert into effect values ($1)", handling.message["metadata"]["message_id"])
    if handling.data["objective"] == LONG:
        print("WORKING", flush=True)
        await asyncio.sleep(86_400)


async def run(arguments: list[str]) -> None:
    role, sender, receiver, url = arguments[:4]
    name = receiver if role == "receiver" else sender
    async with Journal.open(url, name) as journal, broker_of(arguments) as broker:
        agent = HandoffAgent(name, journal, broker)
        if role == "receiver":
            agent.handles(Kind.TASK_TRANSFER)(work)
        async with agent.running():
            await (send(agent, receiver) if role == "sender" else asyncio.Event().wait())


async def main(arguments: list[str]) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)

    async def attempt() -> None:
        await run(arguments)

    await insisting(attempt)


if __name__ == "__main__":
    with suppress(asyncio.CancelledError):
        asyncio.run(main(sys.argv[1:]))
