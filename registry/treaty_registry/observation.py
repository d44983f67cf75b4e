"""Add the state of an open registry to the metrics of its process, and serve them.

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

from .codes import ServerCode
from .settings import MetricsAddress
from .telemetry.measures import LOOP_DELAY, PROCESS

if TYPE_CHECKING:
    from .registry import Registry
    from .serving.views import Views

_PATIENCE = 2.0  # seconds for the event loop; Prometheus waits ten by default
_LOOK = 0.5  # seconds between two looks at the event loop


@dataclass(frozen=True)
class RegistryState(Collector):
    """Collects the gauges of an open registry, in the thread of a scrape."""

    registry: Registry
    views: Views
    loop: asyncio.AbstractEventLoop

    def collect(self) -> Iterator[Metric]:
        """Return the gauges."""
        answers = True
        try:
            yield from asyncio.run_coroutine_threadsafe(self._read(), self.loop).result(_PATIENCE)
        except (TimeoutError, RuntimeError):  # RuntimeError: the loop is closed
            answers = False
        yield _gauge("event_loop_answers", "Whether the event loop answered this scrape in time.", answers)

    async def _read(self) -> list[Metric]:
        return [*self._log(), *self._witnesses(), *self._queues(), *self._resources()]

    def _log(self) -> Iterator[Metric]:
        registry = self.registry
        head, now, clock_is_right = registry.head, time.time(), True
        try:
            now = registry.clock().timestamp()
        except TreatyError:
            clock_is_right = False
        yield _gauge("leader", "Whether this process leads the log.", registry.leader.leads)
        yield _gauge("write_fault", "Whether the last write failed by a disk or PostgreSQL.", registry.leader.fault is not None)
        yield _gauge("clock_is_right", "Whether times may be signed.", clock_is_right)
        yield _gauge("log_size", "Leaves of the newest head.", head.size)
        yield _gauge("log_published_size", "Leaves of the head that /checkpoint has.", head.published.size)
        yield _gauge("checkpoint_age_seconds", "Age of the newest checkpoint.", max(0.0, now - head.time))
        yield _gauge(
            "published_checkpoint_age_seconds", "Age of the checkpoint that readers get.", max(0, now - head.published.time)
        )
        known = registry.schedule.known
        yield _gauge("epoch", "The open epoch; -1 where the operator closes epochs.", known.epoch if known else -1)
        yield _gauge("epoch_lag_seconds", "Seconds by which the close of the open epoch is late.", registry.schedule.lag(now))

    def _witnesses(self) -> Iterator[Metric]:
        # The labels are the names in the operator's settings.
        head, states = self.registry.head, self.registry.witnesses.states
        lag = {state.name: head.size - state.size for state in states}
        age = {state.name: max(0.0, head.time - state.time) if state.time else -1.0 for state in states}
        failing = {state.name: float(bool(state.failure)) for state in states}
        yield _gauges("witness_lag_leaves", "Leaves of the newest head that a witness has not cosigned.", "witness", lag)
        yield _gauges(
            "witness_lag_seconds", "Time from the newest head a witness cosigned to the newest one; -1 for none.", "witness", age
        )
        yield _gauges("witness_failing", "Whether a witness does not cosign now.", "witness", failing)

    def _queues(self) -> Iterator[Metric]:
        queues = {**self.registry.intake.queues, **self.views.queues}
        waiting = {name: queue.waiting for name, queue in queues.items()} | {"sequencer": self.registry.sequencer.waiting}
        yield _gauges("queue_depth", "Entries that wait in a queue.", "queue", waiting)
        yield _gauges(
            "queue_working", "Entries that a queue has let in.", "queue", {name: q.working for name, q in queues.items()}
        )
        capacity = self.registry.intake.queue.capacity
        yield _gauge("capacity_statements_per_second", "Statements a second, as last measured under load.", capacity)
        yield _gauges("workers", "Processes that check contents.", "state", self.registry.checker.processes)

    def _resources(self) -> Iterator[Metric]:
        pool, memory = self.registry.pool, self.views.memory
        idle = pool.get_idle_size()
        yield _gauges("database_connections", "Connections of the pool.", "state", {"idle": idle, "used": pool.get_size() - idle})
        yield _gauge("database_connections_max", "Connections that the pool may open.", pool.get_max_size())
        yield _gauges("cache_bytes", "Bytes of the cached answers.", "cache", memory.used)
        lookups = CounterMetricFamily("treaty_cache_lookups", "Look-ups of answers in the cache.", labels=["result"])
        lookups.add_metric(["hit"], memory.hits)
        lookups.add_metric(["miss"], memory.misses)
        yield lookups
        free: dict[str, float] = {}
        for disk in self.registry.disks:
            with suppress(OSError):
                free[disk.purpose] = disk.free
        yield _gauges("disk_free_bytes", "Free bytes of a disk that a write needs.", "disk", free)


@asynccontextmanager
async def metrics_served(address: MetricsAddress | None, *collectors: Collector) -> AsyncIterator[None]:
    """Serve the metrics of this process during the block, with those of `collectors`. Without an address, serve nothing.

    Raises `Unavailable` (`server.port`) when the address cannot be listened on.
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
            ServerCode.PORT,
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


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"treaty_{name}", about, value=float(value))


def _gauges(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"treaty_{name}", about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
