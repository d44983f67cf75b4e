"""Reads fall back to the mirrors of the policy: their order, their times, and the error that names all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from ports import free_port
from signers import domain_signer

from treaty_client.policy import MAX_MIRRORS, Policy
from treaty_client.registries import sources as sources_module
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.sources import Sources
from treaty_consensus import kinds
from treaty_consensus.errors import Malformed, NotFound
from treaty_io.errors import RegistryUnavailable
from treaty_io.network.hosts import Network

NOTE = b"a note"


@asynccontextmanager
async def host(*, status: str = "200 OK", body: bytes = NOTE, silent: bool = False) -> AsyncIterator[tuple[str, list[str]]]:
    """A host that answers each request in this way: its URL, and the first lines of the requests that it got."""
    requests: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        if silent:
            await asyncio.sleep(60)
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", requests
    finally:
        server.close()


def nowhere() -> str:
    """The URL of a port on which nothing listens."""
    return f"http://127.0.0.1:{free_port()}"


async def test_a_read_falls_back_to_the_mirrors_in_their_order() -> None:
    async with host() as (first, requests), host() as (second, not_asked):
        sources = Sources(nowhere(), (first, second))
        async with RegistryClient(sources, Network()) as client:
            assert await client.checkpoint() == NOTE
            assert sources.order()[-1] == sources.registry  # it rests, and is not waited for again
            assert await client.checkpoint() == NOTE
        assert (len(requests), not_asked) == (2, [])


async def test_the_registry_is_asked_first_while_it_answers() -> None:
    async with host() as (registry, requests), host() as (mirror, not_asked):
        async with RegistryClient(Sources(registry, (mirror,)), Network()) as client:
            await client.checkpoint()
        assert (len(requests), not_asked) == (1, [])


async def test_a_silent_registry_costs_a_few_seconds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_client.registries.api.PATIENCE", 0.2)
    async with host(silent=True) as (registry, requests), host() as (mirror, answered):
        async with RegistryClient(Sources(registry, (mirror,)), Network()) as client:
            for _ in range(3):
                assert await client.checkpoint() == NOTE
        assert (len(requests), len(answered)) == (1, 3)


async def test_an_address_that_rested_is_asked_again() -> None:
    now = 0.0
    sources = Sources("https://registry.example", ("https://mirror.example",), clock=lambda: now)
    assert sources.rest("https://registry.example")
    assert sources.order() == ["https://mirror.example", "https://registry.example"]
    now = sources_module.REST
    assert sources.order() == ["https://registry.example", "https://mirror.example"]


async def test_an_error_names_all_addresses() -> None:
    async with host(status="503 Service Unavailable", body=b"") as (mirror, _):
        registry = nowhere()
        async with RegistryClient(Sources(registry, (mirror,)), Network()) as client:
            with pytest.raises(RegistryUnavailable) as refused:
                await client.checkpoint()
    assert refused.value.code == "registry.unreachable"
    assert registry in refused.value.message and mirror in refused.value.message
    assert "registry.unreachable" in refused.value.message and "registry.broken" in refused.value.message


async def test_only_the_registry_can_say_that_there_is_no_such_thing() -> None:
    async with host(status="404 Not Found", body=b"") as (late, _), host() as (other, requests):
        async with RegistryClient(Sources(nowhere(), (late, other)), Network()) as client:
            assert await client.checkpoint() == NOTE
        assert len(requests) == 1
        async with RegistryClient(Sources(late, (other,)), Network()) as client:
            with pytest.raises(NotFound):
                await client.checkpoint()
        assert len(requests) == 1


async def test_a_write_never_goes_to_a_mirror() -> None:
    async with host() as (mirror, requests):
        async with RegistryClient(Sources(nowhere(), (mirror,)), Network()) as client:
            with pytest.raises(RegistryUnavailable):
                await client.submit(domain_signer("alice.example").statement(kinds.Grant("alice.example", "did:wba:bob.example")))
        assert requests == []


@pytest.mark.parametrize(
    ("mirrors", "code"),
    [
        ({"registry.example": "https://mirror.example"}, "policy.file"),
        ({"registry.example": ["https://mirror.example"] * (MAX_MIRRORS + 1)}, "policy.file"),
        ({"registry.example": ["http://mirror.example"]}, "registry.url"),
        ({"Registry.Example": ["https://mirror.example"]}, "policy.file"),
    ],
)
def test_impossible_mirrors_are_refused(mirrors: dict[str, list[str]], code: str) -> None:
    with pytest.raises(Malformed) as refused:
        Policy(mirrors=mirrors)
    assert refused.value.code == code
