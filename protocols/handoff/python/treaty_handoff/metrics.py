"""Count the events of messages, and measure how long their work takes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0)
"""Upper bounds of the latency classes, in seconds."""


@dataclass
class HandoffMetrics:
    """`events`: how often each happened, by name and kind. `latencies`: how many messages took how long from their timestamp to
    the end of their work; the last class has no bound."""

    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    latencies: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def count(self, event: str, kind: str) -> None:
        """Count an event of a message."""
        self.events[event, kind] += 1

    def took(self, seconds: float) -> None:
        """Note the latency of a message whose work ended. A clock that is behind gives 0."""
        self.latencies[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += max(seconds, 0.0)

    def total(self, event: str) -> int:
        """Return how often an event happened, for all kinds."""
        return sum(count for (name, _), count in self.events.items() if name == event)

    def exposition(self, backlog: Mapping[str, int], set_aside: Mapping[str, int]) -> str:
        """Return all in the text format of Prometheus. `backlog`, `set_aside`: how many messages of each queue wait, and are set
        aside."""
        lines = ["# TYPE handoff_events_total counter"]
        lines += [
            f'handoff_events_total{{event="{event}",kind="{kind}"}} {n}' for (event, kind), n in sorted(self.events.items())
        ]
        lines.append("# TYPE handoff_backlog gauge")
        lines += [f'handoff_backlog{{queue="{_escaped(queue)}"}} {count}' for queue, count in sorted(backlog.items())]
        lines.append("# TYPE handoff_set_aside gauge")
        lines += [f'handoff_set_aside{{queue="{_escaped(queue)}"}} {count}' for queue, count in sorted(set_aside.items())]
        lines.append("# TYPE handoff_latency_seconds histogram")
        total = 0
        for bound, count in zip((*BOUNDS, "+Inf"), self.latencies, strict=True):
            total += count
            lines.append(f'handoff_latency_seconds_bucket{{le="{bound}"}} {total}')
        return "\n".join([*lines, f"handoff_latency_seconds_sum {self.seconds}", f"handoff_latency_seconds_count {total}", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
