"""Dynamic adaptation: watch how a session does, and change it when it does badly; its parameters first, then its protocol.

Each answered call is a sample: its seconds, and whether it succeeded. Over the last `window` samples, once there are `samples`:

    failing    the part of calls that failed is over `failures`
    slow       their mean time is over `latency`

A finding leads to one step, and the samples begin anew: up to `patience` times to other parameters (by default responseTimeout
twice as long when slow, chunkSize and maxMessageSize half as large), then to the next protocol of the evaluation. Between two
steps
`pause` seconds pass. When nothing is left to try the session goes on as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from . import parameters as rules
from .registry import Offer

Finding: TypeAlias = Literal["slow", "failing"]
Adjust: TypeAlias = Callable[[Finding, Mapping[str, Any]], dict[str, Any]]
"""A finding and the agreed parameters to what to ask for; the same for nothing."""

_FACTORS: Mapping[Finding, Mapping[str, float]] = {
    "slow": {"responseTimeout": 2.0, "chunkSize": 0.5, "maxMessageSize": 0.5},
    "failing": {"responseTimeout": 2.0, "chunkSize": 0.5, "maxMessageSize": 0.5},
}


@dataclass(frozen=True)
class Thresholds:
    """When a session does badly, and how hard to try; see the module. Seconds and parts of 1."""

    latency: float = 5.0
    failures: float = 0.25
    samples: int = 10
    window: int = 50
    patience: int = 2
    pause: float = 30.0


@dataclass(frozen=True)
class Change:
    """What to renegotiate: `parameters` of the same protocol, or another `protocol`."""

    finding: Finding
    parameters: dict[str, Any] | None = None
    protocol: str = ""


def adjust(finding: Finding, agreed: Mapping[str, Any]) -> dict[str, Any]:
    """The default: move the known numbers by their factor; whole numbers stay whole, and at least 1."""
    changed = dict(agreed)
    for name, factor in _FACTORS[finding].items():
        value = agreed.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            changed[name] = max(int(value * factor), 1) if isinstance(value, int) else value * factor
    return changed


@dataclass
class Adaptation:
    """Of one session. Not for concurrent use; `now` in seconds of any clock that never jumps."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    adjust: Adjust = adjust
    _samples: deque[tuple[float, bool]] = field(default_factory=deque)
    _adjustments: int = 0
    _tried: set[str] = field(default_factory=set)
    _quiet_until: float = 0.0

    def record(self, seconds: float, succeeded: bool) -> None:
        """A call was answered."""
        self._samples.append((seconds, succeeded))
        while len(self._samples) > self.thresholds.window:
            self._samples.popleft()

    def finding(self) -> Finding | None:
        """What is wrong, if the samples tell."""
        count = len(self._samples)
        if count < self.thresholds.samples:
            return None
        if sum(not succeeded for _, succeeded in self._samples) > self.thresholds.failures * count:
            return "failing"
        if sum(seconds for seconds, _ in self._samples) > self.thresholds.latency * count:
            return "slow"
        return None

    def next_change(self, now: float, offer: Offer, agreed: Mapping[str, Any], ranking: Sequence[str]) -> Change | None:
        """The step to take now. `offer`: of the protocol that is spoken; `ranking`: ids, the best first."""
        finding = self.finding()
        if finding is None or now < self._quiet_until:
            return None
        self._samples.clear()
        self._quiet_until = now + self.thresholds.pause
        self._tried.add(offer.id)
        if self._adjustments < self.thresholds.patience:
            self._adjustments += 1
            wanted = _within(offer.parameters, self.adjust(finding, agreed))
            if not rules.same(wanted, dict(agreed)):
                return Change(finding, parameters=wanted)
        following = next((id for id in ranking if id not in self._tried), None)
        if following is None:
            return None
        self._tried.add(following)
        self._adjustments = 0
        return Change(finding, protocol=following)


def _within(own: rules.Rules, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What is wanted, as far as this side's rules go."""
    fitted: dict[str, Any] = {}
    for name, value in wanted.items():
        try:
            fitted[name] = own[name].fit(name, value) if name in own else value
        except rules.Unsupported:
            continue
    return fitted
