"""Serve a mirror: the application of a registry over verified copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from treaty_client.registries.trust import RegistryName

from ..app import create_app
from ..listening import Listening
from ..observation import metrics_served
from ..server import ended_by_sigterm, settle
from ..serving.views import Views
from ..settings import Settings
from .gauges import MirrorState
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
                settle()
                await listener.serve(app, lambda: ready(log))
