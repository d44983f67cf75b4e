"""Make HTTP clients and WebSocket endpoints that follow `--resolve HOST=IP:PORT` and `--ca FILE`.

A host in `resolve` is reached at the given address; the port of the URL is ignored. Over TLS it must still prove that it is HOST.
Each such host has its own connection pool, so that a connection that was verified for one host is never used for another host at
the same address. `ca` adds a certificate authority to the public ones. Proxies come from the environment, but not for the hosts
in `resolve` nor for this machine.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from treaty_consensus.canonical import parse_decimal
from treaty_consensus.did import is_host
from treaty_consensus.errors import Malformed, NotFound, TreatyError

from ..codes import ConfigCode, NetworkCode
from ..home import CA_VARIABLE, RESOLVE_VARIABLE
from .exchange import LEAST_RATE, TIMEOUT, BoundedClient

# Registries answer many small reads, so connections are kept; 60 seconds is what most servers allow.
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=60)
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Address(NamedTuple):
    """An IP address and a port to connect to."""

    ip: str
    port: int


class Endpoint(NamedTuple):
    """The address of a WebSocket.

    `host`: a name, or an IP address if it was resolved explicitly. `tls` and `server_name`: the TLS context and the name to
    verify; None for `ws`.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None
    server_name: str | None


@dataclass(frozen=True)
class Network:
    """Addresses, authorities and time limits for reaching hosts. Immutable. The caller closes the clients that it makes.

    `timeout`: seconds for a whole HTTP exchange. `least_rate`: bytes per second; a body adds its size divided by this rate to
    the time (`exchange`).
    """

    resolve: Mapping[str, Address] = field(default_factory=dict)
    ca: Path | None = None
    timeout: float = TIMEOUT
    least_rate: float = LEAST_RATE

    @classmethod
    def parse(cls, resolve: Iterable[str] = (), ca: Path | None = None) -> Network:
        """Parse command-line arguments `HOST=IP:PORT`. Raises `Malformed` (`network.url`)."""
        return cls(dict(map(_parse_resolve, resolve)), ca)

    @classmethod
    def from_environment(cls) -> Network:
        """Return the network that $TREATY_RESOLVE (several HOST=IP:PORT, with spaces between) and $TREATY_CA describe. Raises
        `Malformed` (`network.url`)."""
        ca = os.environ.get(CA_VARIABLE)
        return cls.parse(os.environ.get(RESOLVE_VARIABLE, "").split(), Path(ca) if ca else None)

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """Return a context that verifies servers against the public authorities and `ca`.

        Raises `NotFound` or `Malformed` (`config.file`) if `ca` is not a PEM file.
        """
        if self.ca is None:
            return public_context()
        context = _strict_context()
        try:
            context.load_verify_locations(cafile=self.ca)
        except FileNotFoundError as error:
            raise NotFound(
                ConfigCode.FILE, f"There is no {self.ca}.", fix="Name a PEM file of certificate authorities: --ca"
            ) from error
        except ssl.SSLError as error:
            raise Malformed(ConfigCode.FILE, f"{self.ca} holds no certificate in PEM.") from error
        return context

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        """Return a client that follows no redirects. `timeout`: seconds for each whole exchange; default the network's."""
        mounts: dict[str, httpx.AsyncBaseTransport | None] = {f"all://{host}": None for host in _LOOPBACK}
        for host, address in self.resolve.items():
            # A transport for each host: in a common pool two hosts at one address would share verified connections.
            mounts[f"all://{host}"] = self.transport(address)
        seconds = self.timeout if timeout is None else timeout
        return BoundedClient(timeout=seconds, least_rate=self.least_rate, verify=self.tls, mounts=mounts, limits=_LIMITS)

    def transport(self, address: Address) -> httpx.AsyncBaseTransport:
        """Return a transport that sends every request to one address. Use it for one host only; the caller closes it."""
        return PinnedTransport(address, self.tls)

    def endpoint(self, url: str) -> Endpoint:
        """Return the address of a WebSocket or HTTP URL. Raises `Malformed` (`network.url`)."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme]
        except (ValueError, KeyError) as error:
            raise Malformed(NetworkCode.URL, f"Not a URL of http, https, ws or wss: {url[:120]!r}.") from error
        if not host or parts.username is not None:
            raise Malformed(NetworkCode.URL, f"A URL here must have a host and no user name: {url[:120]!r}.")
        secure = parts.scheme in ("https", "wss")
        address = self.resolve.get(host, Address(host, port))
        return Endpoint(address.ip, address.port, self.tls if secure else None, host if secure else None)


@cache
def public_context() -> ssl.SSLContext:
    """Return the context that verifies servers against the public authorities, by the rules of RFC 5280. Do not change it.

    It is made once for the process: reading the authorities costs as much as opening a registry.
    """
    return _strict_context()


def _strict_context() -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    # The default since Python 3.13. Without it an agent on 3.11 accepts a certificate that an agent on 3.13 refuses.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


class PinnedTransport(httpx.AsyncBaseTransport):
    """Send every request to one address. Over TLS the server must prove to be the host of the URL. Use it for one host only."""

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
    return Malformed(
        NetworkCode.URL,
        f"Not HOST=IP:PORT: {text[:120]!r}.",
        fix="Write a host and its address: shop.example=127.0.0.1:9443.",
    )
