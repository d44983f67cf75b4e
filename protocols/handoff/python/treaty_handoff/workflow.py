"""Orchestration: one agent, the coordinator, leads a task through steps that other agents do.

Without a coordinator, agents react to each other's messages: `routes.subscription` (choreography).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from .agent import HandoffAgent
from .journal import Transaction
from .messages import Kind, Message, build, derived_id, id_of, in_reply_to
from .work import Handling, Outcome, Status

_ENDED = frozenset((Status.COMPLETED, Status.FAILED, Status.FELL_BACK, Status.EXPIRED, Status.REJECTED))


@dataclass(frozen=True)
class Step:
    """One step: the agent or group that does it, its objective, and its instructions."""

    recipient: str
    objective: str
    instructions: dict[str, object] | None = None


class Coordinator:
    """Sends each step when the one before is completed. Its position is in the journal, so it survives a crash."""

    def __init__(
        self, agent: HandoffAgent, steps: Sequence[Step], *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Take the STATUS_UPDATEs of `agent`."""
        self._agent, self._steps, self._clock = agent, tuple(steps), clock
        agent.handles(Kind.STATUS_UPDATE)(self._updated)

    async def start(self, task: str, inputs: dict[str, object]) -> str:
        """Begin the first step of a task. Return the id of its message."""
        return await self._agent.send(self._step(task, 0, inputs, flow=task))

    async def position(self, transaction: Transaction, task: str) -> str:
        """Return `STEP NUMBER/STATUS` of a task: its last ended step; "" before the first."""
        return await transaction.state(f"workflow/{task}") or ""

    async def _updated(self, handling: Handling) -> Outcome:
        metadata, status = handling.message["metadata"], handling.data.get("status", "")
        task = metadata["task_id"]
        number = next((n for n in range(len(self._steps)) if self._id(task, n) == in_reply_to(handling.message)), None)
        # Ids of steps can be computed: a report counts for a step that was sent. Its sender was checked on arrival.
        if number is None or status not in _ENDED or await handling.transaction.sent(self._id(task, number)) is None:
            return Outcome()
        await handling.transaction.set_state(f"workflow/{task}", f"{number}/{status}")
        if status == Status.COMPLETED and number + 1 < len(self._steps):
            inputs = handling.data.get("result", {})
            await handling.send(self._step(task, number + 1, inputs, flow=metadata.get("correlation_id", task)))
        return Outcome()

    def _step(self, task: str, number: int, inputs: dict[str, object], flow: str) -> Message:
        step = self._steps[number]
        message = build(
            Kind.TASK_TRANSFER,
            {"objective": step.objective, "sub_tasks": [], "inputs": inputs},
            sender=self._agent.name,
            recipient=step.recipient,
            task=task,
            state=f"STEP_{number}",
            now=self._clock(),
            flow=flow,
            instructions=step.instructions,
            message_id=self._id(task, number),
        )
        assert id_of(message) == self._id(task, number)
        return message

    def _id(self, task: str, number: int) -> str:
        """The id follows from task and step, so that a step is never done twice."""
        return derived_id("6ba7b812-9dad-11d1-80b4-00c04fd430c8", f"{self._agent.name}/{task}/{number}")
