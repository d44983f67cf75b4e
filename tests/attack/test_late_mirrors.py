"""Threat: a mirror that an agent falls back to is late, or lies. The rules of freshness and proof are those of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from fetching import known_in
from hypothesis import given
from hypothesis import strategies as st
from lying import leave_out
from simulated_registry import ALICE, NAME, SimulatedRegistry, uri_of, with_echo

from treaty_client.policy import Policy
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import kinds
from treaty_consensus.errors import TreatyError
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network

FIRST, SECOND = "https://first.example", "https://second.example"


class Hosts(Network):
    """A network of registries and mirrors by their host. Every other host is down. `asked`: the hosts, in order."""

    def __init__(self, hosts: Mapping[str, SimulatedRegistry]) -> None:
        super().__init__()
        object.__setattr__(self, "hosts", hosts)
        object.__setattr__(self, "asked", [])

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        return BoundedClient(transport=httpx.MockTransport(self._answer))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        hosts: Any = self
        hosts.asked.append(request.url.host)
        registry = hosts.hosts.get(request.url.host)
        if registry is None:
            raise httpx.ConnectError("nobody listens", request=request)
        status, body = registry.answer(request)
        return httpx.Response(status, stream=httpx.ByteStream(body))


def agent(home: Path, hosts: Mapping[str, SimulatedRegistry], now: int, *, max_age: int = 600) -> tuple[Fetcher, Any]:
    next(iter(hosts.values())).trusted_in(home)
    network = Hosts(hosts)
    policy = Policy(publishers=(ALICE.did,), max_age=max_age, mirrors={NAME.origin: (FIRST, SECOND)})
    return Fetcher(home, policy, network, clock=lambda: float(now)), network


def late(registry: SimulatedRegistry, seconds: int) -> SimulatedRegistry:
    """A copy whose clock stopped some seconds ago."""
    copy = registry.copy()
    copy.cosigned = registry.now - seconds
    return copy


async def test_a_protocol_is_fetched_from_a_mirror(tmp_path: Path) -> None:
    registry = with_echo()
    fetcher, network = agent(tmp_path, {"first.example": registry}, registry.now)
    async with fetcher:
        assert (await fetcher.fetch(uri_of())).publisher == ALICE.did
    assert network.asked[:2] == ["registry.example", "first.example"]


@pytest.mark.threat(304)
async def test_of_a_late_mirror_the_next_one_is_asked(tmp_path: Path) -> None:
    registry = with_echo()
    fetcher, network = agent(tmp_path, {"first.example": late(registry, 601), "second.example": registry}, registry.now)
    async with fetcher:
        assert (await fetcher.fetch(uri_of())).age(registry.now) == 0
    assert network.asked[:3] == ["registry.example", "first.example", "second.example"]


@pytest.mark.threat(304)
async def test_late_mirrors_are_refused_as_a_late_registry_is(tmp_path: Path) -> None:
    registry = with_echo()
    mirrors = {"first.example": late(registry, 601), "second.example": late(registry, 700)}
    fetcher, _ = agent(tmp_path, mirrors, registry.now)
    async with fetcher:
        with pytest.raises(VerificationFailed) as refused:
            await fetcher.fetch(uri_of())
    assert (int(refused.value.step), refused.value.code) == (2, "checkpoint.stale")


async def test_a_late_registry_is_not_passed_over(tmp_path: Path) -> None:
    registry = with_echo()
    hosts = {"registry.example": late(registry, 601), "first.example": registry}
    fetcher, network = agent(tmp_path, hosts, registry.now)
    async with fetcher:
        with pytest.raises(VerificationFailed):
            await fetcher.fetch(uri_of())
    assert set(network.asked) == {"registry.example"}


@pytest.mark.threat(304)
async def test_a_mirror_that_signs_with_another_key_is_refused(tmp_path: Path) -> None:
    registry, liar = with_echo(), with_echo()
    forged = liar.checkpoint().replace(b"registry.example", b"registri.example")
    liar.checkpoint = lambda: forged  # type: ignore[method-assign]
    fetcher, _ = agent(tmp_path, {"first.example": liar}, registry.now)
    async with fetcher:
        with pytest.raises(TreatyError) as refused:
            await fetcher.fetch(uri_of())
    assert refused.value.code.startswith("note.")


@pytest.mark.threat(304)
@pytest.mark.parametrize("forge", ["key", "nothing", "leaf"])
async def test_of_a_mirror_that_lies_the_next_one_is_asked(tmp_path: Path, forge: str) -> None:
    registry, liar = with_echo(), with_echo()
    if forge == "key":
        forged = liar.checkpoint().replace(b"registry.example", b"registri.example")
        liar.checkpoint = lambda: forged  # type: ignore[method-assign]
    else:
        answer = liar.answer
        changed = (lambda body: b"{}") if forge == "nothing" else (lambda body: body[:-40] + bytes(1) + body[-39:])
        liar.answer = lambda request: (answer(request)[0], changed(answer(request)[1]))  # type: ignore[method-assign]
    fetcher, network = agent(tmp_path, {"first.example": liar, "second.example": registry}, registry.now)
    async with fetcher:
        assert (await fetcher.fetch(uri_of())).publisher == ALICE.did
    assert network.asked[:3] == ["registry.example", "first.example", "second.example"]


PROBLEMS = st.builds(
    lambda code: b'{"code":"%b","detail":"Gone."}' % code.encode(), st.sampled_from(["blob.withdrawn", "protocol.unknown", "a"])
)
BODIES = st.one_of(st.binary(max_size=200), PROBLEMS, st.sampled_from([b"", b"null", b"{}", bytes(17 << 20)]))


@pytest.mark.threat(304)
@given(st.integers(200, 599), BODIES, st.sampled_from([".bundle", "/blobs/", ""]))
async def test_no_answer_of_a_mirror_keeps_a_protocol_from_an_agent(
    tmp_path_factory: pytest.TempPathFactory, status: int, body: bytes, paths: str
) -> None:
    """The registry is down, and the second mirror is honest. `paths`: what the first one lies about."""
    registry, liar = with_echo(), with_echo()
    honest = liar.answer
    liar.answer = lambda request: (status, body) if paths in request.url.path else honest(request)  # type: ignore[method-assign]
    hosts = {"first.example": liar, "second.example": registry}
    fetcher, _ = agent(tmp_path_factory.mktemp("home"), hosts, registry.now)
    async with fetcher:
        assert (await fetcher.fetch(uri_of())).publisher == ALICE.did


@pytest.mark.threat(304)
async def test_a_mirror_without_a_leaf_is_passed_over(tmp_path: Path) -> None:
    registry = with_echo()
    fetcher, _ = agent(tmp_path, {"first.example": registry}, registry.now)
    async with fetcher:
        await fetcher.fetch(uri_of())
    names, liar = known_in(tmp_path), registry.copy()
    leave_out(liar, kinds.Handler)
    fetcher, network = agent(tmp_path, {"second.example": registry, "first.example": liar}, registry.now + 700)
    async with fetcher:
        registry.cosigned = liar.cosigned = registry.now + 700
        assert (await fetcher.fetch(uri_of())).publisher == ALICE.did
    assert network.asked[:3] == ["registry.example", "first.example", "second.example"]
    assert known_in(tmp_path) == names
