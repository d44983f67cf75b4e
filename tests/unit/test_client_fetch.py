"""Fetching: what is asked, what is kept, and when nothing needs asking."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fetching import fetcher, kept_in, known_in, refused_at
from simulated_registry import ALICE, BOB, NAME, TOPIC, SimulatedRegistry, match_of, uri_of, with_echo

from treaty_client.policy import Policy
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.store import Lockfile
from treaty_client.protocols.topics import ranked
from treaty_client.protocols.verification.steps import Step, VerificationFailed
from treaty_client.protocols.verification.topic import TopicView
from treaty_consensus import kinds
from treaty_consensus.canonical import b64encode, hex_digest
from treaty_consensus.errors import NotFound, Unavailable
from treaty_consensus.log.checkpoint import open_checkpoint

LINE = uri_of().rpartition("/")[0]


def wheel_path(registry: SimulatedRegistry) -> str:
    body = next(statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Handler))
    return f"GET /blobs/sha256/{body.wheel.sha256}"


BUNDLE = "GET /protocols/alice.example/echo/1.0.bundle"


async def test_a_cold_fetch_is_two_requests_and_keeps_everything(tmp_path: Path) -> None:
    registry = with_echo()
    steps: list[Step] = []
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of(), progress=lambda step, detail: steps.append(step))
        assert agent.cached(verified.hash) is verified
        assert await agent.fetch(uri_of()) is verified
    assert registry.requests == [BUNDLE, wheel_path(registry)]
    assert steps == list(Step)
    locked = Lockfile(tmp_path).read()[LINE]
    assert (locked.publisher, locked.tenure, locked.signer.identity) == (ALICE.did, 1, ALICE.did)
    assert (locked.versions["1.0"].document, locked.versions["1.0"].wheel) == (verified.hash, verified.package.digest)
    assert open_checkpoint(agent.registries.get(NAME.origin).seen or b"", NAME.key).checkpoint.size == registry.size


async def test_another_process_asks_nothing_while_the_proof_is_young(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        first = await agent.fetch(uri_of())
    registry.requests.clear()
    async with fetcher(registry, tmp_path, down=True) as agent:
        assert agent.cached(first.hash) == first
        assert await agent.fetch(uri_of()) == first
        assert agent.cached("0" * 64) is None
    assert registry.requests == []


async def test_a_warm_fetch_asks_for_the_bundle_alone(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path, max_age=120) as agent:
        first = await agent.fetch(uri_of())
        registry.requests.clear()
        registry.now += 121
        assert agent.cached(first.hash) is None
        second = await agent.fetch(uri_of())
    assert registry.requests == [BUNDLE]
    assert second.wheel == first.wheel
    assert second.checkpoint.time == registry.now
    stored = {path.split("/")[-1] for path in kept_in(tmp_path) if path.startswith("store")}
    assert stored == {first.package.digest, hex_digest(second.bundle)}, "the old proof is discarded"


async def test_whoever_wants_it_fresh_asks_the_registry(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
        registry.requests.clear()
        registry.now += 5
        assert (await agent.fetch(uri_of(), fresh=True)).checkpoint.time == registry.now
        assert registry.requests == [BUNDLE]
    registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
    async with fetcher(registry, tmp_path) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of(), fresh=True)
    assert failure.value.step == 9


async def test_a_policy_that_changed_is_asked_anew(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of())
    async with fetcher(registry, tmp_path, publishers=(BOB,)) as agent:
        assert agent.cached(verified.hash) is None
    await refused_at(6, registry, tmp_path, publishers=(BOB,))


async def test_many_at_once_are_one_fetch(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        fetched = await asyncio.gather(*(agent.fetch(uri_of()) for _ in range(8)))
    assert all(verified is fetched[0] for verified in fetched)
    assert registry.requests == [BUNDLE, wheel_path(registry)]


async def test_many_processes_of_one_home_agree(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    registry.attach("2.0")
    agents = [fetcher(registry, tmp_path) for _ in range(6)]
    uris = [uri_of(), uri_of("2.0")] * 3
    fetched = await asyncio.gather(*(agent.fetch(uri) for agent, uri in zip(agents, uris, strict=True)))
    await asyncio.gather(*(agent.aclose() for agent in agents))
    assert [verified.uri for verified in fetched] == uris
    assert set(Lockfile(tmp_path).read()[LINE].versions) == {"1.0", "2.0"}


async def test_what_another_process_saw_meanwhile_is_compared_too(tmp_path: Path) -> None:
    """A second process sees one side of a fork while this one is verifying the other."""
    registry = with_echo()
    fork = registry.rewritten(5, registry.leaves[4])
    async with fetcher(registry, tmp_path) as agent:

        def meanwhile(path: str, body: bytes) -> bytes:
            if path.endswith(".bundle"):
                agent.registries.advance(NAME.origin, None, fork.checkpoint())
            return body

        registry.tamper = meanwhile
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of())
    assert (failure.value.step, failure.value.code) == (2, "log.consistency")
    assert Lockfile(tmp_path).read() == {}


async def test_a_registry_that_is_down_changes_nothing(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path, down=True) as agent:
        before = kept_in(tmp_path)
        with pytest.raises(Unavailable):
            await agent.fetch(uri_of())
        with pytest.raises(Unavailable):
            await agent.candidates(TOPIC)
    assert kept_in(tmp_path) == before


async def test_a_registry_that_is_not_trusted_is_not_asked(tmp_path: Path) -> None:
    registry = with_echo()
    async with Fetcher(tmp_path, Policy([ALICE.did]), registry.network()) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of())
    assert (failure.value.step, failure.value.code) == (1, "registry.not-trusted")
    assert "treaty trust add" in failure.value.fix
    assert registry.requests == [] and kept_in(tmp_path) == {}


async def test_a_registry_that_the_policy_does_not_admit_is_not_asked(tmp_path: Path) -> None:
    registry = with_echo()
    failure = await refused_at(1, registry, tmp_path, registries=["other.example"])
    assert failure.code == "policy.refused"
    assert registry.requests == []


async def test_a_protocol_that_is_not_there_fails_step_one(tmp_path: Path) -> None:
    assert (await refused_at(1, with_echo(), tmp_path, uri_of("9.9"))).code == "protocol.unknown"


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", b'{"uri":"x"}'])
async def test_an_answer_that_is_no_bundle_fails_step_one(tmp_path: Path, body: bytes) -> None:
    registry = with_echo()
    registry.tamper = lambda path, honest: body
    await refused_at(1, registry, tmp_path)


async def test_a_hash_is_a_name(tmp_path: Path) -> None:
    registry = with_echo()
    digest = registry.document_of(uri_of()).sha256
    async with fetcher(registry, tmp_path) as agent:
        for name in (digest, f"sha256:{digest}"):
            assert (await agent.fetch(name)).uri == uri_of()


async def test_a_hash_names_no_stored_protocol_of_another_hash(tmp_path: Path) -> None:
    registry = with_echo()
    name = "sha256:" + hex_digest(b"another document")
    registry.aliases[name] = [
        {"uri": uri_of(), "hash": name.removeprefix("sha256:"), "by": "hash", "verified": True, "publisher": ALICE.did}
    ]
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(name)
    assert failure.value.step is Step.DOCUMENT


async def test_a_standards_uri_is_a_name_if_its_host_publishes_it(tmp_path: Path) -> None:
    registry = with_echo()
    name = "https://alice.example/specs/echo"
    publication = registry.publish("2.0", aliases=(name,), origin="standard")
    registry.attach("2.0")
    registry.aliases[name] = [match_of(publication)]
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(name)).uri == uri_of("2.0")


@pytest.mark.threat(24)
async def test_a_claim_by_another_domain_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    name = "https://www.w3.org/TR/echo"
    publication = registry.publish("2.0", aliases=(name,))
    registry.attach("2.0")
    registry.aliases[name] = [match_of(publication)]
    assert (await refused_at(1, registry, tmp_path, name)).code == "resolve.ambiguous"


async def test_a_claim_that_the_publisher_never_made_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    publication = registry.publish("2.0")
    registry.attach("2.0")
    registry.aliases["https://alice.example/specs/echo"] = [match_of(publication)]
    assert (await refused_at(1, registry, tmp_path, "https://alice.example/specs/echo")).code == "resolve.ambiguous"


async def test_a_claimed_or_ambiguous_name_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    first, second = registry.publish("2.0"), registry.publish("3.0")
    registry.aliases["https://alice.example/a"] = [match_of(first, verified=False)]
    registry.aliases["https://alice.example/b"] = [match_of(first), match_of(second)]
    registry.aliases["https://alice.example/c"] = [{**match_of(first), "uri": uri_of().replace("registry.", "other.")}]
    assert (await refused_at(1, registry, tmp_path, "https://alice.example/a")).code == "resolve.unknown"
    assert (await refused_at(1, registry, tmp_path, "https://alice.example/b")).code == "resolve.ambiguous"
    assert (await refused_at(1, registry, tmp_path, "https://alice.example/c")).code == "resolve.unknown"


async def test_a_registry_outside_the_policy_resolves_no_names(tmp_path: Path) -> None:
    registry = with_echo()
    digest = registry.document_of(uri_of()).sha256
    assert (await refused_at(1, registry, tmp_path, digest, registries=["other.example"])).code == "resolve.unknown"
    assert registry.requests == []


async def test_without_a_registry_there_is_nothing_to_choose_from(tmp_path: Path) -> None:
    async with Fetcher(tmp_path, Policy([ALICE.did]), with_echo().network()) as agent:
        with pytest.raises(NotFound, match="treaty trust add"):
            await agent.candidates(TOPIC)


async def test_candidates_are_the_topics_protocols(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    async with fetcher(registry, tmp_path) as agent:
        assert await agent.candidates(TOPIC) == ((uri_of("2.0"), uri_of()), frozenset(), ())
        seen = agent.registries.get(NAME.origin).seen
        assert seen == registry.checkpoint()
        with pytest.raises(NotFound):
            await agent.candidates("nothing/here")


async def test_each_registrys_consensus_comes_first(tmp_path: Path) -> None:
    async with fetcher(with_echo(), tmp_path) as agent:
        (view,) = await agent.topic(TOPIC)
        (protocol,) = view.protocols

        def at(registry: str, *states: str) -> TopicView:
            protocols = (dataclasses.replace(protocol, uri=f"{registry}/{state}", state=state) for state in states)
            return dataclasses.replace(view, protocols=tuple(protocols))

        uris, consensus, _ = ranked([at("a", "consensus", "candidate"), at("b", "provisional"), at("c", "consensus", "dormant")])
        assert uris == ("a/consensus", "c/consensus", "a/candidate", "b/provisional", "c/dormant")
        assert consensus == {"a/consensus", "c/consensus"}


async def test_a_topic_of_a_forked_log_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        await agent.topic(TOPIC)
    fork = registry.rewritten(5, registry.leaves[4])
    before = kept_in(tmp_path), known_in(tmp_path)
    async with fetcher(fork, tmp_path) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.topic(TOPIC)
    assert failure.value.step == 2 and (kept_in(tmp_path), known_in(tmp_path)) == before


async def test_a_damaged_lock_stops_rather_than_forgets(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
    (tmp_path / "treaty.lock").write_text(json.dumps({"lock": 1}))
    assert (await refused_at(10, registry, tmp_path)).code == "system.state"
    async with fetcher(registry, tmp_path) as agent:
        assert agent.cached(registry.document_of(uri_of()).sha256) is None


async def test_a_document_is_read_where_nobody_is_trusted_with_code(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path, publishers=()) as agent:
        document = await agent.document(uri_of())
        seen = agent.registries.get(NAME.origin).seen or b""
    assert hex_digest(document) == registry.document_of(uri_of()).sha256
    assert registry.requests == [BUNDLE]
    assert open_checkpoint(seen, NAME.key).checkpoint.size == registry.size
    assert not Lockfile(tmp_path).read()


async def test_a_document_that_is_here_is_not_asked_for(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of())
        registry.requests.clear()
        assert await agent.document(uri_of()) == verified.document
    assert registry.requests == []


def other_document(registry: SimulatedRegistry) -> Callable[[str, bytes], bytes]:
    """A registry that answers with another text."""

    def tamper(path: str, body: bytes) -> bytes:
        bundle = json.loads(body)
        bundle["blobs"][registry.document_of(uri_of()).sha256] = b64encode(b"# Another\n")
        return json.dumps(bundle).encode()

    return tamper


async def test_a_document_is_proved_before_it_is_read(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path, publishers=()) as agent:
        before, honest = kept_in(tmp_path), registry.tamper
        for uri, step in (("https://other.example/protocols/a.example/b/1.0", 1), (uri_of("9.9"), 1), ("https://x.example/y", 1)):
            with pytest.raises(VerificationFailed) as failure:
                await agent.document(uri)
            assert failure.value.step == step
        assert known_in(tmp_path) == ({NAME.origin: ""}, [])
        registry.tamper = other_document(registry)
        with pytest.raises(VerificationFailed) as failure:
            await agent.document(uri_of())
        assert (failure.value.step, failure.value.code) == (5, "document.digest")
        registry.tamper = honest
        registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
        with pytest.raises(VerificationFailed) as failure:
            await agent.document(uri_of())
        assert (failure.value.step, failure.value.code) == (9, "status.revoked")
    assert kept_in(tmp_path) == before
