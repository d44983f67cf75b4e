"""The database of an agent: the outbox, the messages that it worked on, the state of its work, and the record of events.

    handoff_message    every message sent or received, sealed; of a received one, how its work ended; of an answer, which message
                       it answers, and of which agent
    handoff_outbox     messages on their way to the broker, sealed for their queue
    handoff_event      the events of each message, with their times
    handoff_state      values that agents keep between messages
    handoff_begun, handoff_dead        attempts and messages of `dead_letters`

One transaction covers a message's effect, the record that it had one, and the messages that follow from it. A crash leaves all of
them or none. The members of a group use one database, so that a message has one effect in the group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from treaty_consensus.errors import Conflict, Malformed, TreatyError, Unavailable
from treaty_io.extras import naming_extras

from .codes import HandoffCode
from .messages import Message, encode, expires_at, id_of, priority_of, sender_of
from .sealing import Seal

with naming_extras("handoff"):
    import asyncpg

LOST_DATABASE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    asyncpg.InvalidAuthorizationSpecificationError,  # the server refuses the user, or a connection without TLS
    asyncpg.InternalClientError,  # a connection that ends while the pool resets it
)
"""The errors of a connection that ended, and of a server that ends or starts."""

Connection: TypeAlias = "asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]"

_TABLES = """
create table if not exists handoff_message (
    holder text not null, direction text not null, message_id uuid not null, sender text not null, digest bytea not null,
    body bytea not null,
    flow text, task text not null, status text not null default '', attempts integer not null default 0,
    given_back integer not null default 0, is_direct boolean not null default false, about uuid, asker text,
    at timestamptz not null, number bigserial,
    primary key (holder, direction, message_id, sender));
create index if not exists handoff_message_flow on handoff_message (flow);
create index if not exists handoff_message_about on handoff_message (holder, about, asker) where about is not null;
create table if not exists handoff_outbox (
    holder text not null, number bigserial primary key, message_id uuid not null, queue text not null, body bytea not null,
    priority integer not null, expires timestamptz, failures integer not null default 0, due timestamptz);
create table if not exists handoff_event (
    number bigserial primary key, holder text not null, message_id text not null, at timestamptz not null, event text not null,
    detail bytea not null);
create table if not exists handoff_state (
    holder text not null, key text not null, value bytea not null, primary key (holder, key));
create table if not exists handoff_begun (
    queue text not null, digest bytea not null, times integer not null, primary key (queue, digest));
create table if not exists handoff_dead (
    number bigserial primary key, queue text not null, message_id text not null, sender text not null, reason text not null,
    body bytea not null, at timestamptz not null);
