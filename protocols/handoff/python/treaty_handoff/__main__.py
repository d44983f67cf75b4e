"""Look at the messages that are set aside, give them back, or delete them.

python -m treaty_handoff list postgresql://… support
python -m treaty_handoff give-back postgresql://… support 7
python -m treaty_handoff delete postgresql://… support 7
"""

from __future__ import annotations

import asyncio
import sys

from cyclopts import App

from treaty_consensus.errors import TreatyError

from .dead_letters import DeadLetters
from .journal import Journal

app = App(name="python -m treaty_handoff", help="Messages that could not be worked on.")


@app.command(name="list")
async def show(database: str, queue: str, *, limit: int = 100) -> None:
    """Write the messages that a queue set aside, the oldest first: number, time, id and reason."""
    async with Journal.open(database, queue) as journal:
        for letter in await DeadLetters(journal).list(queue, limit=limit):
            print(letter.number, letter.at.isoformat(timespec="milliseconds"), letter.message_id or "-", letter.reason)


@app.command
async def give_back(database: str, agent: str, number: int) -> None:
    """Put a message into its queue again. The agent sends it when it runs."""
    async with Journal.open(database, agent) as journal:
        await DeadLetters(journal).give_back(number)


@app.command
async def delete(database: str, agent: str, number: int) -> None:
    """Delete a message."""
    async with Journal.open(database, agent) as journal:
        await DeadLetters(journal).delete(number)


if __name__ == "__main__":
    try:
        asyncio.run(app.run_async(sys.argv[1:]))
    except TreatyError as error:
        sys.exit(str(error))
