"""The port to a broker: durable queues that others run. `postgres_broker` and `rabbitmq_broker` implement it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol


class Delivery(Protocol):
    """A message that a broker gives out. It comes again, to this consumer or another one, until it is confirmed."""

    @property
    def body(self) -> bytes:
        """Return the message as it was published."""

    async def confirm(self) -> None:
        """Remove the message from its queue. Raises `Unavailable`; then it comes again."""

    async def return_later(self, seconds: float) -> None:
        """Give the message back. It comes again after this time. Raises `Unavailable`; then it comes again, maybe sooner."""


class Broker(Protocol):
    """Durable queues with priorities. A message arrives at least once: the receiver removes repetitions."""

    async def publish(self, queue: str, body: bytes, priority: int) -> None:
        """Put a message into a queue, which is made if there is none. When this returns, the message survives a crash of the
        broker. Raises `Unavailable`; then the message may be in the queue or not. Raises `Refused` if the broker does not
        take messages for this queue."""

    def deliveries(self, queue: str) -> AsyncGenerator[Delivery, None]:
        """Give out the messages of a queue, the most urgent first, the next one when the last was confirmed or returned. Raises
        `Unavailable` when the broker is lost."""

    async def backlog(self, queue: str) -> int:
        """Return how many messages wait in a queue. Raises `Unavailable`."""

    async def close(self) -> None:
        """End the connections. Messages that were not confirmed come again."""
