"""How this process reaches hosts: the one place that knows `--resolve HOST=IP:PORT` and `--ca FILE`.

A host that is named in `resolve` is reached at that address whatever port the URL says, and over TLS it must still prove that
it is HOST. Each such host has a connection pool of its own, so that a connection that was verified for one host never serves
another at the same address. `ca` adds a certificate authority to the public ones. Proxies are taken from the environment as
usual, except for the hosts named here and for this machine.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from treaty_consensus.canonical import parse_decimal
from treaty_consensus.did import is_host
from treaty_consensus.errors import Malformed, NotFound, TreatyError

from .exchange import LEAST_RATE, TIMEOUT, BoundedClient

_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=60)
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Address(NamedTuple):
    """Where to connect: an IP address and a port."""

    ip: str
    port: int


class Endpoint(NamedTuple):
    """What a WebSocket connection needs: host (an IP address when it was resolved explicitly), port, and for `wss` the TLS
    context and the name to verify. `tls` and `server_name` are None for `ws`."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    server_name: str | None


@dataclass(frozen=True)
class Network:
    """Immutable; the clients it makes are the caller's to close.

    `timeout`: seconds for an HTTP exchange as a whole. `least_rate`: bytes a second at which a body may take longer (`exchange`).
    """

    resolve: Mapping[str, Address] = field(default_factory=dict)
    ca: Path | None = None
    timeout: float = TIMEOUT
    least_rate: float = LEAST_RATE

    @classmethod
    def parse(cls, resolve: Iterable[str] = (), ca: Path | None = None) -> Network:
        """From command-line arguments `HOST=IP:PORT`. Raises `Malformed` (`network.resolve`)."""
        return cls(dict(map(_parse_resolve, resolve)), ca)

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """Verifies servers against the public authorities and `ca`. Raises `NotFound` or `Malformed` when `ca` is no PEM file."""
        context = httpx.create_ssl_context()
        if self.ca is not None:
            try:
                context.load_verify_locations(cafile=self.ca)
            except FileNotFoundError as error:
                raise NotFound("network.ca", f"There is no {self.ca}.") from error
            except ssl.SSLError as error:
                raise Malformed("network.ca", f"{self.ca} holds no certificate in PEM.") from error
        return context

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        """A client that follows no redirects. `timeout`: seconds for each exchange as a whole, unless the network's own."""
        mounts: dict[str, httpx.AsyncBaseTransport | None] = {f"all://{host}": None for host in _LOOPBACK}
        for host, address in self.resolve.items():
            mounts[f"all://{host}"] = PinnedTransport(address, self.tls)
        seconds = self.timeout if timeout is None else timeout
        return BoundedClient(timeout=seconds, least_rate=self.least_rate, verify=self.tls, mounts=mounts, limits=_LIMITS)

    def endpoint(self, url: str) -> Endpoint:
        """Where a WebSocket (or HTTP) URL leads. Raises `Malformed` (`network.url`)."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme]
        except (ValueError, KeyError) as error:
            raise Malformed("network.url", f"Not a URL of http, https, ws or wss: {url[:120]!r}.") from error
        if not host or parts.username is not None:
            raise Malformed("network.url", f"A URL here has a host and no user: {url[:120]!r}.")
        secure = parts.scheme in ("https", "wss")
        address = self.resolve.get(host, Address(host, port))
        return Endpoint(address.ip, address.port, self.tls if secure else None, host if secure else None)


class PinnedTransport(httpx.AsyncBaseTransport):
    """Sends every request to one address; over TLS the server must prove to be the host of the URL. For one host only."""

    def __init__(self, address: Address, tls: ssl.SSLContext) -> None:
        self._address = address
        self._inner = httpx.AsyncHTTPTransport(verify=tls, limits=_LIMITS, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=self._address.ip, port=self._address.port),
            headers=request.headers,  # with the Host of the original URL
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": request.url.host},
        )
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _parse_resolve(text: str) -> tuple[str, Address]:
    host, _, address = text.partition("=")
    ip, _, port = address.rpartition(":")
    try:
        parsed = ipaddress.ip_address(ip.removeprefix("[").removesuffix("]"))
        number = parse_decimal(port, limit=65535)
    except (ValueError, TreatyError) as error:
        raise _bad_resolve(text) from error
    if not is_host(host):
        raise _bad_resolve(text)
    return host, Address(str(parsed), number)


def _bad_resolve(text: str) -> Malformed:
    return Malformed("network.resolve", f"Not HOST=IP:PORT, such as shop.example=127.0.0.1:9443: {text[:120]!r}.")
