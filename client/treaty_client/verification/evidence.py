"""Steps 2 to 4: what a bundle proves of a log, for whoever knows the log's key and nothing else of it.

The checkpoint is opened with the pinned key. The log's leaf 0, proved to be in that very checkpoint, names the clock's key, and
so how old the checkpoint is. Then every leaf is proved to be in it, and the leaves are replayed in their order through `admit`,
the function that let them into the log, starting from no facts at all: what holds afterwards holds on signatures alone.

Two things a few leaves cannot show. That they are all there is: at a first contact a registry could leave out a later identity
or status; afterwards its answers are compared with what it proved before (`completeness`). And that a decision is right: it is
taken on the operator's word, as if the log stood where the decision says; whoever audits the log recomputes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from treaty_consensus import statement
from treaty_consensus.admit import admit, identity_key, keys_of, topic_key
from treaty_consensus.errors import NotFound, Refused, TreatyError, Untrusted
from treaty_consensus.facts import LOG, Fact, IdentityFact, LogFact, TopicFact, find, log_of
from treaty_consensus.kinds import Decision, Genesis, Grant, Handler, Identity, Parameters, Publish, Status, Withdrawal
from treaty_consensus.log.checkpoint import SignedCheckpoint, open_checkpoint
from treaty_consensus.log.merkle import leaf_hash, verify_consistency, verify_inclusion
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.witness import Quorum
from treaty_consensus.statement import Statement, Verified

from ..registries.trust import TrustedRegistry
from .bundle import Bundle
from .steps import Step, VerificationFailed, taking

CLOCK_SKEW = 300
"""Seconds by which a checkpoint may seem to come from the future: the registry's clock and ours need not agree."""

_PROVING = Genesis | Parameters | Identity | Grant | Publish | Handler | Status | Decision | Withdrawal


@dataclass(frozen=True)
class Logged:
    """A statement that is proved to be leaf `index`. `tenure`: its first author's at that leaf, 1 for a did:key."""

    index: int
    statement: Statement
    tenure: int


@dataclass(frozen=True)
class Evidence:
    """What a bundle proved. `checkpoint.time` is the clock's, in Unix seconds; statements are in the log's order."""

    checkpoint: SignedCheckpoint
    genesis: Genesis
    statements: tuple[Logged, ...]

    def decision(self, topic: str) -> Decision | None:
        """The newest decision in a topic, None when there is none."""
        bodies = [logged.statement.body for logged in self.statements]
        return next((body for body in reversed(bodies) if isinstance(body, Decision) and body.topic == topic), None)

    def identities(self, did: str) -> list[Logged]:
        """The identities of a DID, in the log's order."""
        bodies = [(logged, logged.statement.body) for logged in self.statements]
        return [logged for logged, body in bodies if isinstance(body, Identity) and body.did == did]

    def published(self, uri: str) -> Logged:
        """The statement that publishes `uri`. Raises `NotFound` (`bundle.no-publish`)."""
        for logged in self.statements:
            if isinstance(logged.statement.body, Publish) and logged.statement.body.uri == uri:
                return logged
        raise NotFound("bundle.no-publish", f"The bundle holds no statement that publishes {uri}.")


def missing_proof(bundle: Bundle, registry: TrustedRegistry) -> tuple[int, int] | None:
    """The two sizes to prove consistency between when the bundle's checkpoint is older than the newest one seen, else None.

    Such a proof is the caller's to get, from tiles: a server that lags behind cannot know it. Raises `VerificationFailed`, step
    2.
    """
    with taking(Step.CHECKPOINT):
        if registry.newest is None:
            return None
        size = open_checkpoint(bundle.checkpoint, registry.name.key).checkpoint.size
        seen = registry.newest.checkpoint.size
    return (size, seen) if size < seen else None


def examine(
    bundle: Bundle,
    registry: TrustedRegistry,
    *,
    now: int | None,
    max_age: int,
    witnesses: Quorum | None = None,
    bridge: Sequence[bytes] | None = None,
) -> Evidence:
    """Take steps 2 to 4. CPU-bound: about 0.2 ms a statement.

    `now`, `max_age`: Unix seconds and seconds; without `now` the checkpoint may be of any age. `witnesses`: who must have
    cosigned it, no longer ago than that. `bridge`: the consistency proof that `missing_proof` asks for. Without `registry.seen`
    there is nothing to be consistent with. Raises `VerificationFailed`.
    """
    with taking(Step.CHECKPOINT):
        checkpoint, genesis = _open_head(bundle, registry.name.key)
        if now is not None:
            _check_age(checkpoint, now, max_age)
        if witnesses is not None:
            # The clock is the operator's own, so that of the witnesses counts too: an old head can be given a new time.
            witnesses.check(checkpoint.note, checkpoint.checkpoint, since=0 if now is None else now - max_age)
        if registry.newest is not None:
            _check_consistency(bundle, checkpoint, registry.newest, bridge)
    with taking(Step.INCLUSION):
        head = checkpoint.checkpoint
        for leaf in bundle.leaves:
            verify_inclusion(leaf.index, head.size, leaf_hash(leaf.leaf), leaf.proof, head.root)
    with taking(Step.STATEMENTS):
        return Evidence(checkpoint, genesis, _replay(bundle))


