"""Queues of RabbitMQ, by aio-pika: durable classic queues with priorities, persistent messages, publisher confirms."""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from treaty_consensus.errors import Refused, Unavailable
from treaty_io.extras import naming_extras

from .broker import Delivery
from .codes import HandoffCode
from .messages import Priority

with naming_extras("handoff"):
    import aio_pika
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
    from aiormq.exceptions import AMQPError, ChannelAccessRefused, ChannelLockedResource, ChannelPreconditionFailed
    from pamqp.common import FieldTable

_CONNECT = 10.0
"""Seconds to wait for a connection, and for the confirmation of a message."""
_REFUSALS = (ChannelAccessRefused, ChannelLockedResource, ChannelPreconditionFailed)
"""The errors of one queue: another client owns it, or made it in another form."""


class RabbitBroker:
    """A RabbitMQ server. A lost connection is made anew at the next use."""

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        self._url, self._tls = url, tls
        self._connection: AbstractConnection | None = None
        self._publishing: AbstractChannel | None = None
        # Of two tasks that find no connection, one makes it.
        self._lock = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[RabbitBroker]:
        """Use the server at `url` (`amqp://…`, or `amqps://…` with `tls`). It need not run yet."""
        broker = cls(url, tls)
        try:
            yield broker
        finally:
            await broker.close()

    async def _connected(self) -> AbstractConnection:
        async with self._lock:
            # `is_closed` says only whether this side closed it.
            if self._connection is None or not self._connection.connected.is_set():
                self._publishing = None
                self._connection = await aio_pika.connect(self._url, ssl_context=self._tls, timeout=_CONNECT)
            return self._connection

    async def _publisher(self) -> AbstractChannel:
        connection = await self._connected()
        if self._publishing is None or self._publishing.is_closed:
            self._publishing = await connection.channel(publisher_confirms=True, on_return_raises=True)
        return self._publishing

    async def publish(self, queue: str, body: bytes, priority: int) -> None:
        """See `Broker`."""
        with naming_rabbit():
            channel = await self._publisher()
            declared = await _declare(channel, queue)
            message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, priority=priority)
            # Mandatory, so that a queue which vanished is an error and no loss. Returns when the server has it on disk.
            await channel.default_exchange.publish(message, routing_key=declared.name, mandatory=True, timeout=_CONNECT)

    async def deliveries(self, queue: str) -> AsyncGenerator[Delivery, None]:
        """See `Broker`."""
        with naming_rabbit():
            channel = await (await self._connected()).channel(publisher_confirms=True, on_return_raises=True)
            try:
                # One at a time: messages that a consumer holds already are not overtaken by urgent ones.
                await channel.set_qos(prefetch_count=1)
                declared = await _declare(channel, queue)
                async with declared.iterator() as iterator:
                    async for message in iterator:
                        yield _Received(channel, declared.name, message)
                raise Unavailable(HandoffCode.BROKER, "The broker ended the connection.")
            finally:
                if not channel.is_closed:
                    await channel.close()

    async def backlog(self, queue: str) -> int:
        """See `Broker`."""
        with naming_rabbit():
            declared = await _declare(await self._publisher(), queue)
            return declared.declaration_result.message_count or 0

    async def close(self) -> None:
        """See `Broker`."""
        if self._connection is not None and not self._connection.is_closed:
            await self._connection.close()


@dataclass
class _Received:
    channel: AbstractChannel
    queue: str
    message: AbstractIncomingMessage

    @property
    def body(self) -> bytes:
        """The message."""
        return self.message.body

    async def confirm(self) -> None:
        """See `Delivery`."""
        with naming_rabbit():
            await self.message.ack()

    async def return_later(self, seconds: float) -> None:
        """See `Delivery`. The message waits in a second queue, from which the server moves it back."""
        with naming_rabbit():
            later = f"{self.queue}.later"
            back: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.queue}
            await self.channel.declare_queue(later, durable=True, arguments=back)
            copy = aio_pika.Message(
                self.body,
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                priority=self.message.priority,
                expiration=seconds,
            )
            await self.channel.default_exchange.publish(copy, routing_key=later, mandatory=True, timeout=_CONNECT)
            # After the copy is safe. A crash in between leaves the message twice, and the receiver removes repetitions.
            await self.message.ack()


def queue_name(queue: str) -> str:
    """Return the name in RabbitMQ of an agent's or group's queue.

    RabbitMQ admits 255 bytes and reserves some names, and the names of agents come from other agents. The digest makes the name
    unique, and the readable part is for the operator.
    """
    return f"treaty.{re.sub('[^A-Za-z0-9_-]', '_', queue)[:64]}.{hashlib.sha256(queue.encode()).hexdigest()[:32]}"


async def _declare(channel: AbstractChannel, queue: str) -> AbstractQueue:
    return await channel.declare_queue(queue_name(queue), durable=True, arguments={"x-max-priority": Priority.CRITICAL.rank})


@contextmanager
def naming_rabbit() -> Iterator[None]:
    """Turn the errors of a lost server in the block into `Unavailable`, and its refusals into `Refused`."""
    try:
        yield
    except _REFUSALS as error:
        raise Refused(HandoffCode.SETTINGS, f"The broker refuses the queue: {error or type(error).__name__}.") from error
    except (OSError, AMQPError, aio_pika.exceptions.AMQPException, TimeoutError, RuntimeError) as error:
        raise Unavailable(HandoffCode.BROKER, f"The broker does not answer: {error or type(error).__name__}.") from error
