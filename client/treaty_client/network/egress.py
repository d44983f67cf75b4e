"""The egress guard: fetching a URL that a stranger named.

Whoever sends a statement makes us fetch the document of its DID, so the URL is hostile. The guard fetches `https` on port 443
only, follows no redirect, takes at most 64 KiB, unencoded, within 3 seconds from DNS to the last byte, and connects to the very
address it checked: a public unicast one, as of the one DNS answer it asked for. Concurrent requests for a URL are one fetch; a
failure is remembered for 60 seconds; a host is asked at most once in 10 seconds. Hosts that the operator names with `--resolve`
are reached there and are exempt from the rule on addresses, not from the others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

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


async def system_lookup(host: str) -> list[str]:
    """The addresses of a host, in the system's order of preference. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, 443, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


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
    """

    def __init__(
        self,
        network: Network,
        *,
        lookup: Lookup = system_lookup,
        clock: Callable[[], float] = time.monotonic,
        transport: Callable[[Address], httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        self._network = network
        self._lookup = lookup
        self._clock = clock
        self._transport = transport or (lambda address: PinnedTransport(address, network.tls))
        self._flights: dict[str, asyncio.Task[bytes]] = {}
        self._failures: dict[str, tuple[float, TreatyError]] = {}
        self._asked: dict[str, float] = {}

    async def get(self, url: str) -> bytes:
        """The body at `url`. Raises `Refused`, `TooLarge`, `NotFound` or `Unavailable` (`egress.*`)."""
        until, failure = self._failures.get(url, (0.0, None))
        if failure is not None and self._clock() < until:
            raise type(failure)(failure.code, failure.message, fix=failure.fix)
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
        host = _host_of(url)
        wait = self._asked.get(host, -HOST_INTERVAL) + HOST_INTERVAL - self._clock()
        if wait > 0:
            raise Unavailable(
                "egress.host-interval",
                f"{host} was asked a moment ago; each host is asked once in {HOST_INTERVAL:.0f} seconds.",
                fix=f"Try again in {wait:.0f} seconds.",
            )
        _remember(self._asked, host, self._clock())
        try:
            async with asyncio.timeout(DEADLINE):
                return await self._fetch(url, host)
        except TimeoutError as error:
            failure: TreatyError = Unavailable("egress.deadline", f"{host} did not answer within {DEADLINE:.0f} seconds.")
            failure.__cause__ = error
        except (httpx.HTTPError, OSError) as error:
            failure = Unavailable("egress.unreachable", f"{host} could not be reached: {type(error).__name__}.")
            failure.__cause__ = error
        except TreatyError as error:
            failure = error
        _remember(self._failures, url, (self._clock() + FAILURE_LIFETIME, failure))
        raise failure

    async def _fetch(self, url: str, host: str) -> bytes:
        address = self._network.resolve.get(host) or await self._public_address(host)
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

    async def _public_address(self, host: str) -> Address:
        for ip in await self._lookup(host):
            if is_public(ip):
                return Address(ip, 443)
        raise Refused(
            "egress.address",
            f"{host} has no public address.",
            fix=f"To reach a host of your own network, name it: --resolve {host}=IP:PORT.",
        )


def _host_of(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Refused("egress.url", f"Not a URL: {url[:120]!r}.") from error
    if parsed.scheme != "https" or parsed.port is not None or parsed.userinfo or not is_host(parsed.host):
        raise Refused("egress.url", f"Only https on port 443 is fetched, not {url[:120]!r}.")
    return parsed.host


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
