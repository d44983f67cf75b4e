"""Serve a mirror: the application of a registry over verified copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from prometheus_client.core import Metric

from treaty_client.registries.trust import RegistryName

from ..app import create_app
from ..listening import Listening
from ..observation import LogState, gauge, metrics_served
from ..server import ended_by_sigterm
from ..serving.views import Views
from ..settings import Settings
from .mirrored_log import MirroredLog


async def serve(settings: Settings, upstream: RegistryName, ready: Callable[[MirroredLog], None]) -> None:
    """Mirror a registry and serve its reads until SIGTERM or SIGINT.

    `ready` is called once connections are accepted. Raises as `MirroredLog.open`, `metrics_served` and `Listening.bound`.
    """
    limits = replace(settings.connections, exempt=settings.proxies.trusts)
    listening = Listening(settings.host, settings.port, settings.tls_cert, settings.tls_key, limits)
    # Before the copy: a taken port must not cost a start and a stop of the database.
    with listening.bound() as listener, ended_by_sigterm():
        async with MirroredLog.open(settings, upstream) as log:
            views = Views(log)
            state = MirrorState(log, views, asyncio.get_running_loop())
            async with metrics_served(settings.metrics, state):
                app = create_app(log, views=views)
                await listener.serve(app, lambda: ready(log))


@dataclass(frozen=True)
class MirrorState(LogState):
    """Collects the gauges of an open mirror. The age of its checkpoint is the time by which it is behind."""

    log: MirroredLog

    def gauges(self) -> Iterator[Metric]:
        """Return the gauges, on the event loop."""
        yield from super().gauges()
        yield gauge("mirror_failing", "Whether the last step of following failed.", self.log.failure is not None)
        yield gauge("mirror_stopped", "Whether the log broke a rule and is not followed further.", self.log.alarm is not None)
