"""Find the sender's address of requests that pass through reverse proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from treaty_consensus.errors import Malformed

from .codes import SettingsCode

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

sender: ContextVar[str | None] = ContextVar("sender", default=None)
"""The IP address that the current request comes from, if known."""
MAX_HOPS = 32
"""Proxies named in one `X-Forwarded-For`; more are not read."""


@dataclass(frozen=True)
class TrustedProxies:
    """The reverse proxies whose `X-Forwarded-For` is trusted. By default there are none, and the header is ignored."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> TrustedProxies:
        """Parse IP addresses and networks in CIDR notation. Raises `Malformed` (`settings.value`)."""
        networks: list[Network] = []
        for text in texts:
            try:
                networks.append(ipaddress.ip_network(text))
            except ValueError as error:
                raise Malformed(
                    SettingsCode.VALUE,
                    f"Not an address or a network: {text[:80]!r}.",
                    fix="Name the proxy by its IP address, or its network: 192.0.2.7, 10.0.0.0/8, fd00::/8.",
                ) from error
        return cls(tuple(networks))

    def trusts(self, address: str) -> bool:
        """Whether `address` is one of the proxies."""
        return bool(self.networks) and _is_in(address, self.networks)

    def client(self, peer: str | None, forwarded: Iterable[str]) -> str | None:
        """Return the IP address that a request comes from.

        `peer`: the other end of the connection. `forwarded`: the values of all `X-Forwarded-For` headers, in order. Every proxy
        appends the address of its own client. So the list is read from its end while its entries are trusted proxies; the next
        entry is the client. If an entry is not an IP address, the request counts as coming from the proxy after it.
        """
        if peer is None or not self.trusts(peer):
            return peer
        # Without a usable entry the request counts as the proxy's own.
        client = peer
        hops = [hop.strip() for value in forwarded for hop in value.split(",")]
        # From the end: only entries that a trusted proxy appended are true. A client can write any entries before
        # them.
        for hop in reversed(hops[-MAX_HOPS:]):
            address = _address(hop)
            if address is None:
                break
            client = address
            if not self.trusts(client):
                break
        return client


def _address(hop: str) -> str | None:
    """Return the IP address of an entry, without the port and brackets that some proxies add; None when there is none."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        return str(ipaddress.ip_address(hop.partition("%")[0]))
    except ValueError:
        return None


# Called for each request through a proxy. Senders choose addresses, so the memory is bounded.
@lru_cache(maxsize=4_096)
def _is_in(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    # A dual-stack socket shows an IPv4 peer as ::ffff:a.b.c.d.
    if isinstance(parsed, ipaddress.IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    return any(parsed.version == network.version and parsed in network for network in networks)
