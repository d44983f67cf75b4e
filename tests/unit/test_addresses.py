"""Which addresses are public: every row of the table, its first and last address, and what stands beside it."""

from __future__ import annotations

import ipaddress

import pytest

from treaty_io.network.addresses import REFUSED, host_network, is_public, site_network

ROWS = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.0.0/29 192.0.0.8/32 192.0.0.9/32
192.0.0.10/32 192.0.0.170/32 192.0.0.171/32 192.0.2.0/24 192.88.99.0/24 192.88.99.2/32 192.168.0.0/16 198.18.0.0/15
198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 255.255.255.255/32
::1/128 ::/128 ::/96 ::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001::/32 2001:1::1/128
2001:1::2/128 2001:1::3/128 2001:2::/48 2001:3::/32 2001:4:112::/48 2001:10::/28 2001:20::/28 2001:30::/28 2001:db8::/32 2002::/16
3fff::/20 5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8
"""


@pytest.mark.threat(66)
@pytest.mark.parametrize("block", sorted({*ROWS.split(), *REFUSED}))
def test_no_address_of_a_row_is_public(block: str) -> None:
    network = ipaddress.ip_network(block)
    middle = network[network.num_addresses // 2]
    for address in (network[0], middle, network[-1]):
        assert not is_public(str(address)), address


BESIDE = """
1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 169.253.255.255 172.15.255.255 172.32.0.0
192.0.1.0 192.0.3.0 192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 203.0.114.0
223.255.255.255 8.8.8.8 192.31.196.1 192.52.193.1 192.175.48.1 2000:: 2001:200:: 2001:db7:ffff::1 2001:db9:: 2003::
2606:2800:220:1:248:1893:25c8:1946 2620:4f:8000::1 3ffe:ffff::1 3fff:1000:: 3fff:ffff::1
"""


@pytest.mark.parametrize("address", BESIDE.split())
def test_what_stands_beside_a_row_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("inside", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "8.8.8.8"])
def test_an_ipv4_address_inside_an_ipv6_one_is_refused(inside: str) -> None:
    number = int(ipaddress.IPv4Address(inside))
    forms = {
        "compatible": number,
        "mapped": 0xFFFF << 32 | number,
        "NAT64": 0x64FF9B << 96 | number,
        "NAT64, local": 0x64FF9B0001 << 80 | number,
        "6to4": 0x2002 << 112 | number << 80 | 1,
        "Teredo": 0x20010000 << 96 | 0x4136E378 << 64 | 0xFFFFFFFF ^ number,
    }
    for form, value in forms.items():
        assert not is_public(str(ipaddress.IPv6Address(value))), form


def test_nothing_outside_of_global_unicast_is_public() -> None:
    for first in range(0x10000 >> 4):
        address = ipaddress.IPv6Address(first << 116 | 0xABCD)
        assert not is_public(str(address)) or 0x200 <= first < 0x400


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "2130706433", "0x7f.0.0.1", "1.2.3.4.5", "::1::"])
def test_what_is_no_address_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        is_public(text)


@pytest.mark.parametrize(
    ("address", "host", "site"),
    [
        ("192.0.2.1", "192.0.2.1/32", "192.0.2.0/24"),
        ("::ffff:192.0.2.1", "192.0.2.1/32", "192.0.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/64", "fe80::/48"),
    ],
)
def test_who_is_one_party(address: str, host: str, site: str) -> None:
    assert (host_network(address), site_network(address)) == (host, site)
