"""An agent that hands work off durably, and takes work from others.

async with Journal.open(url, "support") as journal, PostgresBroker.open(url) as broker:
    agent = HandoffAgent("support", journal, broker, groups=["support-pool"])

    @agent.handles(Kind.ESCALATION)
    async def solve(handling: Handling) -> Outcome: ...

    async with agent.running():
        await agent.send(message)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from treaty_agent import Identity
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_io.line_limit import limited_logger

from .broker import Broker, Delivery
from .codes import HandoffCode
from .data_forms import DataForms
from .dead_letters import BEGINNINGS, DeadLetters
from .envelopes import DID_KEYS, Resolver
from .handler.rules import ANSWERS
from .journal import Journal
from .messages import MAX_MESSAGE, Kind, Message, check, id_of, in_reply_to, is_expired, kind_of
from .metrics import HandoffMetrics
from .permissions import Permissions
from .processing import ANSWERS_KEPT, RETRY, Processed, Processor
from .redaction import redacted
from .routes import Routes
from .work import Status, Work

_log = limited_logger(__name__)
_LOOK = 1.0
"""Seconds between two looks into the outbox: another process may have died after it put a message there."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds to wait for a lost broker or database. The pause doubles, so that a server that starts is not flooded."""


class HandoffAgent:
    """One agent, in one process. Several processes may run the same agent, or be members of the same group."""

    def __init__(
        self,
        name: str,
        journal: Journal,
        broker: Broker,
        *,
        groups: Sequence[str] = (),
        routes: Routes | None = None,
        identity: Identity | None = None,
        permissions: Permissions | None = None,
        resolver: Resolver | None = None,
        escalates_to: Collection[str] = (),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        retry_after: float = RETRY,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        max_message: int = MAX_MESSAGE,
        answers_kept: timedelta = ANSWERS_KEPT,
    ) -> None:
        """`name`: its `sender_id`, and the name of its queue. `groups`: the queues that it shares with other agents.

        `routes`: where its messages go, and which messages to others it takes: all agents of a deployment have the same.

        `identity`: signs its messages; None where the transport proves the sender. `permissions`: who may send what; None admits
        all. `resolver`: finds the documents of DIDs; without it only did:key, which needs none, is verified.
        `escalates_to`: the agents and groups that a sender may name in `escalate_to`. `retry_after`: seconds before the first
        retry of failed work. `schemas`: for a kind, the form of `data` that its owner demands beside the protocol's.
        `max_message`: bytes of a message, which bound its summaries and histories. `answers_kept`: how long answers to messages
        that came without a queue are given again.
        """
        self.max_message = max_message
        self.name, self.queues, self.metrics = name, (name, *groups), HandoffMetrics()
        self._journal, self._broker, self._clock = journal, broker, clock
        self.dead_letters = DeadLetters(journal, max_message)
        self._processor = Processor(
            name,
            self.queues,
            journal,
            routes or Routes(),
            clock,
            identity,
            resolver or DID_KEYS,
            permissions,
            frozenset(escalates_to),
            retry_after,
            DataForms(schemas or {}),
            max_message,
            answers_kept,
            observe=self._observed,
        )
        self._answers: dict[str, asyncio.Future[Message]] = {}
        self._sent = asyncio.Event()

    def handles(self, *kinds: Kind) -> Callable[[Work], Work]:
        """Register the function for messages of these kinds."""

        def register(work: Work) -> Work:
            self._processor.works |= dict.fromkeys(kinds, work)
            return work

        return register

    def falls_back(self, action: str) -> Callable[[Work], Work]:
        """Register the function of a `fallback_action`."""

        def register(work: Work) -> Work:
            self._processor.fallbacks[action] = work
            return work

        return register

    async def send(self, message: Message) -> str:
        """Accept a message for delivery, and return its id. Sending the same message again changes nothing.

        When this returns, the message survives the end of this process. Raises `Malformed`, `Refused`, `Unauthorized` if another
        agent is its sender, `Conflict` or `Unavailable`; then it is not accepted.
        """
        check(message)
        if is_expired(message, self._clock()):
            raise Refused(HandoffCode.EXPIRED, "The message has expired already.")
        async with self._journal.transaction() as transaction:
            is_new = await self._processor.send(transaction, message)
        if is_new:
            self._observed("sent", message)
        self._sent.set()
        return id_of(message)

    async def ask(self, message: Message, seconds: float) -> Message:
        """Send a request, and return the answer: the first message with its id in `in_reply_to` that is no progress report.

        Raises the errors of `send`, and `Unavailable` if the answer is late. It may still come, as any other message.
        """
        future = self._answers.setdefault(id_of(message), asyncio.get_running_loop().create_future())
        try:
            await self.send(message)
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError as error:
            raise Unavailable(HandoffCode.SILENCE, f"No answer came in {seconds} seconds.") from error
        finally:
            self._answers.pop(id_of(message), None)

    async def receive(self, body: bytes, *, queue: str = "") -> Processed:
        """Process an envelope that came by another way than the broker. Raises `Unavailable`."""
        processed = await self._processor.process(body, queue)
        self._sent.set()
        self._wake(processed)
        return processed

    async def asked(self, message_id: str, proof: str = "") -> Processed | None:
        """Return how a message that came without a queue ended. None if there is none of this agent, or while its work goes on.

        `proof`: of `envelopes.asking_proof`, where senders have permissions. Raises `Unauthorized` or `Unavailable`.
        """
        return await self._processor.asked(message_id, proof)

    async def backlog(self) -> dict[str, int]:
        """Return how many messages wait in each queue of this agent, and in its outbox. Raises `Unavailable`."""
        waiting = {queue: await self._broker.backlog(queue) for queue in self.queues}
        return {**waiting, "outbox": await self._journal.waiting()}

    async def set_aside(self) -> dict[str, int]:
        """Return how many messages of each queue of this agent are set aside. Raises `Unavailable`."""
        return {queue: await self.dead_letters.count(queue) for queue in self.queues}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Deliver and receive until the block ends. The loss of the broker or the database is waited out."""
        loops = [self._flush_outbox(), *(self._consume(queue) for queue in self.queues)]
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _flush_outbox(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            self._sent.clear()
            try:
                while await self._journal.flush(self._broker.publish, self._clock()):
                    pause = _FIRST_PAUSE
            except Unavailable as error:
                _log.warning("outbox of %s waits: %s", self.name, error)
                pause = await _rest(pause)
                continue
            except Exception:
                # An error that is not foreseen must not end the delivery while the process lives.
                _log.exception("outbox of %s waits", self.name)
                pause = await _rest(pause)
                continue
            # Not `wait_for`: Python 3.11's loses a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._sent.wait()

    async def _consume(self, queue: str) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                async with aclosing(self._broker.deliveries(queue)) as deliveries:
                    async for delivery in deliveries:
                        await self._deliver(delivery, queue)
                        pause = _FIRST_PAUSE
            except Unavailable as error:
                _log.warning("queue %s waits: %s", queue, error)
                pause = await _rest(pause)
            except Exception:
                # As above. The message that caused it comes again.
                _log.exception("queue %s waits", queue)
                pause = await _rest(pause)

    async def _deliver(self, delivery: Delivery, queue: str) -> None:
        """Process a delivery, then confirm it: a crash in between brings it again, and its record removes the repetition."""
        # Counted before it is opened: what ends this process must not come for ever.
        times = await self.dead_letters.begin(queue, delivery.body)
        try:
            again = await self._processed(delivery.body, queue, times)
        except (Unavailable, asyncio.CancelledError) as error:
            # A key that cannot be fetched now, and an orderly end, are no fault of the message. A lost database may be.
            if not isinstance(error, Unavailable) or error.code != HandoffCode.JOURNAL:
                with suppress(Unavailable):
                    await self.dead_letters.undo(queue, delivery.body)
            if isinstance(error, Unavailable):
                await delivery.return_later(_FIRST_PAUSE)
            raise
        await self.dead_letters.end(queue, delivery.body)
        if again is not None:
            await delivery.return_later(again)
        else:
            await delivery.confirm()

    async def _processed(self, sealed: bytes, queue: str, times: int) -> float | None:
        """Process a sealed message. Return the seconds after which it has to come again."""
        try:
            # The attempt after the last one may not even be opened: opening it may be what ends the process.
            if times > BEGINNINGS + 1:
                raise Refused(HandoffCode.INCOMPLETE, f"Its work began {times - 1} times and never ended.")
            seal = self._journal.seal
            body = sealed if seal is None else seal.open(sealed, f"queue/{queue}")
            if times > BEGINNINGS:
                return (await self._processor.set_aside(body, queue)).again
        except Unavailable:
            raise
        except TreatyError as error:
            # The key is lost, or another client of the broker wrote it. The operator may give it back with the key.
            _log.error("queue %s: %s", queue, error)
            async with self._journal.transaction() as transaction:
                await self.dead_letters.add(transaction, queue, sealed, self._clock(), reason=error.message)
            self.metrics.count("refused", "")
            return None
        # Errors of this end no attempt: the message comes again, and is set aside in the end.
        return (await self.receive(body, queue=queue)).again

    def _wake(self, processed: Processed) -> None:
        """Give an answer to the call that waits for it."""
        message = processed.message
        # A repetition and an expired message have no effect, and this is one.
        if processed.status in (Status.EXPIRED, Status.DUPLICATE):
            return
        if message is None or kind_of(message) not in ANSWERS or message["payload"]["data"].get("status") == "IN_PROGRESS":
            return
        future = self._answers.get(in_reply_to(message))
        if future is not None and not future.done():
            future.set_result(message)

    def _observed(self, event: str, message: Message) -> None:
        kind = kind_of(message) if message else ""
        self.metrics.count(event, kind)
        if not message:
            _log.warning("%s %s a message", self.name, event)
            return
        metadata = message["metadata"]
        if event not in ("sent", "received", "retry"):
            self.metrics.took((self._clock() - datetime.fromisoformat(metadata["timestamp"])).total_seconds())
        flow = metadata.get("correlation_id", "")
        _log.info("%s %s %s %s flow=%s task=%s", self.name, event, kind, id_of(message), flow, metadata["task_id"])
        _log.debug("%s", redacted(message))


async def _rest(pause: float) -> float:
    # A driver may answer a cancellation with an error of its own. A loop that waited it out would never end.
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    await asyncio.sleep(pause)
    return min(2 * pause, _LONGEST_PAUSE)
