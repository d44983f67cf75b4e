"""The egress guard: fetching a URL that a stranger named.

Whoever sends a statement makes us fetch the document of its DID, so the URL is hostile. The guard

- fetches `https` on port 443 only (unless told to take other ports), follows no redirect, and takes at most 64 KiB, unencoded;
- looks the name up once, and connects to the very address that it checked: a public one (`addresses`);
- takes at most 3 seconds for looking up, and from connecting to the last byte, together;
- makes one fetch of concurrent requests for a URL, and remembers a failure for 60 seconds;
- asks a host 10 times at once and then once a second, whichever documents of it are wanted, and a site (an IPv4 address, a /64)
  32 times and then 10 times a second, whichever names lead there. Requests wait for that in a fair queue (`turns`).

The numbers: one request of at most 64 KiB a second is less than one visitor's browser costs a web server, and honest newcomers at
one host are fewer. Many honest hosts share an address of a hosting company, so a site gets more. Without its bound, a thousand
names that lead to one victim would each have a turn of their own.

Hosts that the operator names with `--resolve` are reached there. They are exempt from the rules on addresses and sites, and from
no others. A stranger is not told whether a name exists that leads to no public address: that is one error, and the log has more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from treaty_consensus.did import is_host
from treaty_consensus.errors import NotFound, Refused, TooLarge, TreatyError, Unavailable

from .addresses import host_network, is_public
from .exchange import BoundedClient, Reply
from .hosts import Address, Network, PinnedTransport
from .turns import Turns

MAX_BODY = 64 * 1024
DEADLINE = 3.0
FAILURE_LIFETIME = 60.0
HOST_INTERVAL, HOST_BURST = 1.0, 10
SITE_INTERVAL, SITE_BURST = 0.1, 32
_REMEMBERED = 10_000

_log = logging.getLogger(__name__)

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


class EgressGuard:
    """Keeps its memory in the process; safe for concurrent use on one event loop."""

    def __init__(
        self,
        network: Network,
        *,
        lookup: Lookup = system_lookup,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        transport: Callable[[Address], httpx.AsyncBaseTransport] | None = None,
        deadline: float = DEADLINE,
        interval: float = HOST_INTERVAL,
        other_ports: bool = False,
    ) -> None:
        """`lookup`, `clock` (seconds, monotonic) and `sleep` are the system's unless given; `transport` makes what connects to a
        checked address. `deadline`: seconds for a look-up and the exchange. `interval`: seconds between two requests to a host;
        0 where requests are bounded in another way. `other_ports`: whether a URL may name a port; a registry says no, or
        strangers would say what it connects to."""
        self._network = network
        self._lookup = lookup
        self._clock = clock
        self._transport = transport or (lambda address: PinnedTransport(address, network.tls))
        self._flights: dict[str, asyncio.Task[bytes]] = {}
        self._failures: dict[str, tuple[float, TreatyError]] = {}
        self._deadline = deadline
        self._hosts = Turns(interval=interval, burst=HOST_BURST, clock=clock, sleep=sleep)
        self._sites = Turns(interval=SITE_INTERVAL if interval else 0, burst=SITE_BURST, clock=clock, sleep=sleep)
        self._other_ports = other_ports

    async def get(self, url: str) -> bytes:
        """The body at `url`, for whom `turns.asking_for` says. Raises `Refused`, `TooLarge`, `NotFound` or `Unavailable`
        (`egress.*`)."""
        parsed = self._checked(url)
        url = str(parsed)  # one spelling
        until, failure = self._failures.get(url, (0.0, None))
        if failure is not None and self._clock() < until:
            raise without_frames(failure)
        flight = self._flights.get(url)
        if flight is None:
            flight = self._flights[url] = asyncio.create_task(self._fly(parsed))
            flight.add_done_callback(lambda done: self._landed(url, done))
        else:
            self._hosts.join(parsed.host, url)
        return await asyncio.shield(flight)  # one impatient caller must not end it for the others

    def _landed(self, url: str, flight: asyncio.Task[bytes]) -> None:
        del self._flights[url]
        if not flight.cancelled():
            flight.exception()  # everyone who waited may be gone; then nobody else looks at it

    async def _fly(self, url: httpx.URL) -> bytes:
        """Raises as `get`. That it was not this request's turn is not remembered, unlike other failures."""
        host = url.host
        await self._hosts.take(host, str(url))
        begun = self._clock()
        named = self._network.resolve.get(host)
        with self._remembering(url):
            async with asyncio.timeout(self._deadline):
                address = named or await _public_address(host, url.port or 443, self._lookup)
        left = self._deadline - (self._clock() - begun)
        if named is None:
            await self._sites.take(host_network(address.ip), str(url))
        with self._remembering(url):
            async with asyncio.timeout(left):
                return await self._fetch(url, address)

    @contextmanager
    def _remembering(self, url: httpx.URL) -> Iterator[None]:
        """Whatever fails inside fails as a `TreatyError`, and is remembered."""
        failure: TreatyError
        try:
            yield
            return
        except TimeoutError as error:
            failure = Unavailable("egress.deadline", f"{url.host} did not answer within {self._deadline:g} seconds.")
            failure.__cause__ = error
        except (httpx.HTTPError, OSError) as error:
            failure = _unreachable(url.host, type(error).__name__)
            failure.__cause__ = error
        except TreatyError as error:
            failure = error
        _remember(self._failures, str(url), (self._clock() + FAILURE_LIFETIME, without_frames(failure)))
        raise failure

    async def _fetch(self, url: httpx.URL, address: Address) -> bytes:
        host = url.host
        async with BoundedClient(transport=self._transport(address), trust_env=False) as client:
            request = client.build_request("GET", url, headers={"Accept": "application/json"})
            reply = await client.exchange(request, limit=MAX_BODY)
        _check_head(reply, url)
        if not reply.whole:
            raise TooLarge("egress.too-large", f"{host} sent more than {MAX_BODY} bytes.")
        return reply.body

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

    Raises `Unavailable` (`egress.deadline`, `egress.unreachable`) and `Malformed` (`network.url`).
    """
    host, port = urlsplit(url).hostname or "", network.endpoint(url).port
    if host in network.resolve:
        return network
    try:
        async with asyncio.timeout(DEADLINE):
            address = await _public_address(host, port, lookup or system_lookup)
    except TimeoutError as error:
        raise Unavailable("egress.deadline", f"The address of {host} was not known within {DEADLINE:.0f} seconds.") from error
    return replace(network, resolve={**network.resolve, host: address})


def _unreachable(host: str, why: str) -> Unavailable:
    """One error, whichever way a host is out of reach: strangers must not learn by it which internal names exist."""
    _log.info("%s could not be reached: %s", host, why)
    return Unavailable(
        "egress.unreachable",
        f"{host} could not be reached at a public address.",
        fix=f"See whether the name is right. To reach a host of your own network, name it: --resolve {host}=IP:PORT.",
    )


async def _public_address(host: str, port: int, lookup: Lookup) -> Address:
    """Raises `Unavailable` (`egress.unreachable`)."""
    try:
        found = await lookup(host)
    except TimeoutError:
        raise
    except OSError as error:
        raise _unreachable(host, f"no name server knows it ({type(error).__name__})") from error
    for ip in found:
        if is_public(ip):
            return Address(ip, port)
    raise _unreachable(host, f"no public address among {found}")


def _check_head(reply: Reply, url: httpx.URL) -> None:
    host = url.host
    if reply.status in (404, 410):
        raise NotFound("egress.not-found", f"{url} is not there.")
    if 300 <= reply.status <= 399:
        raise Refused("egress.redirect", f"{host} redirects, which is not followed.", fix="Serve the document at its own URL.")
    if reply.status != 200:
        raise Unavailable("egress.status", f"{host} answered with status {reply.status}.")
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise Refused("egress.encoding", f"{host} sent an encoded body that was not asked for.")


def _remember(memory: dict[str, _Value], key: str, value: _Value) -> None:
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]  # the oldest
