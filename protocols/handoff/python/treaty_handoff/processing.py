"""Process one received message: admit it, let it have its one effect, and handle its failure."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from treaty_agent import Identity, ProvedPeer
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TreatyError, Unauthorized, Unavailable

from .codes import HandoffCode
from .dead_letters import BEGINNINGS, DeadLetters
from .envelopes import Opened, Resolver, envelope, open_envelope
from .journal import LOST_DATABASE, Journal, Transaction
from .messages import Kind, Message, accept, derived_id, id_of, is_expired, kind_of, moment, recipients_of, respond, sender_of
from .permissions import Permissions
from .routes import Routes
from .work import REPORTED, Handling, Outcome, Status, Work, strategy, time_limit

RETRY = 1.0
"""Seconds before the first retry. Each further one waits twice as long, five minutes at most."""
_LONGEST = 300.0
_DETAIL = 4_000
"""Characters of a text in a report."""
_ANSWERS = frozenset((Kind.STATUS_UPDATE, Kind.PROVIDE_INFORMATION))
"""The kinds that answer a message."""


class WorkFailed(Exception):
    """The application's function failed; nothing of its transaction is kept. The cause is the function's error.

    The text is for the record of this agent. `told`: for the sender, who sees texts of this library and the type of other errors.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.told = error.message if isinstance(error, TreatyError) else type(error).__name__


@dataclass(frozen=True)
class Processed:
    """How a message ended. `again`: seconds after which it has to be tried again. `answers`: messages that follow from it."""

    status: Status
    message: Message | None = None
    again: float | None = None
    answers: list[Message] = field(default_factory=list)
    error: TreatyError | None = None


