"""Adapt a running session: watch its calls, and change its parameters, then its protocol, if they fail or are slow.

Each answered call is a sample: its seconds, and whether it succeeded. Over the last `window` samples, once there are `samples`:

    failing    the part of calls that failed is over `failures`
    slow       their mean time is over `latency`

A finding leads to one step, and the samples begin anew. The first `patience` steps change parameters: by default, a slow session
gets twice the responseTimeout and half the chunkSize and maxMessageSize. Then follow the next protocols of the evaluation.
Between two steps `pause` seconds pass. If no step is left, the session continues unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from . import parameters as rules
from .capabilities import ProtocolOffer

Finding: TypeAlias = Literal["slow", "failing"]
Adjust: TypeAlias = Callable[[Finding, Mapping[str, Any]], dict[str, Any]]
"""A function of a finding and the agreed parameters. It returns the parameters to ask for; equal ones mean no change."""

_FACTORS: Mapping[Finding, Mapping[str, float]] = {
    "slow": {"responseTimeout": 2.0, "chunkSize": 0.5, "maxMessageSize": 0.5},
    "failing": {"responseTimeout": 2.0, "chunkSize": 0.5, "maxMessageSize": 0.5},
}


@dataclass(frozen=True)
class Thresholds:
    """The limits of a finding and of its steps; see the module. `latency` and `pause` are seconds, `failures` a part of 1."""

    latency: float = 5.0
    failures: float = 0.25
    samples: int = 10
    window: int = 50
    patience: int = 2
    pause: float = 30.0


@dataclass(frozen=True)
class Change:
    """A change to negotiate: `parameters` of the same protocol, or another `protocol`."""

    finding: Finding
    parameters: dict[str, Any] | None = None
    protocol: str = ""


def adjust(finding: Finding, agreed: Mapping[str, Any]) -> dict[str, Any]:
    """Multiply the known numbers by their factors, the default policy. Integers stay integers of at least 1."""
    changed = dict(agreed)
    for name, factor in _FACTORS[finding].items():
        value = agreed.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            changed[name] = max(int(value * factor), 1) if isinstance(value, int) else value * factor
    return changed


@dataclass
class Adaptation:
    """Watch one session. Not for concurrent use. `now`: seconds of a monotonic clock."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    adjust: Adjust = adjust
    _samples: deque[tuple[float, bool]] = field(default_factory=deque)
    _adjustments: int = 0
    _tried: set[str] = field(default_factory=set)
    _quiet_until: float = 0.0

    def record(self, seconds: float, succeeded: bool) -> None:
        """Record an answered call: its duration, and whether it succeeded."""
        self._samples.append((seconds, succeeded))
        # Only the newest calls count, so that a session that has recovered is left alone.
        while len(self._samples) > self.thresholds.window:
            self._samples.popleft()

    def finding(self) -> Finding | None:
        """Return the finding of the samples, or None."""
        count = len(self._samples)
        # A few calls say little: one slow answer must not change the session.
        if count < self.thresholds.samples:
            return None
        if sum(not succeeded for _, succeeded in self._samples) > self.thresholds.failures * count:
            return "failing"
        if sum(seconds for seconds, _ in self._samples) > self.thresholds.latency * count:
            return "slow"
        return None

    def next_change(self, now: float, offer: ProtocolOffer, agreed: Mapping[str, Any], ranking: Sequence[str]) -> Change | None:
        """Return the next step, or None. `offer`: that of the current protocol. `ranking`: protocol ids, best first."""
        finding = self.finding()
        return None if finding is None else self.step(finding, now, offer, agreed, ranking)

    def step(
        self, finding: Finding, now: float, offer: ProtocolOffer, agreed: Mapping[str, Any], ranking: Sequence[str]
    ) -> Change | None:
        """Return the next step for a finding, of this side or of the peer; None within the pause, and when no step is left. The
        other arguments are those of `next_change`."""
        # The pause bounds how often a peer that reports trouble can cause a negotiation.
        if now < self._quiet_until:
            return None
        # The next finding is about the new terms.
        self._samples.clear()
        self._quiet_until = now + self.thresholds.pause
        # A protocol that was slow once is not chosen again, or two slow ones would alternate without end.
        self._tried.add(offer.id)
        if self._adjustments < self.thresholds.patience:
            self._adjustments += 1
            parameters = _within(offer.parameters, self.adjust(finding, agreed))
            if not rules.json_equal(parameters, dict(agreed)):
                return Change(finding, parameters=parameters)
        following = next((id for id in ranking if id not in self._tried), None)
        if following is None:
            return None
        self._tried.add(following)
        self._adjustments = 0
        return Change(finding, protocol=following)


def _within(own: rules.Rules, values: Mapping[str, Any]) -> dict[str, Any]:
    """Limit the wanted parameters to this side's rules."""
    fitted: dict[str, Any] = {}
    for name, value in values.items():
        try:
            fitted[name] = own[name].clamp(name, value) if name in own else value
        except rules.Unsupported:
            continue
    return fitted
