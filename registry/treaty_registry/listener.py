"""Listen for HTTP requests: one process, one event loop, Granian in front of an ASGI application."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.net import SocketHolder  # type: ignore[attr-defined]
from granian.server.embed import Server

from treaty_consensus import __version__
from treaty_io.admission.connections import ConnectionGuard, ConnectionLimits, bound_unsent, room_for_connections
from treaty_io.line_limit import limit_lines
from treaty_io.pauses import shorten_pauses

from .service_manager import ServiceManager

if TYPE_CHECKING:
    from litestar.types import ASGIApp

_log = structlog.get_logger(__name__)

_BACKLOG = 4_096  # connections that wait to be accepted; Linux's own default bound
# Seconds for the requests under way at a stop. A client that reads slowly must not hold the stop up.
_LAST_REQUESTS = 10
_ARRIVING = 0.2  # seconds from the acceptance of a connection to its request, which a client sends at once
# For a request head that has begun. Granian does not end silent connections; the guard does.
_HEAD_SECONDS = 10
_MAX_HEAD = 64 * 1024  # the most that is read; the application refuses more than 32 KiB of headers with a problem


class _Granian(Server):
    """Granian on a descriptor that is bound already, for which it has no setting. It closes it at its end."""

    descriptor: int

    def _init_shared_socket(self) -> None:
        holder = SocketHolder(self.descriptor, False, _BACKLOG)  # type: ignore[call-arg]
        self._ssp, self._shd = None, holder  # type: ignore[assignment]

    def accept_no_more(self) -> None:
        """Leave all further connections to the next process that has the socket."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)
            # Under the same number Granian then has a socket to which no client connects.
            os.dup2(silent.fileno(), self.descriptor, inheritable=False)


class Listener:
    """Serves HTTP on a bound socket."""

    def __init__(
        self,
        bound: socket.socket,
        manager: ServiceManager,
        limits: ConnectionLimits,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
    ) -> None:
        """`manager`: is told when it serves and when it ends, and keeps the socket from this process to the next one."""
        self._bound = bound
        self._manager = manager
        self._limits = limits
        self._tls_cert = tls_cert
        self._tls_key = tls_key

    async def serve(self, app: ASGIApp, ready: Callable[[], None], stopping: Callable[[], None] = lambda: None) -> None:
        """Serve `app` until SIGTERM or SIGINT, then finish the current requests.

        `ready` is called once connections are accepted, `stopping` when the signal arrives.
        """
        limit_lines("asyncio")
        shorten_pauses()
        room = room_for_connections()
        limits = replace(self._limits, total=min(self._limits.total, room * 3 // 4))
        _, port = self._bound.getsockname()[:2]
        server = self._server(app, room)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if self._bound.fileno() < 0:
                return  # the signal came before
            _log.info("stops")
            server.accept_no_more()
            # Kept by the manager, it has room for those who connect now. Otherwise they are refused, and look for another node.
            self._bound.close()
            self._manager.stopping()
            stopping()
            # Granian hangs up on a connection whose request has not come yet.
            loop.call_later(_ARRIVING, server.stop)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        serving = asyncio.create_task(server.serve())
        with ConnectionGuard(port, limits) as guard:
            accepted = asyncio.create_task(self._is_accepted(guard))
            await asyncio.wait((serving, accepted), return_when=asyncio.FIRST_COMPLETED)
            accepted.cancel()
            if not serving.done() and self._bound.fileno() >= 0:  # and no signal came meanwhile
                _log.info("listens", port=port, tls=self._tls_cert is not None, release=__version__)
                self._manager.keep(self._bound)
                self._manager.ready()
                ready()
            alive = asyncio.create_task(self._manager.show_life())
            with suppress(TimeoutError):  # requests that take longer than `_LAST_REQUESTS` are abandoned
                await serving
            alive.cancel()

    def _server(self, app: ASGIApp, room: int) -> _Granian:
        # Each connection inherits this one too. Without it, the parts of a small answer wait for each other.
        self._bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound_unsent(self._bound)
        server = _Granian(
            app,
            interface=Interfaces.ASGI,
            # HTTP/2 has many requests on a connection, and a flow control that the kernel does not see. The guard could not
            # limit either. A proxy in front may speak it.
            http=HTTPModes.http1,
            websockets=False,
            backpressure=room,  # the guard stays below it, so that a new connection, such as a health check's, is always accepted
            http1_settings=HTTP1Settings(header_read_timeout=_HEAD_SECONDS * 1_000, max_buffer_size=_MAX_HEAD),
            log_enabled=False,
            ssl_cert=self._tls_cert,
            ssl_key=self._tls_key,
            # RFC 8996 deprecates TLS 1.0 and 1.1.
            ssl_protocol_min=SSLProtocols.tls12,
        )
        server.descriptor = os.dup(self._bound.fileno())
        server.workers_kill_timeout = _LAST_REQUESTS
        return server

    async def _is_accepted(self, guard: ConnectionGuard) -> None:
        """Return when the server has accepted a connection. The kernel alone establishes one, while no server runs."""
        while True:
            with suppress(OSError):  # nothing listens yet
                _, writer = await asyncio.open_connection(*self._bound.getsockname()[:2])
                break
            await asyncio.sleep(0.01)
        while not guard.holds(writer.get_extra_info("sockname")[:2]):  # noqa: ASYNC110 (a thread of Granian accepts it)
            await asyncio.sleep(0.01)
        writer.close()
