"""The egress guard: what strangers cannot make us fetch."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from loopback import Loopback, answering, response
from rejections import rejection

from treaty_consensus.errors import NotFound, Refused, TooLarge, TreatyError, Unavailable
from treaty_io.network import egress
from treaty_io.network.addresses import is_public
from treaty_io.network.egress import HOST_BURST, HOST_INTERVAL, MAX_BODY, SITE_BURST, SITE_INTERVAL, EgressGuard
from treaty_io.network.hosts import Address, Network
from treaty_io.network.turns import asking_for

URL = "https://alice.example/.well-known/did.json"


@dataclass
class World:
    """A clock that tests move, a DNS that they write, and the servers behind it."""

    now: float = 1000.0
    names: dict[str, list[str]] = field(default_factory=lambda: {"alice.example": ["93.184.216.34"]})
    asked: list[str] = field(default_factory=list)
    connected: list[Address] = field(default_factory=list)
    answer: Callable[[httpx.Request], Awaitable[httpx.Response]] | None = None

    async def lookup(self, host: str) -> list[str]:
        self.asked.append(host)
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]

    def transport(self, address: Address) -> httpx.AsyncBaseTransport:
        self.connected.append(address)

        async def answer(request: httpx.Request) -> httpx.Response:
            if self.answer is not None:
                return await self.answer(request)
            return httpx.Response(200, stream=httpx.ByteStream(b"{}"))

        return httpx.MockTransport(answer)

    def guard(self, network: Network | None = None) -> EgressGuard:
        return EgressGuard(
            network or Network(), lookup=self.lookup, clock=lambda: self.now, sleep=self.sleep, transport=self.transport
        )

    async def sleep(self, seconds: float) -> None:
        """Time passes at once, when nothing else is to be done."""
        for _ in range(20):
            await asyncio.sleep(0)
        self.now += seconds


async def refusal(guard: EgressGuard, url: str = URL) -> TreatyError:
    with pytest.raises(TreatyError) as error:
        await guard.get(url)
    return error.value


@pytest.mark.threat(66)
async def test_the_address_that_was_checked_is_the_one_that_is_used() -> None:
    world = World()
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])

    async def rebinding(host: str) -> list[str]:
        return next(answers)

    guard = EgressGuard(Network(), lookup=rebinding, clock=lambda: world.now, transport=world.transport)
    assert await guard.get(URL) == b"{}"
    assert world.connected == [Address("93.184.216.34", 443)]
    assert (await refusal(guard)).code == "egress.unreachable"
    assert len(world.connected) == 1


NOT_PUBLIC = """
127.0.0.1 10.0.0.1 172.16.0.1 192.168.0.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 240.0.0.1 255.255.255.255 192.0.2.1
198.18.0.1 ::1 :: fe80::1 fc00::1 fec0::1 ff02::1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 64:ff9b::7f00:1 2002:7f00:1::1 2002:808:808::1
2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:db8::1
"""


@pytest.mark.threat(66)
@pytest.mark.parametrize("address", NOT_PUBLIC.split())
async def test_an_address_that_is_not_public_is_not_fetched(address: str) -> None:
    world = World(names={"alice.example": [address]})
    assert not is_public(address)
    assert (await refusal(world.guard())).code == "egress.unreachable"
    assert world.connected == []


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946"])
async def test_a_public_address_is_fetched(address: str) -> None:
    world = World(names={"alice.example": ["10.0.0.1", address]})
    assert await world.guard().get(URL) == b"{}"
    assert world.connected == [Address(address, 443)]


@pytest.mark.parametrize(
    "url",
    [
        "http://alice.example/", "https://alice.example:8443/", "https://user@alice.example/", "https://user:x@alice.example/",
        "ftp://alice.example/", "file:///etc/passwd", "https://", "alice.example", "https://[::1]/", "https://ALICE.example\\@x/",
    ],
)  # fmt: skip
async def test_a_url_that_is_not_plain_https_is_not_fetched(url: str) -> None:
    world = World()
    assert (await refusal(world.guard(), url)).code == "network.url"
    assert world.asked == [] and world.connected == []


async def test_an_ip_address_as_host_is_checked_like_any_other() -> None:
    world = World(names={"127.0.0.1": ["127.0.0.1"]})
    assert (await refusal(world.guard(), "https://127.0.0.1/did.json")).code == "egress.unreachable"


@pytest.mark.threat(68)
@pytest.mark.parametrize(
    "reply, family, code",
    [
        (
            httpx.Response(302, headers={"Location": "https://127.0.0.1/"}, stream=httpx.ByteStream(b"")),
            Refused,
            "egress.answer: redirects",
        ),
        (httpx.Response(301, stream=httpx.ByteStream(b"")), Refused, "egress.answer: redirects"),
        (httpx.Response(404, stream=httpx.ByteStream(b"")), NotFound, "egress.not-found"),
        (httpx.Response(410, stream=httpx.ByteStream(b"")), NotFound, "egress.not-found"),
        (httpx.Response(204, stream=httpx.ByteStream(b"")), Unavailable, "egress.unreachable"),
        (httpx.Response(500, stream=httpx.ByteStream(b"")), Unavailable, "egress.unreachable"),
        (
            httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"")),
            Refused,
            "egress.answer: encoded",
        ),
        (httpx.Response(200, stream=httpx.ByteStream(b"x" * (MAX_BODY + 1))), TooLarge, "egress.answer: more than"),
    ],
)
async def test_an_answer_that_is_not_a_plain_small_body_is_refused(reply: httpx.Response, family: type, code: str) -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        return reply

    error = await refusal(World(answer=answer).guard())
    assert (type(error), rejection(error, code)) == (family, code)


async def test_a_body_of_just_the_cap_is_taken() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(b"x" * MAX_BODY))

    assert len(await World(answer=answer).guard().get(URL)) == MAX_BODY


async def test_a_host_that_never_finishes_is_given_up() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(3600)
        raise AssertionError

    world = World(answer=answer)
    guard = EgressGuard(Network(), lookup=world.lookup, transport=world.transport, deadline=0.05)
    assert (await refusal(guard)).code == "egress.unreachable"


@pytest.mark.threat(67)
async def test_a_stranger_does_not_learn_of_internal_names() -> None:
    world = World(names={"inside.example": ["10.0.0.1"]})
    inside = await refusal(world.guard(), "https://inside.example/did.json")
    nobody = await refusal(world.guard(), "https://nobody.example/did.json")
    errors = [(type(error), error.code, str(error).replace("inside", "nobody")) for error in (inside, nobody)]
    assert errors[0] == errors[1] and "public" in str(nobody)


async def test_absent_names_and_silent_hosts_are_unavailable() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    assert (await refusal(World(names={}).guard())).code == "egress.unreachable"
    assert (await refusal(World(answer=answer).guard())).code == "egress.unreachable"


async def test_concurrent_requests_share_one_fetch() -> None:
    world, go = World(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        await go.wait()
        return httpx.Response(200, stream=httpx.ByteStream(b"once"))

    world.answer = answer
    guard = world.guard()
    waiting = [asyncio.create_task(guard.get(URL)) for _ in range(5)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    go.set()
    assert await asyncio.gather(*waiting[1:]) == [b"once"] * 4
    assert len(world.connected) == 1


async def test_a_failure_is_remembered_for_a_moment_only() -> None:
    assert 1 <= egress.FAILURE_LIFETIME <= 2
    world = World(names={})
    guard = world.guard()
    first = await refusal(guard)
    world.names["alice.example"] = ["8.8.8.8"]
    world.now += egress.FAILURE_LIFETIME - 1
    second = await refusal(guard)
    assert (second.code, second.message, world.asked) == (first.code, first.message, ["alice.example"])
    assert second is not first
    world.now += 1
    assert await guard.get(URL) == b"{}"


async def served_at(world: World, urls: list[str], asker: str = "198.51.100.7") -> list[float]:
    """When each URL was answered, all of them asked for at once."""
    guard = world.guard()

    async def served(url: str) -> float:
        await guard.get(url)
        return world.now

    with asking_for(asker):
        return await asyncio.gather(*map(served, urls))


@pytest.mark.threat(69)
async def test_requests_to_a_host_are_limited_to_one_a_second() -> None:
    times = await served_at(World(), [f"https://alice.example/users/{number}/did.json" for number in range(HOST_BURST + 5)])
    assert times == [1000.0] * HOST_BURST + [1000.0 + HOST_INTERVAL * number for number in range(1, 6)]


async def test_a_port_a_spelling_or_another_method_is_no_other_host() -> None:
    world = World()
    urls = [
        f"https://{host}/{number}" for number in range(10) for host in ("alice.example", "ALICE.example", "alice.example:443")
    ]
    assert max(await served_at(world, urls)) == 1000.0, "three spellings of ten URLs"
    assert len(world.connected) == 10


@pytest.mark.threat(69)
async def test_many_names_of_one_address_share_its_turns() -> None:
    for address in ("203.0.114.7", "2606:2800:220:1::{}"):
        names = {f"n{number}.example": [address.format(number)] for number in range(SITE_BURST + 20)}
        times = await served_at(World(names=names), [f"https://{name}/did.json" for name in names])
        assert sum(at == 1000.0 for at in times) == SITE_BURST
        assert max(times) == pytest.approx(1000.0 + 20 * SITE_INTERVAL)


async def test_that_it_was_not_their_turn_is_not_remembered_of_a_url() -> None:
    world = World()
    guard = world.guard()
    urls = [f"https://alice.example/{number}" for number in range(HOST_BURST + 100)]
    outcomes = await asyncio.gather(*map(guard.get, urls), return_exceptions=True)
    refused = [url for url, outcome in zip(urls, outcomes, strict=True) if isinstance(outcome, TreatyError)]
    assert {outcome.code for outcome in outcomes if isinstance(outcome, TreatyError)} == {"egress.unreachable"}
    assert 0 < len(refused) < 100
    world.now += 60
    assert await guard.get(refused[0]) == b"{}"


async def test_failures_are_remembered_of_a_bounded_number_of_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "_REMEMBERED", 3)
    world = World(names={})
    guard = world.guard()
    for number in range(4):
        await refusal(guard, f"https://host-{number}.example/")
    await refusal(guard, "https://host-3.example/")
    assert len(world.asked) == 4, "the newest are"
    await refusal(guard, "https://host-0.example/")
    assert len(world.asked) == 5, "the oldest is not"


@pytest.mark.deep
async def test_a_remembered_failure_holds_no_bytes() -> None:
    answers: list[weakref.ref[httpx.Response]] = []
    world = World()

    async def answer(request: httpx.Request) -> httpx.Response:
        response = httpx.Response(200, stream=httpx.ByteStream(b"x" * (MAX_BODY + 1)))
        answers.append(weakref.ref(response))
        return response

    world.answer = answer
    guard = world.guard()
    for _ in range(2):
        assert (await refusal(guard)).code == "egress.answer"
    for _ in range(4):
        gc.collect()
        await asyncio.sleep(0)  # generators are closed by the event loop
    assert [response() for response in answers] == [None]


@pytest.mark.threat(95)
async def test_silent_name_servers_delay_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    strangers, others = egress.lookups(), egress.lookups()

    def getaddrinfo(host: str, *_: object, **__: object) -> list[object]:
        if host.endswith("evil.example"):
            over.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    waiting = [asyncio.ensure_future(strangers(f"{number}.evil.example")) for number in range(64)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(int, "1") == 1
            assert await others("alice.example") == []
        assert not any(task.done() for task in waiting)
    finally:
        over.set()
        await asyncio.gather(*waiting)


async def test_a_host_named_by_the_operator_is_reached_over_tls(tmp_path: Path) -> None:
    async with Loopback(tmp_path).serving(answering(b'{"id":"x"}'), "alice.example") as loopback:
        guard = EgressGuard(loopback.network(), clock=lambda: 0.0)
        assert await guard.get(URL) == b'{"id":"x"}'
        assert "\r\nAccept-Encoding: identity\r\n" in loopback.seen[0]
        assert (await refusal(guard, "https://alice.example:8443/")).code == "network.url"


async def test_a_slow_body_is_cut_off_over_real_tls(tmp_path: Path) -> None:
    async def endless(head: str) -> bytes:
        return response(b"x" * (4 * MAX_BODY))

    async with Loopback(tmp_path).serving(endless, "alice.example") as loopback:
        assert (await refusal(EgressGuard(loopback.network()))).code == "egress.answer"


@pytest.mark.parametrize("url", ["ws://stranger.example:8080/a", "http://stranger.example/a", "https://stranger.example:9"])
async def test_where_a_stranger_says_that_an_agent_is_has_to_be_public(url: str) -> None:
    world = World(names={"stranger.example": ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1"]})
    with pytest.raises(Unavailable) as refusal:
        await egress.strangers_network(Network(), url, lookup=world.lookup)
    assert refusal.value.code == "egress.unreachable"
    world.names["stranger.example"].append("93.184.216.34")
    reached = (await egress.strangers_network(Network(), url, lookup=world.lookup)).endpoint(url)
    assert (reached.host, reached.port) == ("93.184.216.34", Network().endpoint(url).port)
    assert reached.server_name == ("stranger.example" if url.startswith("https") else None)


async def test_a_named_hosts_address_need_not_be_public() -> None:
    named = Network({"stranger.example": Address("127.0.0.1", 9443)})
    assert await egress.strangers_network(named, "ws://stranger.example/", lookup=World().lookup) is named
    with pytest.raises(Unavailable) as failure:
        await egress.strangers_network(Network(), "ws://unknown.example/", lookup=World().lookup)
    assert failure.value.code == "egress.unreachable"
