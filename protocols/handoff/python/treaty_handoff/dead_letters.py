"""Messages that are set aside, because they cannot be worked on: an operator looks at them, and gives them back or deletes them.

The table `handoff_begun` counts how often the work on the bytes of a delivery began, as long as no attempt ended. A message that
ends its receiver, or the receiver's database, leaves its row there. The row is written before the message is opened, in a
transaction of its own, so that the next process counts on.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, NamedTuple

from treaty_consensus.errors import NotFound

from .codes import HandoffCode
from .journal import Journal, Transaction
from .messages import MAX_MESSAGE

BEGINNINGS = 5
"""Attempts that may end without a result before a message is set aside. Processes also end for other reasons."""
MAX_DEAD = 10_000
"""Messages that are set aside in one queue. Further ones are dropped and recorded, so that a flood does not fill the database."""
_SEALING = 64
"""Bytes by which a sealed message may be longer."""
_END = "delete from handoff_begun where queue = $1 and digest = $2"
_NO_ID = "00000000-0000-0000-0000-000000000000"
"""Stands in the outbox for the id of a message that could not be read."""


class DeadLetter(NamedTuple):
    """A message that is set aside. `number`: names it for `give_back` and `delete`. `message_id`: "" if it could not be read."""

    number: int
    queue: str
    message_id: str
    reason: str
    at: datetime


class DeadLetters:
    """The messages that one agent and its groups set aside."""

    def __init__(self, journal: Journal, limit: int = MAX_MESSAGE) -> None:
        """`limit`: bytes of a message of this agent."""
        self._journal, self._limit = journal, limit

    async def begin(self, queue: str, body: bytes) -> int:
        """Count that work on these bytes begins. Return how many attempts have begun and not ended, this one included."""
        query = (
            "insert into handoff_begun values ($1, $2, 1)"
            " on conflict (queue, digest) do update set times = handoff_begun.times + 1 returning times"
        )
        async with self._journal.transaction() as transaction:
            return int(await transaction.connection.fetchval(query, queue, _digest(body)))

    async def end(self, queue: str, body: bytes) -> None:
        """Note that the attempt ended, with whatever result."""
        async with self._journal.transaction() as transaction:
            # A row that comes back after a crash of the database does no harm: the next end removes it.
            await transaction.connection.execute("set local synchronous_commit = off")
            await transaction.connection.execute(_END, queue, _digest(body))

    async def undo(self, queue: str, body: bytes) -> None:
        """Take back one beginning: the attempt stopped for a reason that is not in the message."""
        async with self._journal.transaction() as transaction:
            await transaction.connection.execute(
                "update handoff_begun set times = times - 1 where queue = $1 and digest = $2 and times > 0", queue, _digest(body)
            )

    async def add(
        self,
        transaction: Transaction,
        queue: str,
        sealed: bytes,
        now: datetime,
        *,
        reason: str,
        message_id: str = "",
        sender: str = "",
    ) -> bool:
        """Set a message aside, as it is in its queue. Return False if there is no room for it: it is dropped."""
        count = await transaction.connection.fetchval("select count(*) from handoff_dead where queue = $1", queue)
        has_room = count < MAX_DEAD and len(sealed) <= self._limit + _SEALING
        if has_room:
            await transaction.connection.execute(
                "insert into handoff_dead (queue, message_id, sender, reason, body, at) values ($1, $2, $3, $4, $5, $6)",
                queue,
                message_id,
                sender,
                reason[:1000],
                sealed,
                now,
            )
        await transaction.note(message_id, "set-aside" if has_room else "dropped", reason, now)
        return has_room

    async def list(self, queue: str, *, limit: int = 100) -> list[DeadLetter]:
        """Return the messages that are set aside in a queue, the oldest first. Raises `Unavailable`."""
        query = "select number, queue, message_id, reason, at from handoff_dead where queue = $1 order by number limit $2"
        async with self._journal.transaction() as transaction:
            return [DeadLetter(*row) for row in await transaction.connection.fetch(query, queue, limit)]

    async def count(self, queue: str) -> int:
        """Return how many messages are set aside in a queue. Raises `Unavailable`."""
        async with self._journal.transaction() as transaction:
            query = "select count(*) from handoff_dead where queue = $1"
            return int(await transaction.connection.fetchval(query, queue))

    async def give_back(self, number: int) -> None:
        """Put a message into its queue again, as if no work on it had begun. Its sender gets a further report.

        Raises `NotFound`.
        """
        async with self._journal.transaction() as transaction:
            row = await self._remove(transaction, number)
            await transaction.reopen(row["queue"], row["message_id"], row["sender"])
            await transaction.connection.execute(_END, row["queue"], _digest(row["body"]))
            # The outbox of this agent, not the broker: a crash after the commit does not lose it.
            await transaction.enqueue(row["queue"], row["body"], row["message_id"] or _NO_ID)

    async def delete(self, number: int) -> None:
        """Delete a message that is set aside. Its record stays, so that a repetition has no effect. Raises `NotFound`."""
        async with self._journal.transaction() as transaction:
            await self._remove(transaction, number)

    async def _remove(self, transaction: Transaction, number: int) -> Any:
        row = await transaction.connection.fetchrow("delete from handoff_dead where number = $1 returning *", number)
        if row is None:
            raise NotFound(HandoffCode.SET_ASIDE, f"No message with the number {number} is set aside.")
        return row


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