def _open_head(bundle: Bundle, key: VerifierKey) -> tuple[SignedCheckpoint, Genesis]:
    head = open_checkpoint(bundle.checkpoint, key).checkpoint
    first = bundle.leaves[0]
    verify_inclusion(0, head.size, leaf_hash(first.leaf), first.proof, head.root)
    genesis = statement.parse(first.leaf).body
    if not isinstance(genesis, Genesis) or genesis.origin != key.name or genesis.log_key != str(key):
        raise Untrusted("log.genesis", f"Leaf 0 of this log is not the genesis of {key.name} with the key you trust.")
    checkpoint = open_checkpoint(bundle.checkpoint, key, VerifierKey.parse(genesis.clock_key))
    if checkpoint.time is None:
        raise Untrusted("checkpoint.no-clock", "The log's clock has not cosigned the checkpoint, so its age is unknown.")
    return checkpoint, genesis


def _check_age(checkpoint: SignedCheckpoint, now: int, max_age: int) -> None:
    assert checkpoint.time is not None
    age = now - checkpoint.time
    if age > max_age:
        raise Untrusted(
            "checkpoint.stale",
            f"The checkpoint is {age} seconds old; the policy allows {max_age}.",
            fix="Try again; if it stays so, the registry has stopped, or somebody between keeps news from you.",
        )
    if age < -CLOCK_SKEW:
        raise Untrusted("checkpoint.future", f"The checkpoint is from {-age} seconds ahead.", fix="Check this machine's clock.")


def _check_consistency(
    bundle: Bundle, checkpoint: SignedCheckpoint, seen: SignedCheckpoint, bridge: Sequence[bytes] | None
) -> None:
    old, new = seen.checkpoint, checkpoint.checkpoint
    proof: Sequence[bytes] = bundle.consistency or ()
    if new.size < old.size:
        old, new, proof = new, old, bridge or ()
    try:
        verify_consistency(old.size, new.size, old.root, new.root, proof)
    except TreatyError as error:
        raise VerificationFailed(
            Step.CHECKPOINT, error.code, error.message, error.fix, evidence=(seen.note, checkpoint.note)
        ) from error


def _replay(bundle: Bundle) -> tuple[Logged, ...]:
    facts: dict[str, Fact] = {}
    replayed = []
    for leaf in bundle.leaves:
        parsed = statement.parse(leaf.leaf)
        if not isinstance(parsed.body, _PROVING):
            raise Refused("bundle.statement", f"A {parsed.type} statement proves nothing about a protocol.")
        keys: dict[str, bytes] = {}
        for did in parsed.authors:
            keys |= keys_of(facts, did)
        verified = statement.verify(parsed, keys)
        if isinstance(parsed.body, Decision):
            facts |= _admit_decision(facts, verified, parsed.body, leaf.index)
        else:
            facts |= admit(facts, verified, leaf.index)
        identity = find(facts, identity_key(parsed.author.text), IdentityFact)
        replayed.append(Logged(leaf.index, parsed, identity.tenure if identity else 1))
    return tuple(replayed)


def _admit_decision(facts: dict[str, Fact], verified: Verified, decision: Decision, index: int) -> dict[str, Fact]:
    """Admit a decision into the log as it says it found it: its author and its origin are checked, the epochs before are not."""
    log = log_of(facts)
    if decision.input.size > index:
        raise Refused("decision.epoch", "A decision rests on leaves before it.")
    found = msgspec.structs.replace(
        log,
        parameters=decision.parameters,
        epoch=decision.epoch + 1,
        closed_at=decision.input.size,
        closed_topic="",
        remaining=decision.remaining + 1,
    )
    before: dict[str, Fact] = {**facts, LOG: found}
    if decision.previous is not None:
        before[topic_key(decision.topic)] = TopicFact(decision.previous, 0)
    changes = admit(before, verified, index)
    after = changes[LOG]
    assert isinstance(after, LogFact)
    return {**changes, LOG: msgspec.structs.replace(log, time=after.time, time_index=after.time_index)}
