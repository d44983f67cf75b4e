"""Process one received message: admit it, let it have its one effect, and handle its failure."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from treaty_agent import Identity, ProvedPeer
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TreatyError, Unauthorized, Unavailable

from .codes import HandoffCode
from .data_forms import DataForms
from .dead_letters import BEGINNINGS, DeadLetters
from .envelopes import Opened, Resolver, asking_signer, envelope, open_envelope
from .handler.messages import accepted, is_unknown
from .handler.rules import ANSWERS, REPORTED, after_failure, answer, pause, strategy, time_limit, unhandled
from .journal import LOST_DATABASE, Asked, Journal, Transaction
from .messages import (
    MAX_MESSAGE,
    Kind,
    Message,
    accept,
    derived_id,
    id_of,
    in_reply_to,
    is_expired,
    kind_of,
    moment,
    recipients_of,
    respond,
    sender_of,
)
from .permissions import Permissions
from .routes import Routes
from .work import Handling, Outcome, Status, Work

RETRY = 1.0
"""Seconds before the first retry. Each further one waits twice as long, five minutes at most."""
ANSWERS_KEPT = timedelta(days=1)
"""For so long an agent gives the answers to a message again that came without a queue."""
_DETAIL = 4_000
"""Characters of a text in a report."""


class WorkFailed(Exception):
    """The application's function failed; nothing of its transaction is kept. The cause is the function's error.

    The text is for the record of this agent. `told`: for the sender, who sees texts of this library and the type of other errors.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.told = error.message if isinstance(error, TreatyError) else type(error).__name__


@dataclass(frozen=True)
class Processed:
    """How a message ended. `again`: seconds after which it has to be tried again. `answers`: to its sender, if it came without a
    queue. `first`: of a repetition, how the message ended before, by its newest report."""

    status: Status
    message: Message | None = None
    again: float | None = None
    answers: list[Message] = field(default_factory=list)
    error: TreatyError | None = None
    first: Status | None = None


@dataclass(frozen=True)
class Received:
    """A message that was admitted. `is_direct`: it came without a queue, and its sender waits for the answers."""

    message: Message
    queue: str
    signer: ProvedPeer | None
    is_direct: bool


