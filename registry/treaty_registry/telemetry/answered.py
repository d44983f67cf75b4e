"""Count the requests that are answered and those under way, for `/metrics`.

prometheus_client takes a lock for each change and three changes for a request, which was a fifth of an answer from memory. So
requests are counted in plain numbers, and become metrics only when somebody asks for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class _Tally:
    """The requests of one group, method and status. `within`: how many took at most each bound, and longer than the one before;
    the last is of those above all bounds. `seconds`: of all of them."""

    __slots__ = ("seconds", "within")

    def __init__(self, bounds: int) -> None:
        self.within, self.seconds = [0] * (bounds + 1), 0.0


class AnsweredRequests(Collector):
    """The requests that this process has answered. `count` belongs to one thread, the event loop's; any thread may `collect`."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Count nothing yet. `bounds`: of the histogram, in seconds, ascending."""
        self.under_way = 0
        """The requests that are being answered, of all applications of this process."""
        self._bounds = bounds
        self._labels = (*map(str, map(float, bounds)), "+Inf")
        # One entry for each combination that was seen, which is bounded by the labels.
        self._tallies: dict[tuple[str, str, int], _Tally] = {}

    def count(self, group: str, method: str, status: int, seconds: float) -> None:
        """Count an answer. All labels must have a bounded set of values."""
        tally = self._tallies.get((group, method, status))
        if tally is None:
            tally = self._tallies[group, method, status] = _Tally(len(self._bounds))
        tally.within[bisect_left(self._bounds, seconds)] += 1
        tally.seconds += seconds

    def describe(self) -> list[Metric]:
        """Return the metrics without samples."""
        return [self._counter(), self._histogram(), self._gauge()]

    def collect(self) -> Iterator[Metric]:
        """Yield a counter by group, method and status, and a histogram by group, and the gauge of those under way."""
        tallies = sorted(self._tallies.copy().items())
        counter, histogram = self._counter(), self._histogram()
        groups: dict[str, _Tally] = {}
        for (group, method, status), tally in tallies:
            within = tally.within.copy()
            counter.add_metric([group, method, str(status)], sum(within))
            whole = groups.setdefault(group, _Tally(len(self._bounds)))
            whole.within = [one + other for one, other in zip(whole.within, within, strict=True)]
            whole.seconds += tally.seconds
        for group, whole in groups.items():
            buckets = list(zip(self._labels, accumulate(whole.within), strict=True))
            histogram.add_metric([group], buckets, whole.seconds)
        yield counter
        yield histogram
        yield self._gauge(self.under_way)

    @staticmethod
    def _counter() -> CounterMetricFamily:
        return CounterMetricFamily("treaty_http_requests", "Answered requests.", labels=["group", "method", "status"])

    @staticmethod
    def _histogram() -> HistogramMetricFamily:
        text = "Seconds from the head of a request to the last byte of its answer."
        return HistogramMetricFamily("treaty_http_request_seconds", text, labels=["group"])

    @staticmethod
    def _gauge(number: int | None = None) -> GaugeMetricFamily:
        return GaugeMetricFamily("treaty_http_requests_in_flight", "Requests that are being answered.", number)