create index if not exists handoff_dead_queue on handoff_dead (queue);
"""
_INSTALL = 0x6861_6E64_6F66
"""The advisory lock of making the tables: two processes that do it at once would fail."""
_BATCH = 16
"""Messages that leave the outbox in one transaction."""
_LONGEST_DELAY = 30
"""Seconds that a message of the outbox waits at most after the broker did not take it. The others go on meanwhile."""

Publish: TypeAlias = Callable[[str, bytes, int], Awaitable[None]]


class Claim(NamedTuple):
    """A received message. `status`: how its work ended, "" while it has not. `attempts`: how often it failed. `given_back`: how
    often an operator gave it back."""

    status: str
    attempts: int
    given_back: int


class Asked(NamedTuple):
    """A received message, for whose answers its sender may ask. `is_direct`: it came without a queue."""

    sender: str
    status: str
    is_direct: bool
    at: datetime


class Event(NamedTuple):
    """One line of the record of a message."""

    holder: str
    event: str
    detail: str
    at: datetime


class TracedMessage(NamedTuple):
    """A message of a flow, with the agent that sent or received it."""

    holder: str
    direction: str
    message: Message


@dataclass(frozen=True)
class Transaction:
    """An open transaction of an agent. `connection`: the application writes its effects with it."""

    connection: Connection
    holder: str
    seal: Seal | None

    async def keep(
        self, message: Message, queues: Sequence[str], body: bytes, now: datetime, about: tuple[str, str] | None = None
    ) -> bool:
        """Put a message into the outbox: accepted with the end of the transaction. Return False if it was sent before.

        `about`: the id and the sender of the message that it answers. Raises `Conflict` if another message has its id.
        """
        if not await self._insert("sent", self.holder, message, now):
            return False
        if about is not None:
            query = (
                "update handoff_message set about = $3, asker = $4"
                " where holder = $1 and direction = 'sent' and message_id = $2 and sender = $5"
            )
            await self.connection.execute(query, self.holder, id_of(message), *about, sender_of(message))
        for queue in queues:
            sealed = self.sealed(body, f"queue/{queue}")
            await self.enqueue(queue, sealed, id_of(message), priority_of(message).rank, expires_at(message))
        return True

    async def enqueue(
        self, queue: str, sealed: bytes, message_id: str, priority: int = 0, expires: datetime | None = None
    ) -> None:
        """Put bytes that are sealed for a queue into the outbox."""
        await self.connection.execute(
            "insert into handoff_outbox (holder, message_id, queue, body, priority, expires) values ($1, $2, $3, $4, $5, $6)",
            self.holder,
            message_id,
            queue,
            sealed,
            priority,
            expires,
        )

    async def claim(self, queue: str, message: Message, now: datetime, *, is_direct: bool = False) -> Claim:
        """Lock a received message until the transaction ends, so that a repetition waits, and then sees how it ended.

        `is_direct`: its sender waits for the answers, or asks for them, and reads no queue. Raises `Conflict` if another message
        has its id.
        """
        # The sender is part of the key: a stranger cannot take the id of another agent's message.
        if await self._insert("received", queue, message, now) and is_direct:
            await self._update("is_direct = $4", queue, message, True)
        row = await self.connection.fetchrow(
            "select status, attempts, given_back from handoff_message"
            " where holder = $1 and direction = 'received' and message_id = $2 and sender = $3 for update",
            queue,
            id_of(message),
            sender_of(message),
        )
        assert row is not None
        return Claim(*row)

    async def finish(self, queue: str, message: Message, status: str) -> None:
        """Note how the work on a message ended: it has no further effect."""
        await self._update("status = $4", queue, message, status)

    async def fail(self, queue: str, message: Message) -> None:
        """Count a failed attempt."""
        await self._update("attempts = attempts + $4", queue, message, 1)

    async def asked(self, queues: Sequence[str], message_id: str) -> list[Asked]:
        """Return the received messages with this id, the first one first: senders may have used the same id."""
        query = (
            "select sender, status, is_direct, at from handoff_message"
            " where holder = any($1) and direction = 'received' and message_id = $2 order by number"
        )
        return [Asked(*row) for row in await self.connection.fetch(query, list(queues), message_id)]

    async def answers(self, message_id: str, sender: str) -> list[Message]:
        """Return the answers to a message, in their order."""
        query = "select message_id, body from handoff_message where holder = $1 and about = $2 and asker = $3 order by number"
        rows = await self.connection.fetch(query, self.holder, message_id, sender)
        return [json.loads(_opened(self.seal, row)) for row in rows]

    async def sent(self, message_id: str) -> Message | None:
        """Return the message with this id that the agent sent; None if there is none."""
        query = "select message_id, body from handoff_message where holder = $1 and direction = 'sent' and message_id = $2"
        row = await self.connection.fetchrow(query, self.holder, message_id.lower())
        return None if row is None else json.loads(_opened(self.seal, row))

    async def reopen(self, queue: str, message_id: str, sender: str) -> None:
        """Let a message be worked on again, if there is one with this id."""
        await self.connection.execute(
            "update handoff_message set status = '', attempts = 0, given_back = given_back + 1"
            " where holder = $1 and direction = 'received' and message_id::text = $2 and sender = $3",
            queue,
            message_id,
            sender,
        )

    async def note(self, message_id: str, event: str, detail: str, now: datetime) -> None:
        """Write a line of the record."""
        await self.connection.execute(
            "insert into handoff_event (holder, message_id, at, event, detail) values ($1, $2, $3, $4, $5)",
            self.holder,
            message_id,
            now,
            event,
            # Sealed: it may have a text of an error. A text may have characters that PostgreSQL's texts do not have.
            self.sealed(detail[:1000].encode(errors="replace"), f"event/{message_id}"),
        )

    async def state(self, key: str) -> Any:
        """Return the value that the agent kept under a key, locked until the transaction ends; None if nothing."""
        query = "select value from handoff_state where holder = $1 and key = $2 for update"
        value = await self.connection.fetchval(query, self.holder, key)
        if value is None:
            return None
        return json.loads(value if self.seal is None else self.seal.open(value, f"state/{self.holder}/{key}"))

    async def set_state(self, key: str, value: Any) -> None:
        """Keep a JSON value under a key, beyond this message and this process."""
        await self.connection.execute(
            "insert into handoff_state values ($1, $2, $3) on conflict (holder, key) do update set value = excluded.value",
            self.holder,
            key,
            self.sealed(json.dumps(value).encode(), f"state/{self.holder}/{key}"),
        )

    async def _insert(self, direction: str, holder: str, message: Message, now: datetime) -> bool:
        data = encode(message)
        digest = hashlib.sha256(data).digest()
        inserted = await self.connection.fetchval(
            "insert into handoff_message (holder, direction, message_id, sender, digest, body, flow, task, at)"
            " values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict do nothing returning true",
            holder,
            direction,
            id_of(message),
            sender_of(message),
            digest,
            self.sealed(data, f"message/{id_of(message)}"),
            message["metadata"].get("correlation_id"),
            message["metadata"]["task_id"],
            now,
        )
        if inserted:
            return True
        message_id = await self.connection.fetchval(
            "select digest from handoff_message where holder = $1 and direction = $2 and message_id = $3 and sender = $4",
            holder,
            direction,
            id_of(message),
            sender_of(message),
        )
        if message_id != digest:
            raise Conflict(
                HandoffCode.CHANGED, f"Another message has the id {id_of(message)}.", fix="Give each message a new id."
            )
        return False

    async def _update(self, change: str, queue: str, message: Message, value: object) -> None:
        where = "holder = $1 and direction = 'received' and message_id = $2 and sender = $3"
        await self.connection.execute(
            f"update handoff_message set {change} where {where}",  # noqa: S608
            queue,
            id_of(message),
            sender_of(message),
            value,
        )

    def sealed(self, data: bytes, place: str) -> bytes:
        """Return data as they are stored at a place."""
        return data if self.seal is None else self.seal.close(data, place)


class Journal:
    """The database of one agent."""

    def __init__(self, pool: asyncpg.Pool[Any], holder: str, seal: Seal | None) -> None:
        self._pool, self.holder, self.seal = pool, holder, seal

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, holder: str, *, seal: Seal | None = None) -> AsyncIterator[Journal]:
        """Connect to the database at `url`, and make the tables if they are missing. Raises `Unavailable` or `Malformed`.

        `holder`: the agent's id. `seal`: encrypts the stored messages.
        """
        check_url(url)
        with naming_journal():
            pool = await asyncpg.create_pool(url, min_size=0, max_size=8)
        try:
            with naming_journal():
                async with pool.acquire() as connection, connection.transaction():
                    await connection.execute("select pg_advisory_xact_lock($1)", _INSTALL)
                    await connection.execute(_TABLES)
            yield cls(pool, holder, seal)
        finally:
            pool.terminate()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Commit the changes of the block, or none if it raises. Raises `Unavailable` when the database is lost."""
        with naming_journal():
            async with self._pool.acquire() as connection, connection.transaction():
                yield Transaction(connection, self.holder, self.seal)

    async def flush(self, publish: Publish, now: datetime) -> int:
        """Publish messages of the outbox, the most urgent first, and remove them. Return how many left.

        A message is removed after the broker has confirmed it. A crash in between publishes it twice, and its receiver removes
        the repetition. A message that the broker does not take waits for some seconds, while others leave. Raises `Unavailable`.
        """
        lost: TreatyError | None = None
        async with self.transaction() as transaction:
            rows = await transaction.connection.fetch(
                "select * from handoff_outbox where holder = $1 and (due is null or due <= $3)"
                " order by priority desc, number limit $2 for update skip locked",
                self.holder,
                _BATCH,
                now,
            )
            left = []
            for row in rows:
                if row["expires"] is None or row["expires"] > now:
                    try:
                        await publish(row["queue"], bytes(row["body"]), row["priority"])
                    except TreatyError as error:
                        await _delay(transaction, row, now, error)
                        if isinstance(error, Unavailable):
                            # The broker is lost. The messages that it confirmed are removed all the same.
                            lost = error
                            break
                        continue
                    await transaction.note(str(row["message_id"]), "published", row["queue"], now)
                else:
                    await transaction.note(str(row["message_id"]), "expired", row["queue"], now)
                left.append(row["number"])
            await transaction.connection.execute("delete from handoff_outbox where number = any($1)", left)
        if lost is not None:
            raise lost
        return len(left)

    async def waiting(self) -> int:
        """Return how many messages are in the outbox."""
        async with self.transaction() as transaction:
            query = "select count(*) from handoff_outbox where holder = $1"
            return int(await transaction.connection.fetchval(query, self.holder))

    async def events(self, message_id: str) -> list[Event]:
        """Return the record of a message, of all agents of this database."""
        query, place = "select * from handoff_event where message_id = $1 order by number", f"event/{message_id.lower()}"
        async with self.transaction() as transaction:
            rows = await transaction.connection.fetch(query, message_id.lower())
        details = [row["detail"] if self.seal is None else self.seal.open(row["detail"], place) for row in rows]
        return [Event(row["holder"], row["event"], detail.decode(), row["at"]) for row, detail in zip(rows, details, strict=True)]

    async def flow(self, correlation_id: str) -> list[TracedMessage]:
        """Return the messages of a flow in the order in which the agents of this database sent and received them."""
        query = "select holder, direction, message_id, body from handoff_message where flow = $1 order by number"
        async with self.transaction() as transaction:
            rows = await transaction.connection.fetch(query, correlation_id)
        return [TracedMessage(row["holder"], row["direction"], json.loads(_opened(self.seal, row))) for row in rows]

    async def prune(self, before: datetime) -> int:
        """Delete the messages that ended before a time, and the record of all before it. Return the number of messages.

        A repetition of a deleted message has an effect again: keep messages longer than any of them may be on its way.
        """
        ended = "(direction = 'received' and status <> '' or direction = 'sent')"
        unsent = "message_id in (select message_id from handoff_outbox)"
        query = f"delete from handoff_message where at < $1 and {ended} and not {unsent} returning 1"  # noqa: S608
        async with self.transaction() as transaction:
            await transaction.connection.execute("delete from handoff_event where at < $1", before)
            return len(await transaction.connection.fetch(query, before))


