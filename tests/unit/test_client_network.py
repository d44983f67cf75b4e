"""Reaching hosts: explicit addresses, the names that TLS must prove, and pools that are not shared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
import requests
from cyclopts import App
from loopback import Loopback, answering

from treaty_command.context import Options
from treaty_consensus.errors import Malformed, NotFound
from treaty_io.network.hosts import Address, Network
from treaty_io.network.requests_adapter import session_setup


@pytest.mark.parametrize(
    "text, host, address",
    [
        ("shop.example=127.0.0.1:9443", "shop.example", Address("127.0.0.1", 9443)),
        ("shop.example=[::1]:80", "shop.example", Address("::1", 80)),
    ],
)
def test_a_resolve_argument_is_read(text: str, host: str, address: Address) -> None:
    assert Network.parse([text]).resolve == {host: address}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shop.example",
        "shop.example=",
        "=127.0.0.1:1",
        "a=b:1",
        "a=127.0.0.1",
        "a=127.0.0.1:+1",
        "a=127.0.0.1:65536",
        "A=127.0.0.1:1",
    ],
)
def test_what_is_no_resolve_argument_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="HOST=IP:PORT"):
        Network.parse([text])


def test_the_environment_describes_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREATY_RESOLVE", raising=False)
    monkeypatch.delenv("TREATY_CA", raising=False)
    assert Network.from_environment() == Network()
    monkeypatch.setenv("TREATY_RESOLVE", "shop.example=127.0.0.1:9443  buyer.example=[::1]:80")
    monkeypatch.setenv("TREATY_CA", str(tmp_path / "ca.pem"))
    addresses = {"shop.example": Address("127.0.0.1", 9443), "buyer.example": Address("::1", 80)}
    assert Network.from_environment() == Network(addresses, tmp_path / "ca.pem")
    monkeypatch.setenv("TREATY_RESOLVE", "shop.example")
    with pytest.raises(Malformed, match="HOST=IP:PORT"):
        Network.from_environment()


def test_commands_take_the_network_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks: list[Network] = []

    def command(*, options: Options = Options()) -> None:
        networks.append(options.network)

    monkeypatch.setenv("TREATY_RESOLVE", "shop.example=127.0.0.1:9443 buyer.example=[::1]:80")
    monkeypatch.setenv("TREATY_CA", str(tmp_path / "ca.pem"))
    app = App(result_action="return_value")
    app.default(command)
    app([])
    app(["--resolve", "shop.example=127.0.0.1:1", "--ca", "other.pem"])
    assert networks == [Network.from_environment(), Network({"shop.example": Address("127.0.0.1", 1)}, Path("other.pem"))]


def test_a_missing_or_broken_authority_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        _ = Network(ca=tmp_path / "none.pem").tls
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(Malformed):
        _ = Network(ca=tmp_path / "bad.pem").tls


async def test_a_host_is_reached_at_its_address_and_proves_its_name(tmp_path: Path) -> None:
    async with Loopback(tmp_path).serving(answering(b"hello"), "shop.example") as loopback, loopback.network().client() as client:
        reply = await client.get("https://shop.example:8443/path?q=1")
    assert reply.content == b"hello"
    assert loopback.seen[0].startswith("GET /path?q=1 HTTP/1.1\r\nHost: shop.example:8443\r\n")


async def test_a_server_that_cannot_prove_the_name_is_refused(tmp_path: Path) -> None:
    loopback = Loopback(tmp_path)
    async with (
        loopback.serving(answering(b"hello"), "shop.example", certified=("evil.example",)),
        loopback.network().client() as client,
    ):
        with pytest.raises(httpx.ConnectError):
            await client.get("https://shop.example/")
    assert loopback.seen == []


async def test_without_the_authority_nothing_is_believed(tmp_path: Path) -> None:
    loopback = Loopback(tmp_path)
    async with loopback.serving(answering(b"hello"), "shop.example"), Network(loopback.addresses).client() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("https://shop.example/")


async def test_two_hosts_at_one_address_share_no_connection(tmp_path: Path) -> None:
    loopback = Loopback(tmp_path)
    async with (
        loopback.serving(answering(b"hello"), "a.example", "b.example", certified=("a.example",)),
        loopback.network().client() as client,
    ):
        for _ in range(2):
            assert (await client.get("https://a.example/")).content == b"hello"
        assert loopback.connections == 1
        with pytest.raises(httpx.ConnectError):
            await client.get("https://b.example/")


async def test_redirects_are_not_followed(tmp_path: Path) -> None:
    moved = answering(b"", status="302 Found", headers="Location: https://other.example/\r\n")
    async with Loopback(tmp_path).serving(moved, "shop.example") as loopback, loopback.network().client() as client:
        assert (await client.get("https://shop.example/")).status_code == 302


def test_the_endpoint_of_a_websocket(tmp_path: Path) -> None:
    network = Network({"shop.example": Address("127.0.0.1", 9443)})
    assert network.endpoint("ws://shop.example:9000/x") == ("127.0.0.1", 9443, None, None)
    assert network.endpoint("ws://other.example/x") == ("other.example", 80, None, None)
    secure = network.endpoint("wss://shop.example")
    assert (secure.host, secure.port, secure.tls, secure.server_name) == ("127.0.0.1", 9443, network.tls, "shop.example")


@pytest.mark.parametrize("url", ["", "ftp://a.example", "wss://", "wss://a.example:99999", "wss://user@a.example", "//a.example"])
def test_what_is_no_url_has_no_endpoint(url: str) -> None:
    with pytest.raises(Malformed):
        Network().endpoint(url)


async def test_a_requests_session_reaches_hosts_alike(tmp_path: Path) -> None:
    async with Loopback(tmp_path).serving(answering(b"hello"), "shop.example") as loopback:
        with requests.Session() as session:
            session_setup(loopback.network())(session)
            reply = await asyncio.to_thread(session.get, "https://shop.example/path", timeout=5)
    assert reply.content == b"hello"
    assert "\r\nHost: shop.example\r\n" in loopback.seen[0]


async def test_a_requests_session_wants_the_name_proved_too(tmp_path: Path) -> None:
    loopback = Loopback(tmp_path)
    async with loopback.serving(answering(b"hello"), "shop.example", certified=("evil.example",)):
        with requests.Session() as session:
            session_setup(loopback.network())(session)
            with pytest.raises(requests.exceptions.SSLError):
                await asyncio.to_thread(session.get, "https://shop.example/path", timeout=5)
