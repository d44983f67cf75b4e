"""Serving a registry: its application, and the control socket beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from .app import create_app
from .listening import Listening
from .operator.control import Command, control_socket
from .operator.parameters import Announced, Draft
from .registry import Registry
from .settings import Settings


async def serve(settings: Settings, ready: Callable[[Registry], None]) -> None:
    """Open the registry and serve it until SIGTERM or SIGINT; then finish the requests under way, and what has queued up.

    `ready` is called once connections are taken. Raises as `Registry.open` and `Listening.check`.
    """
    limits = replace(settings.connections, exempt=settings.proxies.trusts)
    listening = Listening(settings.host, settings.port, settings.tls_cert, settings.tls_key, limits)
    listening.check()
    async with Registry.open(settings) as registry, control_socket(settings.control, _commands(registry)):
        await listening.serve(create_app(registry), lambda: ready(registry), registry.begin_stop)


def _commands(registry: Registry) -> dict[str, Command]:
    async def announce(draft: object) -> Announced:
        return await registry.announce(msgspec.convert(draft, Draft))

    async def accept_clock() -> str:
        return registry.accept_clock().isoformat()

    return {
        "accept-clock": accept_clock,
        "decide": registry.decide,
        "rebuild": registry.rebuild,
        "parameters": registry.constitution,
        "announce": announce,
    }
