"""Lies of a registry whose log is consistent, fresh and signed: what it leaves out, and second stories beside the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fetching import ANY_CHANGE, fetcher, kept_in, known_in, refused_at
from signers import Signer, identity_body, key_signer, signed
from simulated_registry import ALICE, OPERATOR, TOPIC, SimulatedRegistry, uri_of

from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import kinds
from treaty_consensus.canonical import b64encode
from treaty_consensus.did import encode_multikey
from treaty_consensus.facts import IdentityFact
from treaty_consensus.statement import Statement

Kind = type[kinds.Body]
LINE = uri_of().rpartition("/")[0]


def indexes(registry: SimulatedRegistry, kind: Kind, test: Callable[[Statement], bool] = lambda statement: True) -> list[int]:
    return [index for index, statement in registry.shown() if isinstance(statement.body, kind) and test(statement)]


def leave_out(registry: SimulatedRegistry, kind: Kind, *which: int) -> None:
    """Leave out the statements of a kind in these places, or all."""
    positions = indexes(registry, kind)
    registry.left_out |= {positions[place] for place in which} if which else set(positions)


def second_key(of: Signer = ALICE) -> Signer:
    """Somebody else who has a key that is said to be that DID's."""
    return replace(key_signer("a key of the operator's"), did=of.did, key_id=f"{of.did}#key-9")


def tell_another_first_identity(registry: SimulatedRegistry) -> Signer:
    """Log a second first identity of ALICE, with another key, as if it were the only one; who has that key."""
    forger = second_key()
    leave_out(registry, kinds.Identity, *[0])
    body = identity_body(forger, document="of the operator's making")
    statement = signed(body, OPERATOR, issued=registry.now)
    index = registry.force(statement.leaf)
    keys = {forger.key_id: encode_multikey(forger.public_key)}
    registry.facts[f"identity/{ALICE.did}"] = IdentityFact(statement.id, index, body.document.sha256, keys, 1, registry.now)
    return forger


def retell(registry: SimulatedRegistry, signer: Signer, *, document: bytes | None = None) -> None:
    """Publish version 1.0 and its handler a second time, and leave out the first."""
    leave_out(registry, kinds.Publish)
    leave_out(registry, kinds.Handler)
    del registry.facts[f"protocol/{uri_of()}"]
    registry.publish(signer=signer, document=document)
    registry.attach(signer=signer, release="9")


def rotate(registry: SimulatedRegistry) -> Signer:
    """An honest rotation: the old key and the operator sign for the new one."""
    new = second_key()
    before = registry.facts[f"identity/{ALICE.did}"]
    assert isinstance(before, IdentityFact)
    registry.add(identity_body(new, previous=before.statement, document="rotated"), ALICE, OPERATOR)
    return new


def voted(registry: SimulatedRegistry) -> None:
    """Close an epoch in TOPIC and in another topic."""
    digest = registry.document_of(uri_of()).sha256
    for topic in (TOPIC, "zzz"):
        seq = sum(isinstance(m.body, kinds.Ballot) and m.body.topic == topic for _, m in registry.statements())
        registry.add(kinds.Ballot(topic, seq, ((digest,),), registry.checkpoint().decode()), ALICE)
    registry.decide()


def other_decision(registry: SimulatedRegistry, topic: str = TOPIC, **changes: object) -> int:
    """Log a decision that nobody voted for, made from the newest in a topic; its leaf."""
    newest = next(
        statement.body
        for _, statement in reversed(registry.shown())
        if isinstance(statement.body, kinds.Decision) and statement.body.topic == topic
    )
    body = msgspec.structs.replace(newest, **{"consensus": "f" * 64} | changes)
    return registry.force(signed(body, OPERATOR, issued=registry.now).leaf)


async def seen(registry: SimulatedRegistry, home: Path, **policy: object) -> None:
    """An agent fetches the protocol, and looks at its topic."""
    async with fetcher(registry, home, **policy) as agent:  # type: ignore[arg-type]
        await agent.fetch(uri_of(), fresh=True)
        await agent.topic(TOPIC)


