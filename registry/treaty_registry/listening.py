"""Listen for HTTP requests: one process, one event loop, Granian in front of an ASGI application."""

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

import structlog
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.server.embed import Server

from treaty_client.network.admission.connections import ConnectionGuard, ConnectionLimits, room_for_connections
from treaty_client.network.admission.line_limit import limit_lines
from treaty_consensus import __version__
from treaty_consensus.errors import Malformed, Unavailable

from .codes import ServerCode, SettingsCode

if TYPE_CHECKING:
    from litestar.types import ASGIApp

_log = structlog.get_logger(__name__)

_BACKLOG = 4_096  # connections that wait to be accepted; Linux's own default bound
# Seconds for the requests under way at a stop. A client that reads slowly must not hold the stop up.
_LAST_REQUESTS = 10
# For a request head that has begun. Granian does not end silent connections; the guard does.
_HEAD_SECONDS = 10
_MAX_HEAD = 64 * 1024  # the most that is read; the application refuses more than 32 KiB of headers with a problem


@dataclass(frozen=True)
class Listening:
    """An address and a port to listen on, with an optional certificate chain and key for https, and limits."""

    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)

    @property
    def url(self) -> str:
        """Return the URL of this address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}"

    def check(self) -> None:
        """Raise `Unavailable` when the port is taken, `Malformed` when the TLS files are invalid."""
        self._check_port()
        self._check_tls()

    async def serve(self, app: ASGIApp, ready: Callable[[], None], stopping: Callable[[], None] = lambda: None) -> None:
        """Serve `app` until SIGTERM or SIGINT, then finish the current requests.

        `ready` is called once connections are accepted, `stopping` when the signal arrives.
        """
        limit_lines("asyncio")
        room = room_for_connections()
        limits = replace(self.limits, total=min(self.limits.total, room * 3 // 4))
        server = Server(
            app,
            address=self.host,
            port=self.port,
            interface=Interfaces.ASGI,
            # HTTP/2 has many requests on a connection, and a flow control that the kernel does not see. The guard could not
            # limit either. A proxy in front may speak it.
            http=HTTPModes.http1,
            websockets=False,
            backlog=_BACKLOG,
            backpressure=room,  # the guard stays below it, so that a new connection, such as a health check's, is always accepted
            http1_settings=HTTP1Settings(header_read_timeout=_HEAD_SECONDS * 1_000, max_buffer_size=_MAX_HEAD),
            log_enabled=False,
            ssl_cert=self.tls_cert,
            ssl_key=self.tls_key,
            # RFC 8996 deprecates TLS 1.0 and 1.1.
            ssl_protocol_min=SSLProtocols.tls12,
        )
        server.workers_kill_timeout = _LAST_REQUESTS
        loop = asyncio.get_running_loop()

        finish: Callable[[], None] = server.stop

        def stop() -> None:
            _log.info("stops")
            stopping()
            finish()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        serving = asyncio.create_task(server.serve())
        with ConnectionGuard(self.port, limits) as guard:
            if await self._takes_connections(serving):
                # Not earlier, because the listening socket must exist.
                guard.bound_unsent()
                _log.info("listens", port=self.port, tls=self.tls_cert is not None, release=__version__)
                ready()
            with suppress(TimeoutError):  # requests that take longer than `_LAST_REQUESTS` are abandoned
                await serving

    async def _takes_connections(self, serving: asyncio.Task[None]) -> bool:
        """Wait until the server accepts connections; False when it ended instead."""
        # `ready` must not be called before a connection is accepted, so one is tried until it succeeds.
        while not serving.done():
            with suppress(OSError):
                _, writer = await asyncio.open_connection(self.host, self.port)
                writer.close()
                return True
            await asyncio.sleep(0.01)
        return False

    def _check_port(self) -> None:
        """Bind the port once alone, because Granian would share it with another process that listens already."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                raise Unavailable(
                    ServerCode.PORT,
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
                SettingsCode.TLS,
                f"{self.tls_cert} and {self.tls_key} are no certificate chain and its key: {error.strerror or error}.",
                fix="Give PEM files: --tls-cert, the chain, the server's own certificate first; --tls-key, its private key.",
            ) from error
