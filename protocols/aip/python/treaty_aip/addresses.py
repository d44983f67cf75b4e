"""The addresses that a gateway connects to, which others name when they register.

A gateway that dialled any address would send a stranger's bytes into networks that only the gateway reaches. So a node may name
an address of its own: one of the IP address from which it registers, where all loopback addresses are one. Other addresses
have to be in a network that the gateway's operator allows.

A name is looked up once, when a node registers, and the checked IP address is dialled. A later answer of the name server is not
asked for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import unquote

from treaty_agent import OperationError
from treaty_io.network.egress import Lookup, lookups

MAX_KEPT = 1024
"""Checked addresses before those of forgotten nodes are dropped: four times the nodes of a gateway, so that it is rare."""
LOOKUP_SECONDS = 3.0
"""As for the documents of DIDs: a registration waits for the look-up."""
_HOST_PORT = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]{1,253})):(?P<port>[1-9][0-9]{0,4})")

_Ip = IPv4Address | IPv6Address


class HostPort(NamedTuple):
    """The two parts of an address."""

    host: str
    port: int


def parse_address(address: str) -> HostPort:
    """Return host and port of "HOST:PORT", "[IPV6]:PORT" or "http://HOST:PORT". Raises `OperationError` (400).

    gRPC knows more forms, which name a socket in the file system, a name server or a whole list. They are refused.
    """
    match = _HOST_PORT.fullmatch(plain_address(address))
    if match is None or int(match["port"]) > 65535:
        raise OperationError(400, "An address is HOST:PORT, such as agent.example:50052, with a port from 1 to 65535.")
    return HostPort(match["six"] or match["host"], int(match["port"]))


def plain_address(address: str, *, tls: bool = True) -> str:
    """Return "HOST:PORT" for the "http://HOST:PORT" of the source's examples, and any other text as it is.

    `tls`: whether "https://" is true. Raises `OperationError` (400) where it is not: TLS is a matter of `Security` alone.
    """
    scheme, _, rest = address.partition("://")
    if scheme not in ("http", "https"):
        return address
    if scheme == "https" and not tls:
        raise OperationError(400, f"{address} asks for TLS, which the Security of this side does not have.")
    return rest.removesuffix("/")


def resolved_at_call(address: str) -> str:
    """Return the target to dial for an address that the application trusts. Raises `OperationError` (400)."""
    parse_address(address)
    # The scheme is written out: in "unix:1" gRPC would find the name of a socket.
    return f"dns:///{plain_address(address)}"


def caller_ip(peer: str) -> _Ip | None:
    """Return the IP address in gRPC's text for the other end of a connection; None for another kind of connection."""
    kind, _, rest = unquote(peer).partition(":")
    host = rest.rpartition(":")[0].strip("[]")
    return _plain(host) if kind in ("ipv4", "ipv6") else None


class CheckedAddress(NamedTuple):
    """An address of a node: the `target` to dial, and the `registrant`, a proved DID or an IP address."""

    target: str
    registrant: str


class NodeAddresses:
    """The checked addresses of a gateway's nodes. For one event loop."""

    def __init__(self, networks: Sequence[str], named: Callable[[], Iterable[str]], lookup: Lookup | None = None) -> None:
        """Know no address yet.

        `networks`: allowed for every node, such as "10.1.0.0/16". `named`: returns the addresses of the registered nodes.
        `lookup`: of names. Raises `OperationError` (400) for a text that is no network.
        """
        try:
            self._networks: list[IPv4Network | IPv6Network] = [ip_network(each) for each in networks]
        except ValueError as error:
            raise OperationError(400, f"A network is written like 10.1.0.0/16: {error}") from error
        # With threads of its own: names that are slow to look up hold up registrations alone.
        self._named, self._lookup = named, lookup or lookups()
        self._kept: dict[str, CheckedAddress] = {}

    async def check(self, address: str, caller: _Ip | None) -> str:
        """Return the target to dial for an address that a caller names as its own.

        Raises `OperationError`: 400 for a text that is no address, 403 for an address that the caller may not
        name or that is not found, 409 for another spelling of a registered node's address.
        """
        host, port = parse_address(address)
        for ip in await self._ips(host):
            if _same_machine(ip, caller) or any(ip in network for network in self._networks):
                target = f"ipv4:{ip}:{port}" if ip.version == 4 else f"ipv6:[{ip}]:{port}"
                self._check_free(address, target)
                return target
        # One error for a name that is not found and for one in a foreign network: strangers learn no internal names.
        raise OperationError(
            403,
            "The address is not the caller's own. A node names the IP address from which it registers, or one in the gateway's "
            "allowed_networks.",
        )

    def _check_free(self, address: str, target: str) -> None:
        named = self.named()
        if len(self._kept) >= MAX_KEPT:
            self._kept = {each: entry for each, entry in self._kept.items() if each in named}
        if any(entry.target == target and each in named for each, entry in self._kept.items() if each != address):
            raise OperationError(409, "A node with this address is registered.")

    def named(self) -> set[str]:
        """Return the addresses of the registered nodes."""
        return set(self._named())

    def keep(self, address: str, target: str, registrant: str = "") -> None:
        """Dial this target for an address from now on. The registration was accepted."""
        self._kept[address] = CheckedAddress(target, registrant)

    def is_of(self, address: str, registrant: str) -> bool:
        """Return whether this caller has registered the address."""
        return address in self._kept and self._kept[address].registrant == registrant

    def target(self, address: str) -> str:
        """Return the target that was kept for an address. Raises `OperationError` (403) if there is none."""
        if address not in self._kept:
            raise OperationError(403, "This address was not checked.")
        return self._kept[address].target

    async def _ips(self, host: str) -> list[_Ip]:
        literal = _plain(host)
        if literal is not None:
            return [literal]
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                addresses = await self._lookup(host)
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            return []
        return [ip for ip in map(_plain, dict.fromkeys(addresses)) if ip is not None]


def _plain(host: str) -> _Ip | None:
    """Return the IP address in a text, or None. An IPv4 address inside an IPv6 address is that IPv4 address."""
    try:
        ip = ip_address(host)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def _same_machine(ip: _Ip, caller: _Ip | None) -> bool:
    return caller is not None and (ip == caller or (ip.is_loopback and caller.is_loopback))