@dataclass
class Processor:
    """The receiving side of an agent. `permissions`: None where the transport admits only agents that may send everything.

    `escalates_to`: the agents and groups to which a message may have its failed work moved. `limit`: bytes of a message.
    """

    name: str
    queues: tuple[str, ...]
    journal: Journal
    routes: Routes
    clock: Callable[[], datetime]
    identity: Identity | None
    resolver: Resolver
    permissions: Permissions | None
    escalates_to: frozenset[str] = frozenset()
    retry_after: float = RETRY
    forms: DataForms = field(default_factory=lambda: DataForms({}))
    limit: int = MAX_MESSAGE
    answers_kept: timedelta = ANSWERS_KEPT
    works: dict[str, Work] = field(default_factory=dict)
    fallbacks: dict[str, Work] = field(default_factory=dict)
    observe: Callable[[str, Message], None] = lambda event, message: None
    """Called after the commit, with `completed`, `duplicate`, `retry` and so on."""

    async def process(self, body: bytes, queue: str = "") -> Processed:
        """Process an envelope. Raises `Unavailable` if the journal or the sender's document cannot be read now.

        `queue`: the queue that brought it; "" if it came another way.
        """
        opened, is_direct = None, not queue
        try:
            opened = await open_envelope(body, self.resolver, self.limit)
            message = self._admitted(opened)
            queue = self._queue_of(message, queue)
        except Unavailable:
            raise
        except TreatyError as error:
            return await self._refuse(opened, error, is_direct)
        self.observe("received", message)
        received = Received(message, queue, opened.signer, is_direct)
        if is_expired(message, self.clock()):
            return await self._end(received, Status.EXPIRED, "The message has expired.")
        try:
            return await self._once(received)
        except (Conflict, Refused) as error:
            return await self._refuse(opened, error, is_direct)
        except WorkFailed as failed:
            return await self._fail(received, failed, body)

    async def asked(self, message_id: str, proof: str) -> Processed | None:
        """Return how a message ended, with its answers; None if the asking agent sent none, or while its work goes on.

        `proof`: of `asking_proof`; "" without one. Raises `Unauthorized` or `Unavailable`.
        """
        signer = await asking_signer(message_id, proof, self.resolver) if proof else None
        async with self.journal.transaction() as transaction:
            for request in await transaction.asked(self.queues, message_id):
                is_proved = self.permissions is None or self.permissions.grant(request.sender, signer) is not None
                if is_proved and request.status:
                    return await self._ended(transaction, message_id, request)
        return None

    async def _ended(self, transaction: Transaction, message_id: str, request: Asked) -> Processed:
        """Return how a message ended: by its newest report, which may be later than the end of its work."""
        is_kept = request.at + self.answers_kept > self.clock()
        answers = await transaction.answers(message_id, request.sender) if is_kept else []
        statuses = [status for entry in answers if (status := entry["payload"]["data"].get("status"))]
        return Processed(Status.DUPLICATE, answers=answers, first=Status((statuses or [request.status])[-1]))

    async def _repeated(self, transaction: Transaction, received: Received) -> Processed:
        """Return the answers to a repetition, if its sender waits for them: those of a queue have been sent."""
        message = received.message
        if not received.is_direct:
            return Processed(Status.DUPLICATE, message)
        rows = await transaction.asked([received.queue], id_of(message))
        ended = await self._ended(transaction, id_of(message), next(row for row in rows if row.sender == sender_of(message)))
        return replace(ended, message=message)

    def _admitted(self, opened: Opened) -> Message:
        """Check the form, the sender and the kind. Raises `Malformed`, `Unauthorized`, `Refused` or `NotFound`."""
        message = accept(opened.message)
        if self.permissions is not None:
            self.permissions.check(message, opened.signer)
        if is_unknown(message):
            raise NotFound(HandoffCode.UNHANDLED, unhandled(message))
        self.forms.check(message)
        return message

    def _queue_of(self, message: Message, queue: str) -> str:
        """Return the queue of this agent that a message is for. Raises `Refused` if there is none.

        A copy of a message to another agent, with its good signature, has no effect here, in whichever queue it comes.
        """
        addressed = {*recipients_of(message), *self.routes.queues(message)}
        own_queue = next((mine for mine in ((queue,) if queue else self.queues) if mine in addressed), None)
        if own_queue is None:
            raise Refused(
                HandoffCode.PERMISSION,
                "The message is for another agent.",
                fix="Give the routes by which it comes to the receiving agent, too.",
            )
        return own_queue

    async def set_aside(self, body: bytes, queue: str) -> Processed:
        """Set aside a message that ended its receivers, and report it to its sender if that is proved.

        Raises `Unavailable`; and other errors if the message would be refused.
        """
        message = self._admitted(await open_envelope(body, self.resolver, self.limit))
        queue, reason = self._queue_of(message, queue), f"Its work began {BEGINNINGS} times and never ended."
        async with self.journal.transaction() as transaction:
            claim = await transaction.claim(queue, message, self.clock())
            if claim.status:
                return Processed(Status.DUPLICATE, message)
            answers = self._answers(message, Outcome(Status.FAILED, detail=reason), claim.given_back)
            await self._close(transaction, message, queue, Status.FAILED, answers, reason)
            await self._keep_aside(transaction, message, queue, body, reason)
        self.observe("failed", message)
        return Processed(Status.FAILED, message)

    async def _keep_aside(self, transaction: Transaction, message: Message, queue: str, body: bytes, reason: str) -> None:
        sealed = transaction.sealed(body, f"queue/{queue}")
        letters = DeadLetters(self.journal, self.limit)
        about = {"reason": reason, "message_id": id_of(message), "sender": sender_of(message)}
        await letters.add(transaction, queue, sealed, self.clock(), **about)

    async def send(self, transaction: Transaction, message: Message, direct: Message | None = None) -> bool:
        """Put a message into the outbox. Return False if it was sent before.

        `direct`: the message that it follows from, if that came without a queue. Its sender asks for the answers and reads no
        queue, so they are kept, and not queued. Raises `Unauthorized` if another agent is its sender, `TooLarge`, and `Conflict`
        if another message has its id.
        """
        if sender_of(message) != self.name:
            raise Unauthorized(
                HandoffCode.PROOF,
                f"The message is of the sender {sender_of(message)}, and this agent is {self.name}.",
                fix="Build it with the name of this agent as its sender.",
            )
        now, recipients, about = self.clock(), recipients_of(message), None
        is_direct = direct is not None and recipients == (sender_of(direct),)
        if direct is not None and is_direct:
            about = id_of(direct), sender_of(direct)
        elif kind_of(message) in ANSWERS and in_reply_to(message):
            about = in_reply_to(message), recipients[0]
            rows = await transaction.asked(self.queues, in_reply_to(message))
            is_direct = any(row.is_direct and row.sender == recipients[0] for row in rows)
        queues = [queue for queue in self.routes.queues(message) if not (is_direct and queue in recipients)]
        stored = await transaction.keep(message, queues, envelope(message, self.identity, self.limit), now, about)
        if stored:
            await transaction.note(id_of(message), "sent", kind_of(message), now)
        return stored

    async def _once(self, received: Received) -> Processed:
        message, queue = received.message, received.queue
        async with self.journal.transaction() as transaction:
            claim = await transaction.claim(queue, message, self.clock(), is_direct=received.is_direct)
            if claim.status:
                await transaction.note(id_of(message), "duplicate", claim.status, self.clock())
                result = await self._repeated(transaction, received)
            else:
                await self._check_answer(transaction, message)
                outcome, answers = await self._work(self._handling(transaction, received), claim.given_back)
                await self._close(transaction, message, queue, outcome.status, answers, outcome.detail)
                result = await self._processed(transaction, received, outcome.status)
        self.observe(result.status.lower(), message)
        return result

    async def _processed(self, transaction: Transaction, received: Received, status: Status) -> Processed:
        message = received.message
        answers = await transaction.answers(id_of(message), sender_of(message)) if received.is_direct else []
        return Processed(status, message, answers=answers)

    async def _check_answer(self, transaction: Transaction, message: Message) -> None:
        """Check that an answer to a message of this agent is of one of its recipients. Raises `Refused`."""
        if self.permissions is None or kind_of(message) not in ANSWERS or not (about := in_reply_to(message)):
            return
        request = await transaction.sent(about)
        if request is None:
            return
        addressed = {*recipients_of(request), *self.routes.queues(request)}
        if not self.permissions.may_answer(sender_of(message), addressed):
            raise Refused(
                HandoffCode.PERMISSION,
                f"{sender_of(message)} is no recipient of the message that it answers.",
                fix="Name the groups for which a sender answers in its grant.",
            )

    async def _work(self, handling: Handling, given_back: int) -> tuple[Outcome, list[Message]]:
        """Call the function of the kind, within the time limit, and build the answers. Raises `WorkFailed`."""
        message = handling.message
        work = self.works.get(kind_of(message))
        if work is None:
            # Feedback and answers that no function takes are kept in the journal; other kinds want an effect.
            if kind_of(message) not in REPORTED:
                return Outcome(), []
            rejected = Outcome(Status.REJECTED, detail=unhandled(message))
            return rejected, self._answers(message, rejected, given_back)
        try:
            async with asyncio.timeout(time_limit(message)):
                outcome = await work(handling) or Outcome()
            outcome.check(message)
            answers = self._answers(message, outcome, given_back)
            for reply in answers:
                # A result that is too large for a message is a failure of the work.
                envelope(reply, self.identity, self.limit)
        except LOST_DATABASE:
            # No failure of the work: the message comes again, and no attempt is counted.
            raise
        except Exception as error:
            raise WorkFailed(error) from error
        return outcome, answers

    async def _fail(self, received: Received, failed: WorkFailed, body: bytes) -> Processed:
        """Try again later; or escalate; or fall back; or set the message aside and report the failure."""
        message, queue, now = received.message, received.queue, self.clock()
        async with self.journal.transaction() as transaction:
            claim = await transaction.claim(queue, message, now, is_direct=received.is_direct)
            if claim.status:
                return await self._repeated(transaction, received)
            if after_failure(message, "handOff", claim.attempts) == "handOff":
                await transaction.fail(queue, message)
                await transaction.note(id_of(message), "retry", str(failed), now)
                result = Processed(Status.FAILED, message, again=pause(claim.attempts, self.retry_after))
            else:
                status = await self._after_failure(transaction, received, claim.attempts)
                reports = self._answers(message, Outcome(status, detail=failed.told), claim.given_back)
                await self._close(transaction, message, queue, status, reports, str(failed))
                if status is Status.FAILED:
                    # Without a key for it, the reason has no text of the application.
                    await self._keep_aside(transaction, message, queue, body, failed.told)
                result = await self._processed(transaction, received, status)
        self.observe("retry" if result.again is not None else result.status.lower(), message)
        return result

    async def _after_failure(self, transaction: Transaction, received: Received, attempts: int) -> Status:
        """Escalate or fall back, as the message says and the owner allows."""
        message, plan = received.message, strategy(received.message)
        step = after_failure(message, "handOff", attempts)
        if step == "escalate":
            target = plan["escalate_to"]
            # Only to whom the owner allows: this agent signs it. Handing it to those who have just failed would go in a circle.
            if target in self.escalates_to and target not in (received.queue, self.name):
                with suppress(Conflict):  # escalated before it was given back
                    await self.send(transaction, self._escalated(message, target))
                return Status.ESCALATED
            await transaction.note(id_of(message), "not-escalated", target, self.clock())
            step = after_failure(message, step, attempts)
        fallback = self.fallbacks.get(plan["fallback_action"]) if step == "fallBack" else None
        if fallback is None:
            return Status.FAILED
        try:
            async with transaction.connection.transaction():
                await fallback(self._handling(transaction, received))
        except LOST_DATABASE:
            raise
        except Exception as error:
            await transaction.note(id_of(message), "fallback-failed", str(WorkFailed(error)), self.clock())
            return Status.FAILED
        return Status.FELL_BACK

    def _escalated(self, message: Message, target: str) -> Message:
        """Return the message for the next agent: same task and flow, with what happened added to its history."""
        following = copy.deepcopy(message)
        now = moment(self.clock())
        following["metadata"] |= {
            "message_id": derived_id(id_of(message), f"escalated/{sender_of(message)}/{target}"),
            "timestamp": now,
            "sender_id": self.name,
            "recipient_id": target,
        }
        following["context"]["previous_actions"].append(
            {"action_type": "ESCALATED", "details": f"{self.name} could not do it.", "timestamp": now}
        )
        return following

    async def _end(self, received: Received, status: Status, detail: str) -> Processed:
        """End a message without an effect."""
        message, queue = received.message, received.queue
        async with self.journal.transaction() as transaction:
            claim = await transaction.claim(queue, message, self.clock(), is_direct=received.is_direct)
            if claim.status:
                return await self._repeated(transaction, received)
            answers = self._answers(message, Outcome(status, detail=detail), claim.given_back)
            await self._close(transaction, message, queue, status, answers, detail)
            result = await self._processed(transaction, received, status)
        self.observe(status.lower(), message)
        return result

    async def _close(
        self, transaction: Transaction, message: Message, queue: str, status: Status, answers: list[Message], detail: str
    ) -> None:
        await transaction.finish(queue, message, status)
        await transaction.note(id_of(message), status.lower(), detail, self.clock())
        for reply in answers:
            # The id of a report follows from the message. One that exists was sent, at another time.
            with suppress(Conflict):
                await self.send(transaction, reply)

    async def _refuse(self, opened: Opened | None, error: TreatyError, is_direct: bool) -> Processed:
        """Record an invalid message, and report it to its sender if that is proved. Any other could make this agent write to
        others, or fill the journal over HTTP."""
        message = accepted(opened.message) if opened is not None and self._is_proved(opened) else {}
        answers: list[Message] = []
        # The form may be wrong in any place: then it has no report.
        with suppress(ValueError, KeyError, TypeError, AttributeError, Malformed):
            if kind_of(message) != Kind.STATUS_UPDATE:
                answers = [self._report(message, Status.REJECTED, "", [error.message])]
        if message or not is_direct:
            name = in_reply_to(answers[0]) if answers else ""
            async with self.journal.transaction() as transaction:
                await transaction.note(name, "refused", f"{error.code}: {error.message}", self.clock())
                for reply in [] if is_direct else answers:
                    # A repetition of the invalid message: its report was sent, at another time.
                    with suppress(Conflict):
                        await self.send(transaction, reply)
        self.observe("refused", {})
        return Processed(Status.REJECTED, answers=answers, error=error)

    def _is_proved(self, opened: Opened) -> bool:
        """Whether the signature, or else the transport, proves who sent a message of any form."""
        if self.permissions is None:
            return True
        metadata = opened.message.get("metadata")
        return isinstance(metadata, dict) and self.permissions.grant(metadata.get("sender_id"), opened.signer) is not None

    def _answers(self, message: Message, outcome: Outcome, given_back: int) -> list[Message]:
        """Return the answer to a request, or the report on work. After a message was given back it is a further one."""
        content = answer(message, {**outcome.value(), "detail": outcome.detail[:_DETAIL]})
        if content is None:
            return []
        key = content.state if content.kind == Kind.STATUS_UPDATE else "answer"
        return [self._respond(message, content.kind, content.data, content.state, f"{key}/{given_back}" if given_back else key)]

    def _report(
        self, about: Message, status: Status, detail: str, faults: list[str], *, key: str = "", **more: object
    ) -> Message:
        # Cut, so that a report can be built whatever the text of an error is.
        data = {"status": str(status), "detail": detail[:_DETAIL], "issues": [fault[:_DETAIL] for fault in faults], **more}
        return self._respond(
            about, Kind.STATUS_UPDATE, {n: v for n, v in data.items() if v not in ("", [], {}, None)}, status, key
        )

    def _respond(self, about: Message, kind: str, data: dict[str, object], state: str, key: str) -> Message:
        return respond(about, Kind(kind), data, sender=self.name, state=state, now=self.clock(), key=key or f"{state}")

    def _handling(self, transaction: Transaction, received: Received) -> Handling:
        message, direct = received.message, received.message if received.is_direct else None

        async def send(following: Message) -> str:
            # In the transaction of the effect: it leaves only if the work succeeds.
            await self.send(transaction, following, direct)
            return id_of(following)

        async def report(status: Status, detail: str, progress: int | None) -> None:
            # In a transaction of its own: the sender learns it while the work goes on.
            key = f"{status}/{progress}/{detail}"
            update = self._report(message, status, detail, [], key=key, **({} if progress is None else {"progress": progress}))
            # A further attempt that reports the same has told it already.
            with suppress(Conflict):
                async with self.journal.transaction() as separate:
                    await self.send(separate, update, direct)

        return Handling(message, received.queue, received.signer, transaction, send, report)
