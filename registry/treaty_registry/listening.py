"""The address of a server: what it listens on, and how it is bound."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from treaty_consensus.errors import Malformed, Unavailable
from treaty_io.admission.connections import ConnectionLimits
from treaty_io.codes import ConnectionCode

from .codes import SettingsCode
from .listener import Listener
from .service_manager import ServiceManager


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

    @contextmanager
    def bound(self) -> Iterator[Listener]:
        """Hold the port during the block, or take it over from the service manager. No connection is accepted yet.

        Raises `Unavailable` when the port is taken, `Malformed` when the TLS files are invalid.
        """
        self._check_tls()
        manager = ServiceManager.of_process()
        with self._bind(manager) as bound:
            yield Listener(bound, manager, self.limits, self.tls_cert, self.tls_key)

    def _bind(self, manager: ServiceManager) -> socket.socket:
        try:
            family, *_, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            passed = manager.take(address)
            if passed is not None:
                return passed
            bound = socket.socket(family, socket.SOCK_STREAM)
            # The connections of the process before, which are closed and not yet forgotten, hold no port.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            return bound
        except OSError as error:
            raise Unavailable(
                ConnectionCode.LISTEN,
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
                SettingsCode.VALUE,
                f"{self.tls_cert} and {self.tls_key} are no certificate chain and its key: {error.strerror or error}.",
                fix="Give PEM files: --tls-cert, the chain, the server's own certificate first; --tls-key, its private key.",
            ) from error
