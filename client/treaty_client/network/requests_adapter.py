"""`requests` sessions that reach hosts as a `Network` does, for a library that brings this HTTP client with it (sigstore)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from requests import PreparedRequest, Session
from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool

from .hosts import Network


def session_setup(network: Network) -> Callable[[Session], None]:
    """What makes a session connect by `resolve` and verify by `ca`; nothing of it is needed, or done, without either."""

    def setup(session: Session) -> None:
        if network.resolve or network.ca:
            adapter = _NetworkAdapter(network)
            session.mount("https://", adapter)
            session.mount("http://", adapter)

    return setup


class _NetworkAdapter(HTTPAdapter):
    def __init__(self, network: Network) -> None:
        self._network = network
        super().__init__()

    def get_connection_with_tls_context(self, request: PreparedRequest, *arguments: Any, **options: Any) -> HTTPConnectionPool:
        host, port, tls, server_name = self._network.endpoint(str(request.url))
        verified = {"ssl_context": tls, "server_hostname": server_name, "assert_hostname": server_name} if tls else {}
        return self.poolmanager.connection_from_host(host, port, "https" if tls else "http", pool_kwargs=verified)

    def add_headers(self, request: PreparedRequest, **options: Any) -> None:
        request.headers["Host"] = urlsplit(str(request.url)).netloc  # the connection only knows the address
