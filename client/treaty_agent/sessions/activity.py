"""Count the work of an agent: its sessions, the calls that it makes, and the functions that it runs for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from treaty_sandbox.interface import WorkerMetrics

from ..negotiators.negotiator import ModelSpend
from .operation_errors import OperationError, OutcomeUnknown


@dataclass(frozen=True)
class CallMetrics:
    """Calls of one direction. `under_way`, `waiting`: now; a waiting one was not begun. `outcomes`: since the agent was made, by
    family: `ok`, `4xx`, `5xx` and so on, `other` (a status of the protocol's own), `unknown` (sent and not answered),
    `cancelled`, `error`."""

    under_way: int
    waiting: int
    outcomes: Mapping[str, int]

    @property
    def total(self) -> int:
        """How many are over."""
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class AgentMetrics:
    """What an agent does at one moment. Immutable.

    `sessions_in`, `sessions_out`: sessions that run, opened by others and by this agent. `opening`: sessions that others open
    now; `sessions_waiting`: those that wait for their turn, in both directions. `calls`: made by this agent. `functions`: run for
    others. `threads`: busy ones, of functions without `async`; `threads_waiting`: functions that wait for one.
    `reports_waiting`: reports that are not in a log yet. `protocols`: provided and negotiated ones that other agents find here
    by a URI. `negotiations`: under way that others began. `model`: the spend of the language model; None without negotiators.
    """

    sessions_in: int
    sessions_out: int
    opening: int
    sessions_waiting: int
    calls: CallMetrics
    functions: CallMetrics
    threads: int
    threads_waiting: int
    workers: WorkerMetrics
    reports_waiting: int
    protocols: int = 0
    negotiations: int = 0
    model: ModelSpend | None = None


class CallCounts:
    """Count calls of one direction. For one event loop."""

    def __init__(self) -> None:
        self.under_way = self.waiting = 0
        self._outcomes: Counter[str] = Counter()

    def snapshot(self) -> CallMetrics:
        """Return the present numbers."""
        return CallMetrics(self.under_way, self.waiting, MappingProxyType(dict(self._outcomes)))

    @contextmanager
    def queued(self) -> Iterator[None]:
        """Count a call that waits for its turn, for the block."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a call that is under way, for the block. Its exception is the outcome."""
        outcome = "ok"
        self.under_way += 1
        try:
            yield
        # BaseException: a cancelled call, or an `async for` that was left, is an outcome too.
        except BaseException as error:
            outcome = _outcome(error)
            raise
        finally:
            self.under_way -= 1
            self._outcomes[outcome] += 1


@dataclass(eq=False)
class Activity:
    """The counts of one agent. `sessions`: those with a handler, by whether this agent is the initiator."""

    calls: CallCounts = field(default_factory=CallCounts)
    functions: CallCounts = field(default_factory=CallCounts)
    sessions: Counter[bool] = field(default_factory=Counter)


def _outcome(error: BaseException) -> str:
    if isinstance(error, OperationError):
        return f"{int(error.status) // 100}xx" if 100 <= error.status < 600 else "other"
    if isinstance(error, OutcomeUnknown):
        return "unknown"
    return "error" if isinstance(error, Exception) else "cancelled"
