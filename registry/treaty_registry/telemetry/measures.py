"""The counters and histograms of this process, in the form of Prometheus. `observation` adds the gauges.

Every label has a bounded set of values that this program chooses: groups of routes, methods, statuses, codes. No label comes from
a request. Names begin with `treaty_`, times are in seconds.

Answered requests and those under way are counted apart. prometheus_client takes a lock for each change and three changes for a
request, which was a fifth of an answer from memory. So requests are counted in plain numbers, and become metrics only when
somebody asks for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from treaty_consensus import __version__

from ..codes import DiskCode, RegistryLogCode


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


PROCESS = CollectorRegistry()
"""The measures of this process. A process has one registry or one witness."""

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_MAX_CODES = 512
"""Codes of refusals that are told apart. There are fewer; a further one is counted as `other`."""

BUILD = Gauge("treaty_build_info", "The release of Treaty. Always 1.", ["version"], registry=PROCESS)
BUILD.labels(__version__).set(1)

ANSWERED = AnsweredRequests(_FAST)
PROCESS.register(ANSWERED)
REFUSALS = Counter("treaty_refusals", "Refusals, by their stable code.", ["code"], registry=PROCESS)

STATEMENTS = Counter(
    "treaty_statements",
    "Proposed leaves: `logged` now, `known` from before, `refused` by a rule, `failed` by a fault.",
    ["outcome"],
    registry=PROCESS,
)
QUEUE_SECONDS = Histogram(
    "treaty_sequencer_queue_seconds", "Seconds that a leaf waits for its commit to begin.", buckets=_FAST, registry=PROCESS
)
COMMIT_SECONDS = Histogram(
    "treaty_commit_seconds",
    "Seconds of a commit: the transaction, the record in the fence, the signature.",
    buckets=_FAST,
    registry=PROCESS,
)
COMMIT_LEAVES = Histogram(
    "treaty_commit_leaves", "Leaves of one commit.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256), registry=PROCESS
)
TAKE_OVERS = Counter("treaty_leader_take_overs", "Attempts to lead the log: `led`, or `failed`.", ["outcome"], registry=PROCESS)
EPOCH_CLOSES = Counter(
    "treaty_epoch_closes", "Attempts to close the epoch: `closed`, `empty`, or `failed`.", ["outcome"], registry=PROCESS
)
EPOCH_CLOSE_SECONDS = Histogram(
    "treaty_epoch_close_seconds",
    "Seconds of closing an epoch.",
    buckets=(0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600),
    registry=PROCESS,
)
WITNESS_SECONDS = Histogram(
    "treaty_witness_request_seconds", "Seconds for a witness to cosign, or to fail.", ["witness"], buckets=_FAST, registry=PROCESS
)
WITNESS_ALARMS = Counter(
    "treaty_witness_alarms", "Answers by which a witness knows another history of the log.", ["witness", "code"], registry=PROCESS
)
FORKS = Counter("treaty_forks", "Proofs that this process found that a log signed two histories.", registry=PROCESS)
POOL_WAIT_SECONDS = Histogram(
    "treaty_database_wait_seconds", "Seconds that a reader waits for a connection of the pool.", buckets=_FAST, registry=PROCESS
)
DATABASE_OUTAGES = Counter("treaty_database_outages", "Answers that PostgreSQL did not give.", registry=PROCESS)
STORE_OUTAGES = Counter(
    "treaty_store_outages",
    "Reads and writes that a store did not do: of the `blobs`, the `copies` of the tiles, or the record of the newest `head`.",
    ["store"],
    registry=PROCESS,
)
CONTENT_CHECKS = Counter(
    "treaty_content_checks", "Checks of contents in a process of their own: `done` or `lost`.", ["outcome"], registry=PROCESS
)
LOOP_DELAY = Histogram(
    "treaty_event_loop_delay_seconds",
    "Seconds by which the event loop was late, looked at twice a second.",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 5),
    registry=PROCESS,
)

# A counter that begins with its first event at 1 shows no increase, so an alert on it would miss the first event.
_FROM_THE_START: Mapping[Counter, tuple[str, ...]] = {
    REFUSALS: (DiskCode.FULL, RegistryLogCode.UNAVAILABLE),
    STATEMENTS: ("logged", "known", "refused", "failed"),
    TAKE_OVERS: ("led", "failed"),
    EPOCH_CLOSES: ("closed", "empty", "failed"),
    STORE_OUTAGES: ("blobs", "copies", "head"),
    CONTENT_CHECKS: ("done", "lost"),
}
for _counter, _values in _FROM_THE_START.items():
    for _value in _values:
        _counter.labels(_value)

_codes: set[str] = {*_FROM_THE_START[REFUSALS]}


def count_refusal(code: str) -> None:
    """Count a refusal with a code."""
    if code not in _codes:
        if len(_codes) >= _MAX_CODES:
            code = "other"
        _codes.add(code)
    REFUSALS.labels(code).inc()
