"""Add the state of an open log to the metrics of its process, and serve them.

Metrics are served on an address of their own, which readers of the registry do not reach. A scrape asks PostgreSQL nothing. The
state is read on the event loop, where it is consistent. If the loop does not answer in time, the scrape has the counters alone,
and `treaty_event_loop_answers` is 0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import GC_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.codes import ConnectionCode

from .readable import ReadableLog
from .settings import MetricsAddress
from .telemetry.measures import LOOP_DELAY, PROCESS

if TYPE_CHECKING:
    from .admission.fair_queue import FairQueue
    from .registry import Registry
    from .serving.views import Views

_PATIENCE = 2.0  # seconds for the event loop; Prometheus waits ten by default
_LOOK = 0.5  # seconds between two looks at the event loop


@dataclass(frozen=True)
class LogState(Collector):
    """Collects the gauges of an open log, in the thread of a scrape. A subclass adds those of its kind."""

    log: ReadableLog
    views: Views
    loop: asyncio.AbstractEventLoop

    def collect(self) -> Iterator[Metric]:
        """Return the gauges."""
        answers = True
        try:
            yield from asyncio.run_coroutine_threadsafe(self._read(), self.loop).result(_PATIENCE)
        except (TimeoutError, RuntimeError):  # RuntimeError: the loop is closed
            answers = False
        yield gauge("event_loop_answers", "Whether the event loop answered this scrape in time.", answers)

    async def _read(self) -> list[Metric]:
        return list(self.gauges())

    def gauges(self) -> Iterator[Metric]:
        """Return the gauges, on the event loop."""
        head, now = self.log.head, self.now()
        yield gauge("log_size", "Leaves of the newest head.", head.size)
        yield gauge("log_published_size", "Leaves of the head that /checkpoint has.", head.published.size)
        yield gauge("checkpoint_age_seconds", "Age of the newest checkpoint.", max(0.0, now - head.time))
        yield gauge(
            "published_checkpoint_age_seconds", "Age of the checkpoint that readers get.", max(0, now - head.published.time)
        )
        queues, waiting = self.queues(), self.waiting()
        yield _gauges("queue_depth", "Entries that wait in a queue.", "queue", waiting)
        yield _gauges(
            "queue_working", "Entries that a queue has let in.", "queue", {name: q.working for name, q in queues.items()}
        )
        yield _gauges("workers", "Processes that check contents.", "state", self.log.checker.processes)
        yield from self._resources()

    def now(self) -> float:
        """Return the time that ages are measured at."""
        return time.time()

    def queues(self) -> dict[str, FairQueue]:
        """Return the queues in front of parts of this process."""
        return {"contents": self.log.checker.queue, **self.views.queues}

    def waiting(self) -> dict[str, float]:
        """Return the entries that wait, by queue."""
        return {name: queue.waiting for name, queue in self.queues().items()}

    def _resources(self) -> Iterator[Metric]:
        pool, memory = self.log.pool, self.views.memory
        idle = pool.get_idle_size()
        yield _gauges("database_connections", "Connections of the pool.", "state", {"idle": idle, "used": pool.get_size() - idle})
        yield gauge("database_connections_max", "Connections that the pool may open.", pool.get_max_size())
        yield _gauges("cache_bytes", "Bytes of the cached answers.", "cache", memory.used)
        lookups = CounterMetricFamily("treaty_cache_lookups", "Look-ups of answers in the cache.", labels=["result"])
        lookups.add_metric(["hit"], memory.hits)
        lookups.add_metric(["miss"], memory.misses)
        yield lookups
        free: dict[str, float] = {}
        full: dict[str, float] = {}
        for disk in self.log.disks:
            with suppress(OSError):
                free[disk.purpose], full[disk.purpose] = disk.free, disk.full
        yield _gauges("disk_free_bytes", "Free bytes of a disk that a write needs.", "disk", free)
        yield _gauges("disk_full", "Whether a disk has too little room for any write.", "disk", full)


@dataclass(frozen=True)
class RegistryState(LogState):
    """Collects the gauges of an open registry."""

    log: Registry

    def gauges(self) -> Iterator[Metric]:
        """Return the gauges, on the event loop."""
        yield from super().gauges()
        yield from self._writer()
        yield from self._upkeep()
        # A follower neither closes epochs, nor asks witnesses, nor copies tiles. Its zeros would hide the leader's faults.
        if self.log.leader.leads:
            yield from self._leader()
        capacity = self.log.intake.queue.capacity
        yield gauge("capacity_statements_per_second", "Statements a second, as last measured under load.", capacity)

    def now(self) -> float:
        """Return the time of the log's clock, or the machine's when the log's may not be signed."""
        with suppress(TreatyError):
            return self.log.clock().timestamp()
        return super().now()

    def queues(self) -> dict[str, FairQueue]:
        """Return the queues in front of parts of this process."""
        return {"admission": self.log.intake.queue, **super().queues()}

    def waiting(self) -> dict[str, float]:
        """Return the entries that wait, by queue."""
        return super().waiting() | {"sequencer": self.log.sequencer.waiting}

    def _writer(self) -> Iterator[Metric]:
        registry, clock_is_right, elsewhere = self.log, True, self.log.other_signer.found
        if not elsewhere:
            try:
                registry.clock()
            except Unavailable:
                clock_is_right = False
        yield gauge("leader", "Whether this process leads the log.", registry.leader.leads)
        yield gauge("write_fault", "Whether the last write failed by a disk or PostgreSQL.", registry.leader.fault is not None)
        yield gauge("clock_is_right", "Whether the clock fits the times that were signed.", clock_is_right)
        yield gauge("signed_elsewhere", "Whether another process signs the log, so that nothing is signed here.", elsewhere)

    def _upkeep(self) -> Iterator[Metric]:
        upkeep = self.log.upkeep
        yield gauge("backup_time_seconds", "Unix time of the newest backup, read each minute; 0 for none.", upkeep.backup or 0)
        yield _gauges(
            "certificate_end_seconds", "Unix time at which a certificate ends.", "certificate", dict(upkeep.certificates)
        )

    def _leader(self) -> Iterator[Metric]:
        registry = self.log
        is_known = registry.schedule.known
        yield gauge(
            "epoch", "The open epoch; -1 where the operator or another node closes epochs.", is_known.epoch if is_known else -1
        )
        lag = registry.schedule.lag(self.now())
        yield gauge("epoch_lag_seconds", "Seconds by which the close of the open epoch is late.", lag)
        if (copied := registry.tiles.time) is not None:
            yield gauge("tiles_time_seconds", "Unix time of the newest head in every copy of the tiles; 0 for none.", copied)
        yield from self._witnesses()

    def _witnesses(self) -> Iterator[Metric]:
        # The labels are the names in the operator's settings.
        head, states = self.log.head, self.log.witnesses.states
        lag = {state.name: head.size - state.size for state in states}
        age = {state.name: max(0.0, head.time - state.time) if state.time else -1.0 for state in states}
        failing = {state.name: float(bool(state.failure)) for state in states}
        yield _gauges("witness_lag_leaves", "Leaves of the newest head that a witness has not cosigned.", "witness", lag)
        yield _gauges(
            "witness_lag_seconds", "Time from the newest head a witness cosigned to the newest one; -1 for none.", "witness", age
        )
        yield _gauges("witness_failing", "Whether a witness does not cosign now.", "witness", failing)