@dataclass
class Processor:
    """The receiving side of an agent. `permissions`: None where the transport admits only agents that may send everything.

    `escalates_to`: the agents and groups to which a message may have its failed work moved.
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
    works: dict[Kind, Work] = field(default_factory=dict)
    fallbacks: dict[str, Work] = field(default_factory=dict)
    observe: Callable[[str, Message], None] = lambda event, message: None
    """Called after the commit, with `completed`, `duplicate`, `retry` and so on."""

    async def process(self, body: bytes, queue: str = "") -> Processed:
        """Process an envelope. Raises `Unavailable` if the journal or the sender's document cannot be read now.

        `queue`: the queue that brought it; "" if it came another way.
        """
        opened = None
        try:
            opened = await open_envelope(body, self.resolver)
            message = self._admitted(opened)
            queue = self._queue_of(message, queue)
        except Unavailable:
            raise
        except TreatyError as error:
            return await self._refuse(opened, error, queue)
        self.observe("received", message)
        if is_expired(message, self.clock()):
            return await self._end(message, queue, Status.EXPIRED, "The message has expired.")
        try:
            return await self._once(message, queue, opened.signer)
        except (Conflict, Refused) as error:
            return await self._refuse(opened, error, queue)
        except WorkFailed as failed:
            return await self._fail(message, queue, opened.signer, failed, body)

    def _admitted(self, opened: Opened) -> Message:
        """Check the form, the sender and the kind. Raises `Malformed`, `Unauthorized` or `Refused`."""
        message = accept(opened.message)
        if self.permissions is not None:
            self.permissions.check(message, opened.signer)
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
        message = self._admitted(await open_envelope(body, self.resolver))
        queue, reason = self._queue_of(message, queue), f"Its work began {BEGINNINGS} times and never ended."
        async with self.journal.transaction() as transaction:
            claim = await transaction.claim(queue, message, self.clock())
            if claim.status:
                return Processed(Status.DUPLICATE, message)
            answers = self._answers(message, Outcome(Status.FAILED, detail=reason), claim.given_back)
            await self._close(transaction, message, queue, Status.FAILED, answers, reason)
            await self._keep_aside(transaction, message, queue, body, reason)
        self.observe("failed", message)
        return Processed(Status.FAILED, message, answers=answers)

    async def _keep_aside(self, transaction: Transaction, message: Message, queue: str, body: bytes, reason: str) -> None:
        sealed = transaction.sealed(body, f"queue/{queue}")
        letters = DeadLetters(self.journal)
        about = {"reason": reason, "message_id": id_of(message), "sender": sender_of(message)}
        await letters.add(transaction, queue, sealed, self.clock(), **about)

    async def send(self, transaction: Transaction, message: Message) -> bool:
        """Put a message into the outbox. Return False if it was sent before.

        Raises `Unauthorized` if another agent is its sender, `TooLarge`, and `Conflict` if another message has its id.
        """
        if sender_of(message) != self.name:
            raise Unauthorized(
                HandoffCode.PROOF,
                f"The message is of the sender {sender_of(message)}, and this agent is {self.name}.",
                fix="Build it with the name of this agent as its sender.",
            )
        now = self.clock()
        stored = await transaction.keep(message, self.routes.queues(message), envelope(message, self.identity), now)
        if stored:
            await transaction.note(id_of(message), "sent", kind_of(message), now)
        return stored

    async def _once(self, message: Message, queue: str, signer: ProvedPeer | None) -> Processed:
        async with self.journal.transaction() as transaction:
            claim = await transaction.claim(queue, message, self.clock())
            if claim.status:
                await transaction.note(id_of(message), "duplicate", claim.status, self.clock())
                result = Processed(Status.DUPLICATE, message)
            else:
                await self._check_answer(transaction, message)
                following: list[Message] = []
                handling = self._handling(transaction, message, queue, signer, following)
                outcome, answers = await self._work(handling, claim.given_back)
                await self._close(transaction, message, queue, outcome.status, answers, outcome.detail)
                result = Processed(outcome.status, message, answers=[*following, *answers])
        self.observe(result.status.lower(), message)
        return result

    async def _check_answer(self, transaction: Transaction, message: Message) -> None:
        """Check that an answer to a message of this agent is of one of its recipients. Raises `Refused`."""
        about = message["payload"]["data"].get("in_reply_to")
        if self.permissions is None or about is None or kind_of(message) not in _ANSWERS:
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
            error = NotFound(HandoffCode.UNHANDLED, f"{self.name} has no function for {kind_of(message)}.")
            rejected = Outcome(Status.REJECTED, detail=error.message)
            return rejected, self._answers(message, rejected, given_back)
        try:
            async with asyncio.timeout(time_limit(message)):
                outcome = await work(handling) or Outcome()
            if kind_of(message) is not Kind.STATUS_UPDATE:
                outcome.check(message)
            answers = self._answers(message, outcome, given_back)
            for answer in answers:
                # A result that is too large for a message is a failure of the work.
                envelope(answer, self.identity)
        except LOST_DATABASE:
            # No failure of the work: the message comes again, and no attempt is counted.
            raise
        except Exception as error:
            raise WorkFailed(error) from error
        return outcome, answers

    async def _fail(self, message: Message, queue: str, signer: ProvedPeer | None, failed: WorkFailed, body: bytes) -> Processed:
        """Try again later; or escalate; or fall back; or set the message aside and report the failure."""
        plan, now = strategy(message), self.clock()
        async with self.journal.transaction() as transaction:
            claim = await transaction.claim(queue, message, now)
            if claim.status:
                return Processed(Status.DUPLICATE, message)
            if claim.attempts < plan.get("retry_count", 0):
                await transaction.fail(queue, message)
                await transaction.note(id_of(message), "retry", str(failed), now)
                result = Processed(Status.FAILED, message, again=min(self.retry_after * 2**claim.attempts, _LONGEST))
            else:
                status, answers = await self._after_failure(transaction, message, queue, signer)
                reports = self._answers(message, Outcome(status, detail=failed.told), claim.given_back)
                await self._close(transaction, message, queue, status, reports, str(failed))
                if status is Status.FAILED:
                    # Without a key for it, the reason has no text of the application.
                    await self._keep_aside(transaction, message, queue, body, failed.told)
                result = Processed(status, message, answers=[*answers, *reports])
        self.observe("retry" if result.again is not None else result.status.lower(), message)
        return result

    async def _after_failure(
        self, transaction: Transaction, message: Message, queue: str, signer: ProvedPeer | None
    ) -> tuple[Status, list[Message]]:
        plan, target = strategy(message), strategy(message).get("escalate_to")
        answers: list[Message] = []
        # Only to whom the owner allows: this agent signs it. Handing it to those who have just failed would go in a circle.
        if target in self.escalates_to and target not in (queue, self.name):
            answers.append(self._escalated(message, target))
            with suppress(Conflict):  # escalated before it was given back
                await self.send(transaction, answers[0])
            return Status.ESCALATED, answers
        if target is not None:
            await transaction.note(id_of(message), "not-escalated", target, self.clock())
        fallback = self.fallbacks.get(plan.get("fallback_action", ""))
        if fallback is None:
            return Status.FAILED, []
        try:
            async with transaction.connection.transaction():
                await fallback(self._handling(transaction, message, queue, signer, answers))
        except LOST_DATABASE:
            raise
        except Exception as error:
            await transaction.note(id_of(message), "fallback-failed", str(WorkFailed(error)), self.clock())
            return Status.FAILED, []
        return Status.FELL_BACK, answers

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

    async def _end(self, message: Message, queue: str, status: Status, detail: str) -> Processed:
        """End a message without an effect."""
        async with self.journal.transaction() as transaction:
            claim = await transaction.claim(queue, message, self.clock())
            answers = [] if claim.status else self._answers(message, Outcome(status, detail=detail), claim.given_back)
            if not claim.status:
                await self._close(transaction, message, queue, status, answers, detail)
        self.observe(status.lower(), message)
        return Processed(status, message, answers=answers)

    async def _close(
        self, transaction: Transaction, message: Message, queue: str, status: Status, answers: list[Message], detail: str
    ) -> None:
        await transaction.finish(queue, message, status)
        await transaction.note(id_of(message), status.lower(), detail, self.clock())
        for answer in answers:
            # The id of a report follows from the message. One that exists was sent, at another time.
            with suppress(Conflict):
                await self.send(transaction, answer)

    async def _refuse(self, opened: Opened | None, error: TreatyError, queue: str) -> Processed:
        """Record an invalid message, and report it to its sender if that is proved. Any other could make this agent write to
        others, or fill the journal over HTTP."""
        message = opened.message if opened is not None and self._is_proved(opened) else {}
        answers: list[Message] = []
        # The form may be wrong in any place: then it has no report.
        with suppress(ValueError, KeyError, TypeError, AttributeError, Malformed):
            about: Any = {"metadata": message["metadata"]}
            if message["payload"]["handoff_type"] != Kind.STATUS_UPDATE:  # type: ignore[index]
                answers = [self._report(about, Status.REJECTED, "", [error.message])]
        if message or queue:
            name = answers[0]["payload"]["data"]["in_reply_to"].lower() if answers else ""
            async with self.journal.transaction() as transaction:
                await transaction.note(name, "refused", f"{error.code}: {error.message}", self.clock())
                for answer in answers:
                    # A repetition of the invalid message: its report was sent, at another time.
                    with suppress(Conflict):
                        await self.send(transaction, answer)
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
        kind = kind_of(message)
        if kind not in REPORTED:
            return []
        again = f"/{given_back}" if given_back else ""
        if kind is Kind.REQUEST_INFORMATION and outcome.status is Status.COMPLETED:
            missing = [key for key in message["payload"]["data"]["requested_info_keys"] if key not in outcome.information]
            data: dict[str, object] = {"information": dict(outcome.information), "missing_keys": missing}
            return [self._respond(message, Kind.PROVIDE_INFORMATION, data, "INFORMATION_PROVIDED", f"answer{again}")]
        more: dict[str, Any] = {
            "actions_done": list(outcome.done),
            "criteria_met": outcome.criteria_met,
            "result": dict(outcome.result),
        }
        return [self._report(message, outcome.status, outcome.detail, [], key=f"{outcome.status}{again}", **more)]

    def _report(
        self, about: Message, status: Status, detail: str, faults: list[str], *, key: str = "", **more: object
    ) -> Message:
        # Cut, so that a report can be built whatever the text of an error is.
        data = {"status": str(status), "detail": detail[:_DETAIL], "issues": [fault[:_DETAIL] for fault in faults], **more}
        return self._respond(
            about, Kind.STATUS_UPDATE, {n: v for n, v in data.items() if v not in ("", [], {}, None)}, status, key
        )

    def _respond(self, about: Message, kind: Kind, data: dict[str, object], state: str, key: str) -> Message:
        return respond(about, kind, data, sender=self.name, state=state, now=self.clock(), key=key or f"{state}")

    def _handling(
        self, transaction: Transaction, message: Message, queue: str, signer: ProvedPeer | None, answers: list[Message]
    ) -> Handling:
        async def send(following: Message) -> str:
            # In the transaction of the effect: it leaves only if the work succeeds.
            await self.send(transaction, following)
            answers.append(following)
            return id_of(following)

        async def report(status: Status, detail: str, progress: int | None) -> None:
            # In a transaction of its own: the sender learns it while the work goes on.
            key = f"{status}/{progress}/{detail}"
            update = self._report(message, status, detail, [], key=key, **({} if progress is None else {"progress": progress}))
            # A further attempt that reports the same has told it already.
            with suppress(Conflict):
                async with self.journal.transaction() as separate:
                    await self.send(separate, update)

        return Handling(message, queue, signer, transaction, send, report)
