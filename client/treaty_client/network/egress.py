"""The egress guard: fetching a URL that a stranger named.

Whoever sends a statement makes us fetch the document of its DID, so the URL is hostile. The guard fetches `https` on port 443
only (unless told to take other ports), follows no redirect, takes at most 64 KiB, unencoded, within 3 seconds from DNS to the
last byte, and connects to the very address it checked: a public unicast one, as of the one DNS answer it asked for. Concurrent
requests for a URL are one fetch; a failure is remembered for 60 seconds; a host is asked at most once in 10 seconds, unless
whoever makes the guard bounds its requests in another way. Hosts that the operator names with `--resolve` are reached there and
are exempt from the rule on addresses, not from the others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from treaty_consensus.did import is_host
from treaty_consensus.errors import NotFound, Refused, TooLarge, TreatyError, Unavailable

from .hosts import Address, Network, PinnedTransport

MAX_BODY = 64 * 1024
DEADLINE = 3.0
FAILURE_LIFETIME = 60.0
HOST_INTERVAL = 10.0
_REMEMBERED = 10_000

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")

_Value = TypeVar("_Value")
Lookup = Callable[[str], Awaitable[list[str]]]


def lookups() -> Lookup:
    """Asks for the addresses of a host, in the system's order of preference, in 16 threads of its own: name servers that keep
    them waiting, long after the deadline, keep nothing else waiting. What it makes raises OSError."""
    threads = ThreadPoolExecutor(16, "lookup")

    async def lookup(host: str) -> list[str]:
        ask = partial(socket.getaddrinfo, host, 443, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(threads, ask)
        return [str(address[0]) for *_, address in found]

    return lookup


system_lookup = lookups()


def without_frames(error: TreatyError) -> TreatyError:
    """The same error to be remembered: without what it was raised from, which holds on to all that was read until then."""
    return type(error)(error.code, error.message, fix=error.fix)


def is_public(text: str) -> bool:
    """Whether an IP address is one that strangers may send us to: globally reachable unicast, and no way round to an IPv4 one."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        tunnelled = address.sixtofour or address.teredo
        return address in _GLOBAL_UNICAST and address.is_global and not tunnelled
    return address.is_global and not address.is_multicast and not address.is_reserved