@asynccontextmanager
async def metrics_served(address: MetricsAddress | None, *collectors: Collector) -> AsyncIterator[None]:
    """Serve the metrics of this process during the block, with those of `collectors`. Without an address, serve nothing.

    Raises `Unavailable` (`connection.listen`) when the address cannot be listened on.
    """
    if address is None:
        yield
        return
    everything = CollectorRegistry()
    for collector in (PROCESS, PROCESS_COLLECTOR, GC_COLLECTOR, *collectors):
        everything.register(collector)
    try:
        # In threads of its own, so that a scrape also says when the event loop hangs.
        server, thread = start_http_server(address.port, address.host, everything)
    except OSError as error:
        raise Unavailable(
            ConnectionCode.LISTEN,
            f"{address.host} port {address.port} cannot be listened on: {error.strerror}.",
            fix="Choose another one: --metrics-address",
        ) from error
    looking = asyncio.create_task(_look_at_loop())
    try:
        yield
    finally:
        looking.cancel()
        # Beside the loop: a scrape under way waits for it.
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)


async def _look_at_loop() -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + _LOOK
        await asyncio.sleep(_LOOK)
        LOOP_DELAY.observe(max(0.0, clock() - due))


def gauge(name: str, about: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(f"treaty_{name}", about, value=float(value))


def _gauges(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"treaty_{name}", about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
