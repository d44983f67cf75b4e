"""Reverse DNS names of UCP and MCP: the nine cases of UCP's derivation algorithm, and URLs that parsers read in two ways."""

from __future__ import annotations

import pytest

from treaty_consensus.reverse_dns import https_host, is_schema_of, owns


@pytest.mark.parametrize(
    ("name", "host", "accepted"),
    [
        ("dev.ucp.shopping.checkout", "ucp.dev", True),
        ("dev.ucp.shopping.checkout", "shopping.ucp.dev", True),
        ("com.example.payments.installments", "example.com", True),
        ("com.example.pay", "pay.example.com", True),
        ("com.example.pay", "example.com", True),
        ("com.example.pay", "evil.example", False),
        ("dev.ucp.shopping.checkout", "evil.example", False),
        ("com.examplecorp.pay", "example.com", False),
        ("com.example.pay", "cdn.example.com", False),
    ],
)
def test_the_nine_cases_of_ucp(name: str, host: str, accepted: bool) -> None:
    assert is_schema_of(f"https://{host}/schemas/x.json", name) is accepted
    assert owns(host, name) is accepted


@pytest.mark.parametrize(
    "url",
    [
        "http://ucp.dev/x.json",
        "https://user:pass@ucp.dev/x.json",
        "https://ucp.dev@evil.example/x.json",
        "https://203.0.113.10/x.json",
        "https://[2001:db8::1]/x.json",
        "https://0x7f.1/x.json",
        "https://localhost/x.json",
        "https:///ucp.dev/x.json",
        "https:ucp.dev/x.json",
        "https:\\\\ucp.dev/x.json",
        "https://evil.example\\.ucp.dev/x.json",
        "https://ucp.dev\\x.json",
        " https://ucp.dev/x.json",
        "https://ucp.dev/x.json\n",
        "https://ucp\t.dev/x.json",
        "https://ucp%2edev/x.json",
        "https://\u24b8cp.dev/x.json",
        "https://ucp..dev/x.json",
        "https://-ucp.dev/x.json",
        "https://ucp.dev:port/x.json",
        f"https://{'a.' * 200}dev/x.json",
    ],
)
def test_a_url_that_could_have_another_host_has_none(url: str) -> None:
    assert https_host(url) is None
    assert not is_schema_of(url, "dev.ucp.shopping.checkout")


def test_case_dot_and_port_make_no_difference() -> None:
    for url in ("https://UCP.dev/x", "https://ucp.dev./x", "https://ucp.dev:8443/x", "https://ucp.dev?x", "https://ucp.dev"):
        assert https_host(url) == "ucp.dev"
    assert owns("xn--bcher-kva.example", "example.xn--bcher-kva.pay")


@pytest.mark.parametrize(
    "name", ["", "com", "com.", ".com.example", "com..example", "com.example.\u00fc", "com.example.p ay", "urn:com.example"]
)
def test_another_text_is_no_name(name: str) -> None:
    assert not owns("example.com", name)
