"""Where requests come from: which headers are believed."""

from __future__ import annotations

import pytest

from treaty_consensus.errors import Malformed
from treaty_registry.networks import MAX_HOPS, TrustedProxies

PROXIES = TrustedProxies.parse(["10.0.0.0/8", "192.0.2.7", "fd00::/8"])


@pytest.mark.threat(80)
@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["198.51.100.1"], "198.51.100.1"),
        ("10.1.2.3", ["1.1.1.1, 198.51.100.1"], "198.51.100.1"),
        ("10.1.2.3", ["1.1.1.1, 198.51.100.1, 192.0.2.7"], "198.51.100.1"),
        ("10.1.2.3", ["1.1.1.1", "198.51.100.1", "10.9.9.9"], "198.51.100.1"),
        ("10.1.2.3", ["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        ("10.1.2.3", ["198.51.100.1, unknown"], "10.1.2.3"),
        ("10.1.2.3", ["198.51.100.1, <script>, 192.0.2.7"], "192.0.2.7"),
        ("10.1.2.3", [""], "10.1.2.3"),
        ("10.1.2.3", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.1.2.3", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        ("::ffff:10.1.2.3", ["198.51.100.1"], "198.51.100.1"),
        (None, ["198.51.100.1"], None),
    ],
)
def test_the_client_is_the_first_that_no_trusted_proxy_is(peer: str | None, forwarded: list[str], client: str | None) -> None:
    assert PROXIES.client(peer, forwarded) == client


@pytest.mark.threat(80)
def test_by_default_no_header_is_believed() -> None:
    assert TrustedProxies().client("127.0.0.1", ["198.51.100.1"]) == "127.0.0.1"
    assert not TrustedProxies().trusts("127.0.0.1")


@pytest.mark.threat(80)
def test_a_long_list_is_read_from_its_end() -> None:
    many = ", ".join(["198.51.100.1"] + ["10.0.0.1"] * (2 * MAX_HOPS))
    assert PROXIES.client("10.1.2.3", [many]) == "10.0.0.1"


@pytest.mark.parametrize("text", ["", "proxy.example", "10.0.0.1/8", "300.0.0.1", "10.0.0.0/33"])
def test_what_is_no_network(text: str) -> None:
    with pytest.raises(Malformed) as error:
        TrustedProxies.parse(["10.0.0.0/8", text])
    assert error.value.code == "settings.value" and error.value.fix