class EgressGuard:
    """Keeps its memory in the process; safe for concurrent use on one event loop.

    `lookup` and `clock` (seconds, monotonic) are the system's unless given; `transport` makes what connects to a checked address.
    `interval`: seconds between two requests to a host. `other_ports`: whether a URL may name a port; a registry says no, or
    strangers would say what it connects to.
    """

    def __init__(
        self,
        network: Network,
        *,
        lookup: Lookup = system_lookup,
        clock: Callable[[], float] = time.monotonic,
        transport: Callable[[Address], httpx.AsyncBaseTransport] | None = None,
        interval: float = HOST_INTERVAL,
        other_ports: bool = False,
    ) -> None:
        self._network = network
        self._lookup = lookup
        self._clock = clock
        self._transport = transport or (lambda address: PinnedTransport(address, network.tls))
        self._flights: dict[str, asyncio.Task[bytes]] = {}
        self._failures: dict[str, tuple[float, TreatyError]] = {}
        self._asked: dict[str, float] = {}
        self._interval = interval
        self._other_ports = other_ports

    async def get(self, url: str) -> bytes:
        """The body at `url`. Raises `Refused`, `TooLarge`, `NotFound` or `Unavailable` (`egress.*`)."""
        until, failure = self._failures.get(url, (0.0, None))
        if failure is not None and self._clock() < until:
            raise without_frames(failure)
        flight = self._flights.get(url)
        if flight is None:
            flight = self._flights[url] = asyncio.create_task(self._remembering(url))
            flight.add_done_callback(lambda done: self._landed(url, done))
        return await asyncio.shield(flight)  # one impatient caller must not end it for the others

    def _landed(self, url: str, flight: asyncio.Task[bytes]) -> None:
        del self._flights[url]
        if not flight.cancelled():
            flight.exception()  # everyone who waited may be gone; then nobody else looks at it

    async def _remembering(self, url: str) -> bytes:
        parsed = self._checked(url)
        host = parsed.host
        wait = self._asked.get(host, -math.inf) + self._interval - self._clock()
        if wait > 0:
            raise Unavailable(
                "egress.host-interval",
                f"{host} was asked a moment ago; each host is asked once in {self._interval:.0f} seconds.",
                fix=f"Try again in {wait:.0f} seconds.",
            )
        _remember(self._asked, host, self._clock())
        try:
            async with asyncio.timeout(DEADLINE):
                return await self._fetch(parsed)
        except TimeoutError as error:
            failure: TreatyError = Unavailable("egress.deadline", f"{host} did not answer within {DEADLINE:.0f} seconds.")
            failure.__cause__ = error
        except (httpx.HTTPError, OSError) as error:
            failure = _unreachable(host, error)
            failure.__cause__ = error
        except TreatyError as error:
            failure = error
        _remember(self._failures, url, (self._clock() + FAILURE_LIFETIME, without_frames(failure)))
        raise failure

    async def _fetch(self, url: httpx.URL) -> bytes:
        host = url.host
        address = self._network.resolve.get(host) or await _public_address(host, url.port or 443, self._lookup)
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with (
            httpx.AsyncClient(transport=self._transport(address), timeout=DEADLINE, trust_env=False) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            _check_head(response, host)
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_BODY:
                    raise TooLarge("egress.too-large", f"{host} sent more than {MAX_BODY} bytes.")
            return bytes(body)

    def _checked(self, url: str) -> httpx.URL:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise Refused("egress.url", f"Not a URL: {url[:120]!r}.") from error
        if parsed.scheme != "https" or parsed.userinfo or not is_host(parsed.host):
            raise Refused("egress.url", f"Only https is fetched, from a named host, not {url[:120]!r}.")
        if parsed.port is not None and not self._other_ports:
            raise Refused("egress.url", f"Only https on port 443 is fetched, not {url[:120]!r}.")
        return parsed


async def strangers_network(network: Network, url: str, *, lookup: Lookup | None = None) -> Network:
    """A network that reaches the host of a URL which a stranger named at a public address alone: the one that was checked is the
    one that is used. Hosts that the operator names are reached there, as ever.

    Raises `Refused` (`egress.address`), `Unavailable` (`egress.deadline`, `egress.unreachable`) and `Malformed` (`network.url`).
    """
    host, port = urlsplit(url).hostname or "", network.endpoint(url).port
    if host in network.resolve:
        return network
    try:
        async with asyncio.timeout(DEADLINE):
            address = await _public_address(host, port, lookup or system_lookup)
    except TimeoutError as error:
        raise Unavailable("egress.deadline", f"The address of {host} was not known within {DEADLINE:.0f} seconds.") from error
    except OSError as error:
        raise _unreachable(host, error) from error
    return replace(network, resolve={**network.resolve, host: address})


def _unreachable(host: str, error: Exception) -> Unavailable:
    why = "no name server knows it" if isinstance(error, socket.gaierror) else type(error).__name__
    return Unavailable("egress.unreachable", f"{host} could not be reached: {why}.", fix="See whether the name is right.")


async def _public_address(host: str, port: int, lookup: Lookup) -> Address:
    for ip in await lookup(host):
        if is_public(ip):
            return Address(ip, port)
    raise Refused(
        "egress.address",
        f"{host} has no public address.",
        fix=f"To reach a host of your own network, name it: --resolve {host}=IP:PORT.",
    )


def _check_head(response: httpx.Response, host: str) -> None:
    if response.status_code in (404, 410):
        raise NotFound("egress.not-found", f"{response.url} is not there.")
    if response.is_redirect:
        raise Refused("egress.redirect", f"{host} redirects, which is not followed.", fix="Serve the document at its own URL.")
    if response.status_code != 200:
        raise Unavailable("egress.status", f"{host} answered with status {response.status_code}.")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise Refused("egress.encoding", f"{host} sent an encoded body that was not asked for.")


def _remember(memory: dict[str, _Value], key: str, value: _Value) -> None:
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]  # the oldest
