"""Score the common protocols by a formula that both sides can recompute (the strategy engine).

    Score = 0.30 CapabilityMatch + 0.30 TaskAlignment + 0.20 PerformanceMatch + 0.15 PreferenceScore + 0.05 ContextualFit

docs/specification/flow-profile.md, section 3, defines the five sub-scores. Each is an exact fraction from 0 to 1. The score is
rounded once, halves to even, to a ten-thousandth; that number is compared and written. A tie goes to the id that sorts first. For
example, without required capabilities, two sides with {query} and {query, stream} have the CapabilityMatch 1/2. A protocol
without a required capability is no match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from .capabilities import FlowRequest, PeerCapabilities
from .payloads import UNIT, ContextInfo, EvaluationMetrics, Matched, ProtocolEvaluation, Supported, ratio, share

WEIGHTS: Mapping[str, int] = {"capability": 30, "task": 30, "performance": 20, "preference": 15, "context": 5}
"""The weights of the sub-scores, in hundredths."""

_HALF, _ZERO, _ONE = Fraction(1, 2), Fraction(0), Fraction(1)
_LEVELS = {"low": _ZERO, "medium": _HALF, "high": _ONE}
_NEEDS: Mapping[str, tuple[str, Mapping[str, Fraction]]] = {
    "dataVolume": ("throughput", {"large": _ONE, "medium": _HALF, "small": _ZERO}),
    "timeConstraint": ("latency", {"strict": _ONE, "normal": _HALF, "relaxed": _ZERO}),
    "securityLevel": ("security", {"high": _ONE, "standard": _HALF, "basic": _ZERO}),
}
_PREFERENCES: Mapping[str, str] = {
    "efficiency": "throughput",
    "speed": "latency",
    "security": "security",
    "reliability": "reliability",
    "accuracy": "reliability",
    "completeness": "reliability",
}


@dataclass(frozen=True)
class Evaluation:
    """The scores of a common protocol, in ten-thousandths. `uri` and `digest`: this side's protocol for the id, if known."""

    id: str
    score: int
    capabilities: tuple[str, ...]
    task: int
    performance: int
    context: int
    rationale: str = ""
    uri: str = ""
    digest: str = ""

    def matched(self) -> Matched:
        """Return the entry for the peer's message."""
        return Matched(
            id=self.id,
            compatibility_score=share(self.score),
            capabilities=self.capabilities,
            suitability_for_task=share(self.task),
            rationale=self.rationale,
        )


class StrategyEngine:
    """The default strategy: the formula of the module. Override a method in a subclass to replace it, and give an object of the
    subclass to `FlowSettings.strategy`. An object serves all connections of an agent, so it must not change."""

    def evaluate(
        self, own: Supported, theirs: Supported, goal: FlowRequest, here: ContextInfo, there: PeerCapabilities
    ) -> Evaluation | None:
        """Score one common protocol. Return None if a required capability is missing."""
        ours, others = set(own.capabilities or ()), set(theirs.capabilities or ())
        shared = ours & others
        if not set(goal.required) <= shared:
            return None
        have = {
            metric: min(_level(own, metric), _level(theirs, metric))
            for metric in ("latency", "throughput", "reliability", "security")
        }
        parts = {
            "capability": Fraction(len(shared), len(ours | others)) if (ours | others) and not goal.required else _ONE,
            "task": _task(goal.requirements, have),
            "performance": _mean([have["latency"], have["throughput"], have["reliability"]]),
            "preference": Fraction(ratio(own.preference_score) + ratio(theirs.preference_score), 2 * UNIT),
            "context": _context(here, there.context, have),
        }
        score = sum((parts[name] * weight for name, weight in WEIGHTS.items()), _ZERO) / 100
        return Evaluation(
            id=own.id,
            score=_round(score),
            capabilities=tuple(sorted(shared)),
            task=_round(parts["task"]),
            performance=_round(parts["performance"]),
            context=_round(parts["context"]),
            rationale=", ".join(f"{name} {share(_round(part)):g}" for name, part in parts.items()),
        )

    def rank(self, evaluations: Iterable[Evaluation]) -> list[Evaluation]:
        """Sort evaluations, best first. An evaluation that is left out is not proposed."""
        # The id decides a tie, so that both sides compute the same order.
        return sorted(evaluations, key=lambda evaluation: (-evaluation.score, evaluation.id))


def announce(ranked: Sequence[Evaluation]) -> ProtocolEvaluation:
    """Return the evaluation as a message."""
    best = ranked[0] if ranked else None
    metrics = None
    if best is not None:
        metrics = EvaluationMetrics(
            task_alignment=share(best.task), performance_estimate=share(best.performance), resource_efficiency=share(best.context)
        )
    return ProtocolEvaluation(matched_protocols=tuple(evaluation.matched() for evaluation in ranked), evaluation_metrics=metrics)


def _level(supported: Supported, metric: str) -> Fraction:
    stated = getattr(supported.metrics, metric) if supported.metrics else None
    # An unknown metric must neither win nor lose against a known one.
    level = _LEVELS[stated] if stated else _HALF
    return 1 - level if metric == "latency" else level


def _task(requirements: Mapping[str, str], have: Mapping[str, Fraction]) -> Fraction:
    scores = [
        (levels[value], have[metric])
        for name, (metric, levels) in _NEEDS.items()
        if (value := requirements.get(name, "")) in levels
    ]
    return _mean([1 - max(_ZERO, need - had) for need, had in scores]) if scores else _ONE


def _context(here: ContextInfo, there: ContextInfo, have: Mapping[str, Fraction]) -> Fraction:
    resources = min(_LEVELS[side.resource_availability] if side.resource_availability else _HALF for side in (here, there))
    stable = all(side.connection_type in (None, "stable") for side in (here, there))
    scores = [have[_PREFERENCES[name]] for side in (here, there) for name in side.preferences if name in _PREFERENCES]
    return _mean([resources, _ONE if stable else have["reliability"], _mean(scores) if scores else _HALF])


def _mean(values: Sequence[Fraction]) -> Fraction:
    # Fractions, because floats round differently in other languages, and both sides must find the same order.
    return sum(values, _ZERO) / len(values)


def _round(value: Fraction) -> int:
    return round(value * UNIT)