def _opened(seal: Seal | None, row: asyncpg.Record) -> bytes:
    body = bytes(row["body"])
    return body if seal is None else seal.open(body, f"message/{row['message_id']}")


async def _delay(transaction: Transaction, row: asyncpg.Record, now: datetime, error: TreatyError) -> None:
    """Let a message of the outbox wait, twice as long each time, so that it does not hold up the others."""
    if not isinstance(error, Unavailable):
        await transaction.note(str(row["message_id"]), "not-published", str(error), now)
    seconds = min(2 ** min(row["failures"], 16), _LONGEST_DELAY)
    query = "update handoff_outbox set failures = failures + 1, due = $2 where number = $1"
    await transaction.connection.execute(query, row["number"], now + timedelta(seconds=seconds))


def check_url(url: str) -> None:
    """Check that a URL is one of PostgreSQL. Raises `Malformed`."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise Malformed(
            HandoffCode.SETTINGS, "The URL of the database is not of PostgreSQL.", fix="Write postgresql://USER@HOST/DATABASE."
        )


@contextmanager
def naming_journal() -> Iterator[None]:
    """Turn the errors of a lost database in the block into `Unavailable`."""
    try:
        yield
    except (OSError, *LOST_DATABASE) as error:
        raise Unavailable(HandoffCode.JOURNAL, f"The journal's database does not answer: {error}.") from error
