"""Details of step 2: open a checkpoint, and check its age and its consistency with the newest one seen."""

from __future__ import annotations

from collections.abc import Sequence

from treaty_consensus import statement
from treaty_consensus.codes import CheckpointCode
from treaty_consensus.errors import Malformed, TreatyError, Untrusted
from treaty_consensus.kinds import Genesis, Newer
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint
from treaty_consensus.log.merkle import leaf_hash, verify_consistency, verify_inclusion
from treaty_consensus.rotation import Rotation
from treaty_io.codes import ClientCheckpointCode

from ...registries.bundle import Bundle, BundledLeaf
from ...registries.trust import TrustedRegistry
from .log_keys import follow, no_genesis, proven_keys
from .records import needs_newer
from .steps import Step, VerificationFailed, taking

CLOCK_SKEW = 300
"""Seconds by which a checkpoint may seem to come from the future: the registry's clock and ours need not agree."""


LEAST_BACKWARDS = 300
"""Seconds by which a checkpoint may always be older than one seen before. A log renews it every 60 seconds, caches in front of it
may be as late, and a mirror asks every minute."""
BACKWARDS_SHARE = 3
"""A third of the policy's `max_age` may be more. A static copy renews each bundle in a quarter of the usual one, and its readers
may have seen the registry itself just before it ended."""


def missing_proof(bundle: Bundle, registry: TrustedRegistry) -> tuple[int, int] | None:
    """Return the two sizes to prove consistency between, the smaller one first, if the bundle does not prove it.

    Return None otherwise. The caller computes this proof from tiles. A server that lags behind, or a cache, does not know the
    newer size; a static copy does not know the size that was asked for.
    """
    with taking(Step.CHECKPOINT):
        if registry.newest is None:
            return None
        size = registry.keys.open(bundle.checkpoint).checkpoint.size
        seen = registry.newest.checkpoint.size
    if size == seen or (size > seen and bundle.consistency is not None):
        return None
    return min(size, seen), max(size, seen)


def open_head(bundle: Bundle, keys: LogKeys) -> tuple[SignedCheckpoint, Genesis]:
    """Open the checkpoint with a pinned key of the log, and with the keys that leaf 0 and the rotations name.

    These leaves are proved to be in the log of this checkpoint. Return the checkpoint with its time, and leaf 0. Raises
    `Untrusted`.
    """
    head = keys.open(bundle.checkpoint).checkpoint
    first = bundle.leaves[0]
    # Before the genesis is believed: it names the clock's key, and with a key of its own the server could date checkpoints
    # itself.
    verify_inclusion(0, head.size, leaf_hash(first.leaf), first.proof, head.root)
    genesis = statement.read(first.leaf).body
    if isinstance(genesis, Newer):
        raise needs_newer(f"The genesis of {keys.name}")
    if not isinstance(genesis, Genesis) or genesis.origin != keys.name:
        raise no_genesis(keys)
    rotations = _rotations(bundle, genesis.operator)
    for leaf in rotations:
        verify_inclusion(leaf.index, head.size, leaf_hash(leaf.leaf), leaf.proof, head.root)
    try:
        proven = proven_keys((leaf.index, leaf.leaf) for leaf in (first, *rotations))
    except Malformed as error:
        raise no_genesis(keys) from error
    # Opened again, because these keys are known only after their leaves are proved.
    checkpoint = follow(keys, proven, head.size).open(bundle.checkpoint)
    # The log's own signature has no time (C2SP tlog-checkpoint), so without the clock an old state could pass for the present
    # one.
    if checkpoint.time is None:
        raise Untrusted(CheckpointCode.NOT_WITNESSED, "The log's clock has not cosigned the checkpoint, so its age is unknown.")
    return checkpoint, genesis


def _rotations(bundle: Bundle, operator: str) -> list[BundledLeaf]:
    # An envelope names its signers in plain text, so the leaves of others need not be parsed twice.
    named = operator.encode()
    return [leaf for leaf in bundle.leaves[1:] if named in leaf.leaf and _is_rotation(leaf.leaf)]


def _is_rotation(leaf: bytes) -> bool:
    try:
        body = statement.read(leaf).body
    except TreatyError:
        return False  # step 3 says why it is no leaf of the log
    if isinstance(body, Newer) and body.kind == "rotation":
        raise needs_newer("A rotation of the keys of this log")
    return isinstance(body, Rotation)


def check_age(checkpoint: SignedCheckpoint, now: int, max_age: int) -> None:
    """Check that a checkpoint is at most `max_age` seconds old and not from the future. Raises `Untrusted`."""
    assert checkpoint.time is not None
    age = now - checkpoint.time
    if age > max_age:
        raise Untrusted(
            ClientCheckpointCode.STALE,
            f"The checkpoint is {age} seconds old; the policy allows {max_age}.",
            fix="Try again. If it stays so, the registry has stopped, or a party on the path hides news from you.",
        )
    # A time far ahead would stay fresh for as long, and hide later news.
    if age < -CLOCK_SKEW:
        raise Untrusted(
            ClientCheckpointCode.FUTURE, f"The checkpoint is from {-age} seconds ahead.", fix="Check this machine's clock."
        )


def check_forward(checkpoint: SignedCheckpoint, newest: int, max_age: int) -> None:
    """Check that the time of a log does not go back: that a checkpoint is at most a third of `max_age`, or 300 seconds, older
    than `newest`, the latest time seen. Else a party on the path could hide for `max_age` what the log said meanwhile.

    Raises `Untrusted` (`checkpoint.stale`).
    """
    assert checkpoint.time is not None
    if newest - checkpoint.time > max(LEAST_BACKWARDS, max_age // BACKWARDS_SHARE):
        raise Untrusted(
            ClientCheckpointCode.STALE,
            f"The checkpoint is {newest - checkpoint.time} seconds older than one that was seen before.",
            fix="Try again. If it stays so, a server lags behind, or a party on the path hides news from you.",
        )


def cosigned_between(now: int | None, max_age: int) -> dict[str, int]:
    """Return the times that count for cosignatures, as the arguments of `WitnessRule.check`. `now`: None for any time."""
    return {} if now is None else {"since": now - max_age, "until": now + CLOCK_SKEW}


def check_consistency(
    bundle: Bundle, checkpoint: SignedCheckpoint, seen: SignedCheckpoint, bridge: Sequence[bytes] | None
) -> None:
    """Check that one of the two checkpoints extends the other.

    `seen`: the newest one seen. `bridge`: the proof for the sizes of `missing_proof`. Raises `VerificationFailed` with both
    signed checkpoints as its evidence.
    """
    old, new = sorted((seen.checkpoint, checkpoint.checkpoint), key=lambda head: head.size)
    # That of the bundle leads to its own checkpoint. An older one than the newest seen is extended by that.
    proof = bundle.consistency if new is checkpoint.checkpoint and bundle.consistency is not None else bridge or ()
    try:
        verify_consistency(old.size, new.size, old.root, new.root, proof)
    except TreatyError as error:
        raise VerificationFailed(
            Step.CHECKPOINT, error.code, error.message, error.fix, evidence=(seen.note, checkpoint.note)
        ) from error
