"""Serving a registry over HTTP: one process, one event loop, Granian in front of the application."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.server.embed import Server

from treaty_consensus.errors import Malformed, Unavailable

from .app import create_app
from .operator.control import control_socket
from .registry import Registry
from .settings import Settings

_BACKLOG = 1024
_LAST_REQUESTS = 10


async def serve(settings: Settings, ready: Callable[[Registry], None]) -> None:
    """Open the registry and serve it until SIGTERM or SIGINT; then finish the requests under way, and what has queued up.

    `ready` is called once connections are taken. Raises as `Registry.open`, `Unavailable` when the port is taken, `Malformed`
    when the TLS files are none.
    """
    _check_port(settings)
    _check_tls(settings)
    async with Registry.open(settings) as registry:
        server = Server(
            create_app(registry),
            address=settings.host,
            port=settings.port,
            interface=Interfaces.ASGI,
            http=HTTPModes.auto,
            websockets=False,
            backlog=_BACKLOG,
            log_enabled=False,
            ssl_cert=settings.tls_cert,
            ssl_key=settings.tls_key,
            ssl_protocol_min=SSLProtocols.tls12,
        )
        server.workers_kill_timeout = _LAST_REQUESTS
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        async with control_socket(settings.control, {"decide": registry.decide, "rebuild": registry.rebuild}):
            serving = asyncio.create_task(server.serve())
            if await _takes_connections(settings, serving):
                ready(registry)
            await serving


async def _takes_connections(settings: Settings, serving: asyncio.Task[None]) -> bool:
    """Wait until the server takes connections; False when it ended instead."""
    while not serving.done():
        with suppress(OSError):
            _, writer = await asyncio.open_connection(settings.host, settings.port)
            writer.close()
            return True
        await asyncio.sleep(0.01)
    return False


def _check_port(settings: Settings) -> None:
    """Granian shares a port with whoever holds it already, so ask for it alone first."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise Unavailable(
                "server.port",
                f"{settings.host} port {settings.port} cannot be listened on: {error.strerror}.",
                fix="Choose another one: --port",
            ) from error


def _check_tls(settings: Settings) -> None:
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise Malformed(
            "settings.tls",
            f"{settings.tls_cert} and {settings.tls_key} are no certificate chain and its key: {error.strerror or error}.",
            fix="Give PEM files: --tls-cert, the chain, the server's own certificate first; --tls-key, its private key.",
        ) from error
