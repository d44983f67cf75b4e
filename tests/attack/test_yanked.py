"""A publisher took something back, and a registry or an old cache would still hand it out: step 9."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fetching import fetcher, refused_at
from meetings import Party, Tap, party
from simulated_registry import ALICE, TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_agent.sessions import provision
from treaty_agent.transport import memory
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import kinds
from treaty_consensus.errors import NotFound, TreatyError
from treaty_consensus.handler import HandlerPackage
from treaty_handler import Effect, Event


def handlers(registry: SimulatedRegistry) -> list[kinds.Handler]:
    return [statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Handler)]


@pytest.mark.threat(33)
@pytest.mark.parametrize("state", ["yanked", "revoked"])
async def test_a_protocol_that_was_taken_back_is_refused(tmp_path: Path, state: str) -> None:
    registry = with_echo()
    registry.publish("2.0")
    registry.add(kinds.Status(uri_of(), state, successor=uri_of("2.0")), ALICE)  # type: ignore[arg-type]
    failure = await refused_at(9, registry, tmp_path)
    assert failure.code == f"status.{state}"
    assert uri_of("2.0") in failure.message


@pytest.mark.parametrize("state", ["yanked", "revoked"])
async def test_the_only_handler_that_was_taken_back_is_refused(tmp_path: Path, state: str) -> None:
    registry = with_echo()
    registry.add(kinds.Status(uri_of(), state, wheel=handlers(registry)[0].wheel.sha256), ALICE)  # type: ignore[arg-type]
    assert (await refused_at(9, registry, tmp_path)).code == f"status.{state}"


async def test_an_older_handler_replaces_a_withdrawn_one(tmp_path: Path) -> None:
    registry = with_echo()
    registry.attach(release="2")
    registry.add(kinds.Status(uri_of(), "yanked", wheel=handlers(registry)[1].wheel.sha256), ALICE)
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(uri_of())).package.version == "1"


async def test_the_newest_word_holds(tmp_path: Path) -> None:
    registry = with_echo()
    registry.add(kinds.Status(uri_of(), "yanked"), ALICE)
    registry.add(kinds.Status(uri_of(), "deprecated", successor=uri_of("2.0")), ALICE)
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of())
    assert verified.warnings == (f"{uri_of()} is deprecated by its publisher. Its successor is {uri_of('2.0')}.",)


async def test_a_withdrawn_wheel_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.withdrawn.add(handlers(registry)[0].wheel.sha256)
    assert (await refused_at(9, registry, tmp_path)).code == "blob.withdrawn"


@pytest.mark.threat(33)
async def test_a_cache_notices_once_its_proof_is_too_old(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path, max_age=600) as agent:
        verified = await agent.fetch(uri_of())
        registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
        registry.now += 600
        assert agent.cached(verified.hash) == verified
        registry.now += 1
        assert agent.cached(verified.hash) is None
    await refused_at_again(registry, tmp_path)


async def refused_at_again(registry: SimulatedRegistry, home: Path) -> None:
    assert (await refused_at(9, registry, home, max_age=600)).code == "status.revoked"


# An agent that provides it

_addresses = itertools.count()
BOTH = (uri_of(), uri_of("2.0"))


class Idle:
    """A session of `echo`, whose package has no code: nothing is called in it."""

    kept = None

    async def handle(self, event: Event) -> Sequence[Effect]:
        return []

    async def close(self) -> None:
        pass


async def open_idle(package: HandlerPackage, role: str, **options: Any) -> Idle:
    return Idle()


def two_agents(registry: SimulatedRegistry, home: Path, **policy: Any) -> tuple[Party, Party, Fetcher]:
    """One that provides two versions, one that provides nothing, and where the first one has its protocols from."""
    registry.publish("2.0")
    registry.attach("2.0")
    source = fetcher(registry, home / "protocols", **policy)
    provider = party("provider", home, protocols=cast(Any, source))
    for address in BOTH:

        @provider.agent.provides(address, role="provider")
        async def echo(text: str = "") -> str:
            return text

    visitor = party("visitor", home, protocols=cast(Any, fetcher(registry, home / "of-visitor")))
    for agent in (provider, visitor):
        agent.runtime.open = open_idle  # type: ignore[method-assign]
    return provider, visitor, source


async def agreed(provider: Party, visitor: Party, *offered: str) -> str:
    """The URI by which two agents speak, of those offered, where nothing that they remember shortens the way."""
    near, far = memory.pair()
    serving = asyncio.create_task(provider.agent.accept(far))
    try:
        async with visitor.agent.connect_over(Tap(near, f"memory:{next(_addresses)}"), protocols=offered) as session:
            return session.protocol
    finally:
        await near.close()
        await serving


async def refused_between(provider: Party, visitor: Party, *offered: str) -> str:
    with pytest.raises(TreatyError) as failure:
        await agreed(provider, visitor, *offered)
    return failure.value.code


@pytest.mark.threat(33)
@pytest.mark.parametrize("state", ["yanked", "revoked"])
async def test_an_agent_stops_serving_a_withdrawn_version_alone(tmp_path: Path, state: str) -> None:
    registry = with_echo()
    provider, visitor, source = two_agents(registry, tmp_path)
    await provider.agent.prepare()
    assert await agreed(provider, visitor, *BOTH) == BOTH[0]
    registry.add(kinds.Status(uri_of(), state), ALICE)  # type: ignore[arg-type]
    assert await agreed(provider, visitor, *BOTH) == BOTH[0], "neither agent has heard of it"
    with pytest.raises(VerificationFailed):
        await source.fetch(uri_of(), fresh=True)
    assert await agreed(provider, visitor, *BOTH) == BOTH[1]
    assert await refused_between(provider, visitor, uri_of()) == "session.no-common-protocol"
    assert list(provider.agent.unserved) == [uri_of()]
    assert provider.names().count("unserved") >= 1
    await provider.agent.aclose()
    await visitor.agent.aclose()


@pytest.mark.threat(33)
async def test_a_session_start_can_reveal_a_withdrawn_version(tmp_path: Path) -> None:
    registry = with_echo()
    provider, visitor, _ = two_agents(registry, tmp_path, max_age=600)
    await provider.agent.prepare()
    assert await agreed(provider, visitor, *BOTH) == BOTH[0]
    registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
    registry.now += 601  # the provider has to ask again; the visitor may still speak it
    await refused_between(provider, visitor, uri_of())
    assert provider.agent.unserved[uri_of()].code == "status.revoked"
    assert await agreed(provider, visitor, *BOTH) == BOTH[1]
    await provider.agent.aclose()
    await visitor.agent.aclose()


@pytest.mark.threat(33)
async def test_a_running_agent_ends_withdrawn_sessions_alone(tmp_path: Path) -> None:
    registry = with_echo()
    provider, visitor, _ = two_agents(registry, tmp_path, max_age=600)
    registry.now -= 400  # of 600: the proofs are due to be renewed
    await provider.agent.prepare()
    wires = [memory.pair() for _ in BOTH]
    serving = [asyncio.create_task(provider.agent.accept(far)) for _, far in wires]
    async with AsyncExitStack() as sessions:
        first, second = [
            await sessions.enter_async_context(visitor.agent.connect_over(Tap(near, f"memory:{uri}"), protocols=[uri]))
            for (near, _), uri in zip(wires, BOTH, strict=True)
        ]
        registry.add(kinds.Status(BOTH[0], "revoked"), ALICE)
        provider.agent.context.served.max_age = 600
        await provision.renew(provider.agent.context)
        await serving[0]
        assert first.is_over
        assert not second.is_over
    await asyncio.gather(*serving)
    assert list(provider.agent.unserved) == [BOTH[0]]
    assert [event.protocol for event in provider.events if event.name == "revoked"] == [BOTH[0]]
    await provider.agent.aclose()
    await visitor.agent.aclose()


@pytest.mark.threat(33)
async def test_a_client_by_topic_is_told_that_it_was_taken_back(tmp_path: Path) -> None:
    registry = with_echo()
    registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
    visitor = party("visitor", tmp_path, protocols=cast(Any, fetcher(registry, tmp_path / "of-visitor")))
    near, _ = memory.pair()
    with pytest.raises(NotFound) as error:
        async with visitor.agent.connect_over(near, topic=TOPIC):
            pass
    assert error.value.code == "agent.no-candidates"
    assert f"{uri_of()} was revoked" in error.value.message
    await visitor.agent.aclose()


async def test_an_absent_registry_withdraws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(request: httpx.Request) -> tuple[int, bytes]:
        raise httpx.ConnectError("nobody listens", request=request)

    registry = with_echo()
    provider, visitor, _ = two_agents(registry, tmp_path, max_age=600)
    await provider.agent.prepare()
    assert await agreed(provider, visitor, *BOTH) == BOTH[0]
    registry.now += 601
    with monkeypatch.context() as patch:
        patch.setattr(registry, "answer", away)
        await refused_between(provider, visitor, uri_of())
    assert not provider.agent.unserved
    assert await agreed(provider, visitor, *BOTH) == BOTH[0]
    await provider.agent.aclose()
    await visitor.agent.aclose()