def renamed(registry: SimulatedRegistry) -> Callable[[str, bytes], bytes]:
    """A registry that calls the subject of each bundle by the other kind: a protocol's URI a topic, a topic a protocol's URI."""
    before = registry.tamper

    def tamper(path: str, body: bytes) -> bytes:
        if not path.endswith(".bundle"):
            return before(path, body)
        bundle = json.loads(before(path, body))
        own, other = ("uri", "topic") if "uri" in bundle else ("topic", "uri")
        bundle[other] = bundle.pop(own)
        return json.dumps(bundle).encode()

    return tamper


async def stops(registry: SimulatedRegistry, home: Path, code: str, name: str = uri_of(), **policy: object) -> VerificationFailed:
    """What was fetched is too old to be used without asking; the answer is refused, also by who accepts a change, and also
    when it says that it is of a topic."""
    registry.now += 7200
    failure = await refused_at(10, registry, home, name, **policy)
    assert failure.code == code, failure
    before = kept_in(home), known_in(home)
    async with fetcher(registry, home, **policy) as agent:  # type: ignore[arg-type]
        for attempt in (agent.fetch(name, accept=ANY_CHANGE), agent.document(name)):
            with pytest.raises(VerificationFailed) as again:
                await attempt
            assert again.value.code == code
        registry.tamper, honest = renamed(registry), registry.tamper
        for attempt in (agent.fetch(name), agent.fetch(name, accept=ANY_CHANGE), agent.document(name)):
            with pytest.raises(VerificationFailed) as again:
                await attempt
            assert (again.value.step, again.value.code) == (1, "bundle.other")
        registry.tamper = honest
        assert agent.cached(registry.document_of(name).sha256) is None
    assert (kept_in(home), known_in(home)) == before
    return failure


async def topic_stops(registry: SimulatedRegistry, home: Path, code: str) -> VerificationFailed:
    registry.now += 7200
    before = _without_topics(kept_in(home)), known_in(home)
    async with fetcher(registry, home) as agent:
        for ask in (agent.topic, agent.candidates):
            with pytest.raises(VerificationFailed) as failure:
                await ask(TOPIC)
            assert (failure.value.step, failure.value.code) == (10, code), failure.value
        if code != "memory.contradicted":  # otherwise there is no bundle
            registry.tamper, honest = renamed(registry), registry.tamper
            with pytest.raises(VerificationFailed) as other_kind:
                await agent.topic(TOPIC)
            assert (other_kind.value.step, other_kind.value.code) == (1, "bundle.other")
            registry.tamper = honest
    # The stored answers about the topic are dropped: what was refused must not be used after a restart either.
    assert (_without_topics(kept_in(home)), known_in(home)) == before
    return failure.value


def _without_topics(files: dict[str, bytes]) -> dict[str, bytes]:
    topics = json.loads(files.get("topics.json", b'{"topics": []}'))["topics"]
    dropped = ("topics.json", *(entry["bundle"] for entry in topics))
    return {name: data for name, data in files.items() if not name.endswith(dropped)}


def as_new_machine(home: Path) -> None:
    """What is left of a home whose owner committed treaty.lock, and trusts the registry on another machine."""
    for path in [*home.glob("seen.db*"), home / "registries.json"]:
        path.unlink()
    for path in (home / "store").rglob("*"):
        if path.is_file():
            path.unlink()


def with_leaf(registry: SimulatedRegistry, index: int) -> Callable[[str, bytes], bytes]:
    """A registry that adds a leaf of its log to its bundles."""

    def tamper(path: str, body: bytes) -> bytes:
        if not path.endswith(".bundle"):
            return body
        bundle = json.loads(body)
        bundle["leaves"] = sorted([*bundle["leaves"], leaf_value(registry, index)], key=lambda each: int(each["index"]))
        return json.dumps(bundle).encode()

    return tamper


def leaf_value(registry: SimulatedRegistry, index: int) -> dict[str, object]:
    return {
        "index": index,
        "leaf": b64encode(registry.leaves[index]),
        "proof": [b64encode(value) for value in registry.inclusion(index)],
    }
