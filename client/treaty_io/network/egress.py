"""Fetch URLs that strangers named, without harm to this network or to other hosts.

The sender of a statement makes us fetch the document of its DID, so the URL may be hostile. The guard

- fetches `https` on port 443 only (unless `other_ports`), follows no redirect, and accepts at most 64 KiB without encoding;
- looks the name up once, and connects to the address that it checked, which must be public (`addresses`);
- takes at most 3 seconds for the look-up and the exchange together;
- makes one fetch for concurrent requests of a URL, and remembers a failure for 2 seconds;
- asks a host 10 times at once and then once a second, and a site (an IPv4 address, or a /64) 32 times at once and then 10 times a
  second, for all its names together. Further requests wait in a fair queue (`turns`).

The reasons of the numbers: one request of at most 64 KiB a second costs a web server less than one visitor does, and honest new
DIDs at one host are rarer. A site gets more turns, because many honest hosts share an address of a hosting company. It has a
limit too. Otherwise a thousand names that lead to one victim would have a thousand turns.

Hosts in `--resolve` are reached at the given address. They are exempt from the rules on addresses and sites, but from no other
rule. One error covers all names without a public address, so that strangers cannot learn the internal names; the log has the
cause.
"""

from __future__ import annotations

import asyncio
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

from ..codes import EgressCode, NetworkCode
from ..line_limit import limited_logger
from .addresses import host_network, is_public
from .exchange import BoundedClient, HttpReply
from .hosts import Address, Network
from .turns import Turns

MAX_BODY = 64 * 1024
# A sender waits for this fetch. Web servers answer a static file within a second.
DEADLINE = 3.0
# A failure says nothing about the next moment, so it is kept for as long only as spares the host a burst: 1 request in 2 seconds.
FAILURE_LIFETIME = 2.0
HOST_INTERVAL, HOST_BURST = 1.0, 10
SITE_INTERVAL, SITE_BURST = 0.1, 32
_REMEMBERED = 10_000

_log = limited_logger(__name__)

_Value = TypeVar("_Value")
Lookup = Callable[[str], Awaitable[list[str]]]


def lookups() -> Lookup:
    """Return a function that looks up the addresses of a host, in the system's order of preference. It raises OSError.

    It has 16 threads of its own: a slow name server holds a thread long after the deadline, and must not block other work.
    """
    # A name server that does not answer takes some 10 seconds; 16 threads then serve 1.6 names a second.
    threads = ThreadPoolExecutor(16, "lookup")

    async def lookup(host: str) -> list[str]:
        ask = partial(socket.getaddrinfo, host, 443, type=socket.SOCK_STREAM)
        addresses = await asyncio.get_running_loop().run_in_executor(threads, ask)
        return [str(address[0]) for *_, address in addresses]

    return lookup


system_lookup = lookups()


def without_frames(error: TreatyError) -> TreatyError:
    """Copy an error without its cause and traceback, which would keep all data of the failed fetch in memory."""
    return type(error)(error.code, error.message, fix=error.fix)


