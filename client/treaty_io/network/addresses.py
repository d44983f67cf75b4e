"""Decide whether an IP address is public, so that strangers may send this process to it.

The table is written out, because Python's own table (`ipaddress`) changes from release to release. Its sources are

    IANA IPv4 Special-Purpose Address Registry     https://www.iana.org/assignments/iana-ipv4-special-registry
    IANA IPv6 Special-Purpose Address Registry     https://www.iana.org/assignments/iana-ipv6-special-registry

in the state of 2025. It has every block that is not globally reachable, or not marked so. The two blocks of protocol assignments
(192.0.0.0/24, 2001::/23) hold some anycast services but no hosts, so they are refused completely. Multicast is refused, and so
are all blocks with an IPv4 address inside the address (mapped, NAT64, 6to4, Teredo). Of IPv6, only 2000::/3 is global unicast
(IANA IPv6 Global Unicast Address Assignments). A network's own translation prefix (RFC 6052) cannot be recognized.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

REFUSED: dict[str, str] = {
    "0.0.0.0/8": "this network (RFC 791)",
    "10.0.0.0/8": "private use (RFC 1918)",
    "100.64.0.0/10": "shared address space (RFC 6598)",
    "127.0.0.0/8": "loopback (RFC 1122)",
    "169.254.0.0/16": "link local (RFC 3927)",
    "172.16.0.0/12": "private use (RFC 1918)",
    "192.0.0.0/24": "IETF protocol assignments (RFC 6890)",
    "192.0.2.0/24": "documentation (RFC 5737)",
    "192.88.99.0/24": "6to4 relay anycast, deprecated (RFC 7526); 6a44 relay anycast (RFC 6751)",
    "192.168.0.0/16": "private use (RFC 1918)",
    "198.18.0.0/15": "benchmarking (RFC 2544)",
    "198.51.100.0/24": "documentation (RFC 5737)",
    "203.0.113.0/24": "documentation (RFC 5737)",
    "224.0.0.0/4": "multicast (RFC 5771)",
    "240.0.0.0/4": "reserved (RFC 1112), and limited broadcast (RFC 8190)",
    "::/128": "unspecified (RFC 4291)",
    "::1/128": "loopback (RFC 4291)",
    "::/96": "IPv4-compatible, deprecated (RFC 4291)",
    "::ffff:0:0/96": "IPv4-mapped (RFC 4291)",
    "64:ff9b::/96": "IPv4-IPv6 translation (RFC 6052)",
    "64:ff9b:1::/48": "IPv4-IPv6 translation (RFC 8215)",
    "100::/64": "discard only (RFC 6666)",
    "100:0:0:1::/64": "dummy prefix (RFC 9780)",
    "2001::/23": "IETF protocol assignments (RFC 2928): Teredo, benchmarking, ORCHID and others",
    "2001:db8::/32": "documentation (RFC 3849)",
    "2002::/16": "6to4 (RFC 3056)",
    "3fff::/20": "documentation (RFC 9637)",
    "5f00::/16": "segment routing (RFC 9602)",
    "fc00::/7": "unique local (RFC 4193)",
    "fe80::/10": "link local (RFC 4291)",
    "fec0::/10": "site local, deprecated (RFC 3879)",
    "ff00::/8": "multicast (RFC 4291)",
}

_REFUSED_4 = [ipaddress.IPv4Network(block) for block in REFUSED if ":" not in block]
_REFUSED_6 = [ipaddress.IPv6Network(block) for block in REFUSED if ":" in block]
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")


def is_public(text: str) -> bool:
    """Return whether an IP address is globally reachable unicast without an IPv4 address inside. Raises ValueError."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in block for block in _REFUSED_4)
    return address in _GLOBAL_UNICAST and not any(address in block for block in _REFUSED_6)


@lru_cache(maxsize=16_384)
def host_network(text: str) -> str:
    """Return the network whose addresses one host can use: an IPv4 address, or an IPv6 /64. Raises ValueError."""
    return _network(text, 32, 64)


@lru_cache(maxsize=16_384)
def site_network(text: str) -> str:
    """Return the network that one party commonly has: an IPv4 /24, or an IPv6 /48. Raises ValueError."""
    return _network(text, 24, 48)


def _network(text: str, prefix_4: int, prefix_6: int) -> str:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return str(ipaddress.ip_network((address, prefix_4 if address.version == 4 else prefix_6), strict=False))
