"""Process one received message: admit it, let it have its one effect, and handle its failure."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from treaty_client import Identity
from treaty_consensus.errors import Conflict, NotFound, Refused, TreatyError, Unavailable
from treaty_handler import decode_json

from .codes import HandoffCode
from .dead_letters import BEGINNINGS, DeadLetters
from .envelopes import Resolver, envelope, open_envelope
from .journal import LOST_DATABASE, Journal, Transaction
from .messages import Kind, Message, derived_id, id_of, is_expired, kind_of, moment, recipients_of, respond
from .permissions import Permissions
from .routes import Routes
from .work import REPORTED, Handling, Outcome, Status, Work, strategy, time_limit

RETRY = 1.0
"""Seconds before the first retry. Each further one waits twice as long, five minutes at most."""
_LONGEST = 300.0


class WorkFailed(Exception):
    """The application's function failed; nothing of its transaction is kept. The cause is the function's error."""


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
    """The receiving side of an agent. `permissions`: None where the transport admits only agents that may send everything."""

    name: str
    journal: Journal
    routes: Routes
    clock: Callable[[], datetime]
    identity: Identity | None
    resolver: Resolver
    permissions: Permissions | None
    retry_after: float = RETRY
    works: dict[Kind, Work] = field(default_factory=dict)
    fallbacks: dict[str, Work] = field(default_factory=dict)
    observe: Callable[[str, Message], None] = lambda event, message: None
    """Called after the commit, with `completed`, `duplicate`, `retry` and so on."""

    async def process(self, body: bytes, queue: str, recipients: frozenset[str] | None = None) -> Processed:
        """Process an envelope. Raises `Unavailable` if the journal or the sender's document cannot be read now.

        `recipients`: the message must name one of them; None where a queue has brought it to its recipient.
        """
        try:
            opened = await open_envelope(body, self.resolver)
            if self.permissions is not None:
                self.permissions.check(opened.message, opened.signer)
            if recipients is not None and recipients.isdisjoint(recipients_of(opened.message)):
                raise Refused(HandoffCode.RECIPIENT, "The message is for another agent.")
        except Unavailable:
            raise
        except TreatyError as error:
            return await self._refuse(body, error)
        message = opened.message
        self.observe("received", message)
        if is_expired(message, self.clock()):
            return await self._end(message, queue, Status.EXPIRED, "The message has expired.")
        try:
            return await self._once(message, queue, opened.signer)
        except Conflict as error:
            return await self._refuse(body, error)
        except WorkFailed as failed:
            return await self._fail(message, queue, opened.signer, failed, body)

    async def set_aside(self, body: bytes, queue: str) -> Processed:
        """Set aside a message that ended its receivers, and report it to its sender if that is proved.

        Raises `Unavailable`, and `Conflict` if another message has the id.
        """
        opened, reason = await open_envelope(body, self.resolver), f"Its work began {BEGINNINGS} times and never ended."
        if self.permissions is not None:
            self.permissions.check(opened.message, opened.signer)
        message = opened.message
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
        await letters.add(transaction, queue, sealed, self.clock(), reason=reason, message_id=id_of(message))

    async def send(self, transaction: Transaction, message: Message) -> bool:
        """Put a message into the outbox. Return False if it was sent before."""
        now = self.clock()
        kept = await transaction.keep(message, self.routes.queues(message), envelope(message, self.identity), now)
        if kept:
            await transaction.note(id_of(message), "sent", kind_of(message), now)
        return kept

    async def _once(self, message: Message, queue: str, signer: str | None) -> Processed:
        async with self.journal.transaction() as transaction:
            claim = await transaction.claim(queue, message, self.clock())
            if claim.status:
                await transaction.note(id_of(message), "duplicate", claim.status, self.clock())
                result = Processed(Status.DUPLICATE, message)
            else:
                answers: list[Message] = []
                outcome = await self._work(self._handling(transaction, message, queue, signer, answers))
                answers += self._answers(message, outcome, claim.given_back)
                await self._close(transaction, message, queue, outcome.status, answers, outcome.detail)
                result = Processed(outcome.status, message, answers=answers)
        self.observe(result.status.lower(), message)
        return result

    async def _work(self, handling: Handling) -> Outcome:
        """Call the function of the kind, within the time limit. Raises `WorkFailed`."""
        message = handling.message
        work = self.works.get(kind_of(message))
        if work is None:
            # Feedback and answers that no function takes are kept in the journal; other kinds want an effect.
            if kind_of(message) not in REPORTED:
                return Outcome()
            error = NotFound(HandoffCode.UNHANDLED, f"{self.name} has no function for {kind_of(message)}.")
            return Outcome(Status.REJECTED, detail=error.message)
        try:
            async with asyncio.timeout(time_limit(message)):
                outcome = await work(handling) or Outcome()
            if kind_of(message) is not Kind.STATUS_UPDATE:
                outcome.check(message)
        except LOST_DATABASE:
            # No failure of the work: the message comes again, and no attempt is counted.
            raise
        except Exception as error:
            raise WorkFailed(str(error) or type(error).__name__) from error
        return outcome

    async def _fail(self, message: Message, queue: str, signer: str | None, failed: WorkFailed, body: bytes) -> Processed:
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
                answers += self._answers(message, Outcome(status, detail=str(failed)), claim.given_back)
                await self._close(transaction, message, queue, status, answers, str(failed))
                if status is Status.FAILED:
                    await self._keep_aside(transaction, message, queue, body, str(failed))
                result = Processed(status, message, answers=answers)
        self.observe("retry" if result.again is not None else result.status.lower(), message)
        return result

    async def _after_failure(
        self, transaction: Transaction, message: Message, queue: str, signer: str | None
    ) -> tuple[Status, list[Message]]:
        plan, target = strategy(message), strategy(message).get("escalate_to")
        # Handing it to those who have just failed would go in a circle.
        if target is not None and target not in (queue, self.name):
            return Status.ESCALATED, [self._escalated(message, target)]
        fallback = self.fallbacks.get(plan.get("fallback_action", ""))
        if fallback is None:
            return Status.FAILED, []
        answers: list[Message] = []
        try:
            async with transaction.connection.transaction():
                await fallback(self._handling(transaction, message, queue, signer, answers))
        except TreatyError as error:
            await transaction.note(id_of(message), "fallback-failed", error.message, self.clock())
            return Status.FAILED, []
        return Status.FELL_BACK, answers

    def _escalated(self, message: Message, target: str) -> Message:
        """Return the message for the next agent: same task and flow, with what happened added to its history."""
        following = copy.deepcopy(message)
        now = moment(self.clock())
        following["metadata"] |= {
            "message_id": derived_id(id_of(message), f"escalated/{target}"),
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
            await self.send(transaction, answer)

    async def _refuse(self, body: bytes, error: TreatyError) -> Processed:
        """Record an invalid message, and report it to its sender if it says who that is and is permitted to be answered."""
        try:
            found = decode_json(body)["handoff"]
            about = {"metadata": found["metadata"], "payload": {"handoff_type": found["payload"]["handoff_type"]}}
            answers = [self._report(about, Status.REJECTED, "", [error.message])]
            # An unproved sender is not answered: anybody could make this agent write to others.
            if about["payload"]["handoff_type"] == Kind.STATUS_UPDATE or error.code == HandoffCode.PROOF:
                answers = []
        except (ValueError, KeyError, TypeError, TreatyError):
            found, answers = {}, []
        name = str(found.get("metadata", {}).get("message_id", "")) if answers else ""
        async with self.journal.transaction() as transaction:
            await transaction.note(name.lower()[:64], "refused", f"{error.code}: {error.message}", self.clock())
            # A repetition of the invalid message: its report has been sent, with another time.
            with suppress(Conflict):
                for answer in answers:
                    await self.send(transaction, answer)
        self.observe("refused", {})
        return Processed(Status.REJECTED, answers=answers, error=error)

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
        data = {"status": str(status), "detail": detail, "issues": faults, **more}
        return self._respond(
            about, Kind.STATUS_UPDATE, {n: v for n, v in data.items() if v not in ("", [], {}, None)}, status, key
        )

    def _respond(self, about: Message, kind: Kind, data: dict[str, object], state: str, key: str) -> Message:
        return respond(about, kind, data, sender=self.name, state=state, now=self.clock(), key=key or f"{state}")

    def _handling(
        self, transaction: Transaction, message: Message, queue: str, signer: str | None, answers: list[Message]
    ) -> Handling:
        async def send(following: Message) -> str:
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
