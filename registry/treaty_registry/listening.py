"""Listening for HTTP requests: one process, one event loop, Granian in front of an ASGI application."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.server.embed import Server

from treaty_consensus.errors import Malformed, Unavailable

from .connections import ConnectionGuard, ConnectionLimits, room_for_connections

if TYPE_CHECKING:
    from litestar.types import ASGIApp

_BACKLOG = 4_096  # connections that wait to be accepted; Linux's own default bound
_LAST_REQUESTS = 10
_HEAD_SECONDS = 10
_MAX_HEAD = 64 * 1024  # the application refuses 32 KiB of headers with a problem; this is what is read at all


@dataclass(frozen=True)
class Listening:
    """Where to listen: an address and a port, with a certificate chain and its key for https; and for how much."""

    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)

    def check(self) -> None:
        """Raises `Unavailable` when the port is taken, `Malformed` when the TLS files are none."""
        self._check_port()
        self._check_tls()

    async def serve(self, app: ASGIApp, ready: Callable[[], None], stopping: Callable[[], None] = lambda: None) -> None:
        """Serve `app` until SIGTERM or SIGINT; then finish the requests under way. `ready` is called once connections are
        taken, `stopping` when the signal comes."""
        room = room_for_connections()
        limits = replace(self.limits, total=min(self.limits.total, room * 3 // 4))
        server = Server(
            app,
            address=self.host,
            port=self.port,
            interface=Interfaces.ASGI,
            # HTTP/2 carries many requests on a connection, and has a flow control that the kernel does not see. The guard could
            # bound neither. A proxy in front may speak it.
            http=HTTPModes.http1,
            websockets=False,
            backlog=_BACKLOG,
            backpressure=room,  # the guard keeps below it, so that there is always one to accept: a health check's, say
            http1_settings=HTTP1Settings(header_read_timeout=_HEAD_SECONDS * 1_000, max_buffer_size=_MAX_HEAD),
            log_enabled=False,
            ssl_cert=self.tls_cert,
            ssl_key=self.tls_key,
            ssl_protocol_min=SSLProtocols.tls12,
        )
        server.workers_kill_timeout = _LAST_REQUESTS
        loop = asyncio.get_running_loop()

        finish: Callable[[], None] = server.stop

        def stop() -> None:
            stopping()
            finish()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        serving = asyncio.create_task(server.serve())
        with ConnectionGuard(self.port, limits):
            if await self._takes_connections(serving):
                ready()
            with suppress(TimeoutError):  # requests that took longer than `_LAST_REQUESTS` are given up
                await serving

    async def _takes_connections(self, serving: asyncio.Task[None]) -> bool:
        """Wait until the server takes connections; False when it ended instead."""
        while not serving.done():
            with suppress(OSError):
                _, writer = await asyncio.open_connection(self.host, self.port)
                writer.close()
                return True
            await asyncio.sleep(0.01)
        return False

    def _check_port(self) -> None:
        """Granian shares a port with whoever holds it already, so ask for it alone first."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                raise Unavailable(
                    "server.port",
                    f"{self.host} port {self.port} cannot be listened on: {error.strerror}.",
                    fix="Choose another one: --port",
                ) from error

    def _check_tls(self) -> None:
        if self.tls_cert is None:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as error:  # ssl.SSLError is one
            raise Malformed(
                "settings.tls",
                f"{self.tls_cert} and {self.tls_key} are no certificate chain and its key: {error.strerror or error}.",
                fix="Give PEM files: --tls-cert, the chain, the server's own certificate first; --tls-key, its private key.",
            ) from error