class EgressGuard:
    """Fetch URLs by the rules above. For one event loop; safe for concurrent use. It keeps its state in memory only."""

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
        failure_lifetime: float = FAILURE_LIFETIME,
    ) -> None:
        """Set the bounds.

        `lookup`, `clock` (monotonic seconds), `sleep` and `transport` (connects to a checked address): replaceable for tests.
        `deadline`: seconds for a look-up and the exchange. `interval`: seconds between two requests to a host; 0 if the caller
        bounds the requests. `other_ports`: whether a URL may name a port. A registry forbids it, because strangers could then
        make it connect to other services. `failure_lifetime`: seconds for which a failure is remembered; 0 if the caller bounds
        the retries.
        """
        self._network, self._failure_lifetime = network, failure_lifetime
        self._lookup = lookup
        self._clock = clock
        self._transport = transport or network.transport
        # One fetch for many callers, so that a thousand requests of one DID are one request to its host.
        self._flights: dict[str, asyncio.Task[HttpReply]] = {}
        self._failures: dict[str, tuple[float, TreatyError]] = {}
        self._deadline = deadline
        self._hosts = Turns(interval=interval, burst=HOST_BURST, clock=clock, sleep=sleep)
        self._sites = Turns(interval=SITE_INTERVAL if interval else 0, burst=SITE_BURST, clock=clock, sleep=sleep)
        self._other_ports = other_ports

    async def get(self, url: str) -> bytes:
        """Return the body at `url`. The request counts for the asker of `turns.asking_for`.

        Raises `Refused`, `TooLarge`, `NotFound` or `Unavailable` (`egress.*`).
        """
        return (await self.exchange(url)).body

    async def exchange(self, url: str, *, etag: str = "") -> HttpReply:
        """Return the answer at `url`, with its headers. `etag`: of a known body; the status is 304 if it is still current.
        Raises as `get`."""
        parsed = self.check_url(url)
        url = str(parsed)  # one spelling, so that equal URLs share a fetch
        until, failure = self._failures.get(url, (0.0, None))
        if failure is not None and self._clock() < until:
            raise without_frames(failure)
        name = f"{url} {etag}"
        flight = self._flights.get(name)
        if flight is None:
            flight = self._flights[name] = asyncio.create_task(self._fly(parsed, etag))
            flight.add_done_callback(lambda done: self._landed(name, done))
        else:
            self._hosts.join(parsed.host, url)
        return await asyncio.shield(flight)  # a cancelled caller must not end it for the others

    def _landed(self, name: str, flight: asyncio.Task[HttpReply]) -> None:
        del self._flights[name]
        if not flight.cancelled():
            flight.exception()  # marks it as retrieved: all callers may be gone

    async def _fly(self, url: httpx.URL, etag: str) -> HttpReply:
        """Fetch a URL. Raises the errors of `get`. A refused turn is not remembered, unlike other failures."""
        host = url.host
        await self._hosts.take(host, str(url))
        begun = self._clock()
        named = self._network.resolve.get(host)
        with self._remembering(url):
            async with asyncio.timeout(self._deadline):
                address = named or await _public_address(host, url.port or 443, self._lookup)
        # The wait for the site's turn is not the host's fault, so it does not count.
        left = self._deadline - (self._clock() - begun)
        if named is None:
            await self._sites.take(host_network(address.ip), str(url))
        with self._remembering(url):
            async with asyncio.timeout(left):
                return await self._fetch(url, address, etag)

    @contextmanager
    def _remembering(self, url: httpx.URL) -> Iterator[None]:
        """Turn every failure inside into a `TreatyError`, and remember it."""
        failure: TreatyError
        try:
            yield
            return
        except TimeoutError as error:
            failure = Unavailable(EgressCode.UNREACHABLE, f"{url.host} did not answer within {self._deadline:g} seconds.")
            failure.__cause__ = error
        except (httpx.HTTPError, OSError) as error:
            failure = _unreachable(url.host, type(error).__name__)
            failure.__cause__ = error
        except TreatyError as error:
            failure = error
        _remember(self._failures, str(url), (self._clock() + self._failure_lifetime, without_frames(failure)))
        raise failure

    async def _fetch(self, url: httpx.URL, address: Address, etag: str) -> HttpReply:
        host = url.host
        async with BoundedClient(transport=self._transport(address), trust_env=False) as client:
            condition = {"If-None-Match": etag} if etag else {}
            request = client.build_request("GET", url, headers={"Accept": "application/json", **condition})
            reply = await client.exchange(request, limit=MAX_BODY)
        if etag and reply.status == 304:
            return reply
        _check_head(reply, url)
        if not reply.whole:
            raise TooLarge(EgressCode.ANSWER, f"{host} sent more than {MAX_BODY} bytes.")
        return reply

    def check_url(self, url: str) -> httpx.URL:
        """Parse a URL that this guard would fetch. Raises `Refused` (`network.url`)."""
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise Refused(NetworkCode.URL, f"Not a URL: {url[:120]!r}.") from error
        if parsed.scheme != "https" or parsed.userinfo or not is_host(parsed.host):
            raise Refused(NetworkCode.URL, f"Only https is fetched, from a named host, not {url[:120]!r}.")
        if parsed.port is not None and not self._other_ports:
            raise Refused(NetworkCode.URL, f"Only https on port 443 is fetched, not {url[:120]!r}.")
        return parsed


async def strangers_network(network: Network, url: str, *, lookup: Lookup | None = None) -> Network:
    """Return a network that reaches the host of a stranger's URL at one checked public address.

    A host in `resolve` keeps its address. Raises `Unavailable` (`egress.unreachable`) and `Malformed`
    (`network.url`).
    """
    host, port = urlsplit(url).hostname or "", network.endpoint(url).port
    if host in network.resolve:
        return network
    try:
        async with asyncio.timeout(DEADLINE):
            address = await _public_address(host, port, lookup or system_lookup)
    except TimeoutError as error:
        raise Unavailable(
            EgressCode.UNREACHABLE, f"The address of {host} was not known within {DEADLINE:.0f} seconds."
        ) from error
    return replace(network, resolve={**network.resolve, host: address})


def _unreachable(host: str, why: str) -> Unavailable:
    """Return the same error for every cause, so that strangers cannot learn which internal names exist. Log the cause."""
    _log.info("%s could not be reached: %s", host, why)
    return Unavailable(
        EgressCode.UNREACHABLE,
        f"{host} could not be reached at a public address.",
        fix=f"Check the name. To reach a host of your own network, use --resolve {host}=IP:PORT.",
    )


async def _public_address(host: str, port: int, lookup: Lookup) -> Address:
    """Return the first public address of a host. Raises `Unavailable` (`egress.unreachable`)."""
    try:
        addresses = await lookup(host)
    except TimeoutError:
        raise
    except OSError as error:
        raise _unreachable(host, f"no name server knows it ({type(error).__name__})") from error
    for ip in addresses:
        if is_public(ip):
            return Address(ip, port)
    raise _unreachable(host, f"no public address among {addresses}")


def _check_head(reply: HttpReply, url: httpx.URL) -> None:
    host = url.host
    if reply.status in (404, 410):
        raise NotFound(EgressCode.NOT_FOUND, f"There is no document at {url}.")
    if 300 <= reply.status <= 399:
        raise Refused(
            EgressCode.ANSWER, f"{host} redirects, and redirects are not followed.", fix="Serve the document at its own URL."
        )
    if reply.status != 200:
        raise Unavailable(EgressCode.UNREACHABLE, f"{host} answered with status {reply.status}.")
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise Refused(EgressCode.ANSWER, f"{host} sent an encoded body without being asked to.")


def _remember(memory: dict[str, _Value], key: str, value: _Value) -> None:
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]  # the oldest
