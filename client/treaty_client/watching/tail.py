"""Read the new leaves of a log, each verified against a signed checkpoint.

`head` verifies a checkpoint: signature, consistency with the newest one that the home has seen, time, witnesses. `rounds` then
reads entry bundles. A round is yielded only after the root over all leaves up to its end was proved, by a consistency proof, to
begin the tree of that checkpoint. So no leaf is told that the log did not sign, and no leaf is skipped.

Memory is bounded by one round. A log of any size costs only time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from treaty_consensus.codes import CheckpointCode
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint, LogKeys, SignedCheckpoint
from treaty_consensus.log.merkle import (
    Frontier,
    Node,
    consistency_nodes,
    consistency_proof,
    inclusion_nodes,
    inclusion_proof,
    leaf_hash,
    root_nodes,
    verify_consistency,
    verify_inclusion,
)
from treaty_consensus.log.note import signers_of
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle, decode_bundle, width_at
from treaty_consensus.log_keys import MAX_ROTATIONS
from treaty_io.codes import MirrorCode, WatchCode

from ..policy import Policy
from ..protocols.equivocation import fetch_hashes
from ..protocols.log_head import LogHead
from ..protocols.verification.checkpoint import check_age, cosigned_between
from ..protocols.verification.log_keys import follow, no_genesis, proven_keys
from ..protocols.verification.steps import Step, VerificationFailed
from ..registries.api import RegistryClient
from ..registries.trust import TrustedRegistries

# A bundle has at most 16 MiB, so a round has at most 64 MiB; an honest one has some hundred KiB.
BUNDLES = 4


class Round(NamedTuple):
    """Verified leaves in a row. `first`: the index of the first."""

    first: int
    leaves: list[bytes]


class LogTail:
    """The end of the log of one trusted registry."""

    def __init__(
        self, client: RegistryClient, registries: TrustedRegistries, origin: str, policy: Policy, clock: Callable[[], float]
    ) -> None:
        """`clock`: Unix seconds."""
        self._client, self._registries, self._policy, self._clock = client, registries, policy, clock
        self._origin = origin
        self._head = LogHead(client, registries, origin)
        self._keys: LogKeys | None = None

    @property
    def seen(self) -> SignedCheckpoint | None:
        """The newest checkpoint that the home has verified."""
        return self._registries.get(self._origin).newest

    async def head(self) -> SignedCheckpoint:
        """Fetch and verify the newest checkpoint, and return it with its time.

        Raises `Untrusted` or `VerificationFailed` if the log breaks a promise, and the errors of `RegistryClient`.
        """
        note, before = await self._client.checkpoint(), self.seen
        observed = await self._head.observe(note)
        keys = await self._keys_of(observed)
        signed = keys.open(note)
        if signed.time is None:
            raise Untrusted(
                CheckpointCode.NOT_WITNESSED, "The log's clock has not cosigned the checkpoint, so its age is unknown."
            )
        self._check_growth(signed, before, keys)
        now = int(self._clock())
        check_age(signed, now, self._policy.max_age)
        if self._policy.witnesses is not None:
            times = cosigned_between(now, self._policy.max_age)
            self._policy.witnesses.check(signed.note, signed.checkpoint, **times)
        return signed

    async def rounds(self, begin: int, head: Checkpoint) -> AsyncIterator[Round]:
        """Yield the leaves from `begin` to the end of `head`, verified.

        Raises `Untrusted` (`mirror.root`) if leaves or tiles are not those of the signed tree, and the errors of
        `RegistryClient`.
        """
        if begin >= head.size:
            return
        frontier = await self._frontier(begin, head)
        while frontier.size < head.size:
            first = frontier.size
            index = first // TILE_WIDTH
            last = min(index + BUNDLES, -(-head.size // TILE_WIDTH))
            # Together, because each bundle is a round trip.
            bundles = await asyncio.gather(*(self._entries(number, head.size) for number in range(index, last)))
            leaves = [entry for entries in bundles for entry in entries][first - index * TILE_WIDTH :]
            for leaf in leaves:
                frontier.append(leaf_hash(leaf))
            await self._check_root(frontier, head)
            yield Round(first, leaves)

    async def _entries(self, number: int, size: int) -> list[bytes]:
        bundle = Bundle(number)
        bundle = bundle._replace(width=width_at(bundle, size))
        return decode_bundle(await self._client.tile(bundle), bundle.width)

    async def _frontier(self, begin: int, head: Checkpoint) -> Frontier:
        """Return the frontier of the first `begin` leaves, proved to begin the tree of `head`."""
        if begin == 0:
            return Frontier()
        nodes = root_nodes(begin)
        hashes = await fetch_hashes(self._client, {*nodes, *consistency_nodes(begin, head.size)}, head.size)
        frontier = Frontier(begin, [hashes[node] for node in nodes])
        self._verify(frontier, head, hashes)
        return frontier

    async def _check_root(self, frontier: Frontier, head: Checkpoint) -> None:
        nodes = consistency_nodes(frontier.size, head.size)
        self._verify(frontier, head, await fetch_hashes(self._client, nodes, head.size))

    def _verify(self, frontier: Frontier, head: Checkpoint, hashes: dict[Node, bytes]) -> None:
        proof = consistency_proof(frontier.size, head.size, hashes)
        try:
            verify_consistency(frontier.size, head.size, frontier.root(), head.root, proof)
        except Untrusted as error:
            raise Untrusted(
                MirrorCode.ROOT,
                f"The first {frontier.size} entries that the registry shows do not begin the log of {head.size} leaves that it "
                "signed.",
                fix="Try again. If it stays so, mirror the log with `treaty audit`, and tell its operator.",
            ) from error

    async def _keys_of(self, signed: SignedCheckpoint) -> LogKeys:
        """Return the keys of the log, which leaf 0 and the rotations name, proved to be in the log. New ones are pinned."""
        registry = self._registries.get(self._origin)
        if self._keys is None or self._has_another_key(signed.note, self._keys):
            leaves = [await self._leaf(0, signed.checkpoint)]
            # The registry is asked for the leaves of rotations only if there are some: without them leaf 0 says everything.
            if registry.terms or self._has_another_key(signed.note, _keys_proven(registry.keys, leaves)):
                rotations = (await self._client.log()).rotations
                within = [index for index in rotations if 0 < index < signed.checkpoint.size]
                leaves += [await self._leaf(index, signed.checkpoint) for index in sorted(set(within))[:MAX_ROTATIONS]]
            proven = _keys_proven(registry.keys, leaves)
            self._keys = follow(registry.keys, proven, signed.checkpoint.size)
            self._keys.open(signed.note)
            self._pin(self._keys)
        return self._keys

    def _has_another_key(self, note: bytes, keys: LogKeys) -> bool:
        """Whether a note has a line in the name of the log or of its clock by a key that is not known."""
        names = {self._origin, f"{self._origin}/clock"}
        ids = {(key.name, key.id) for term in keys.terms for key in (term.log, term.clock) if key}
        return any(name in names and (name, id_) not in ids for name, id_ in signers_of(note))

    def _pin(self, keys: LogKeys) -> None:
        registry = self._registries.get(self._origin)
        if registry.seen is not None:
            # If another process moved the checkpoint, it pins the keys itself, or the next round does.
            self._registries.advance(self._origin, registry.seen, registry.seen, keys)

    async def _leaf(self, index: int, head: Checkpoint) -> tuple[int, bytes]:
        """Return a leaf with its index, proved to be in the tree of `head`."""
        if index >= head.size:
            raise no_genesis(self._registries.get(self._origin).keys)
        number = index // TILE_WIDTH
        leaf = (await self._entries(number, head.size))[index - number * TILE_WIDTH]
        hashes = await fetch_hashes(self._client, inclusion_nodes(index, head.size), head.size)
        # Before it is believed: with a clock of its own an attacker on the path could date checkpoints.
        verify_inclusion(index, head.size, leaf_hash(leaf), inclusion_proof(index, head.size, hashes), head.root)
        return index, leaf

    def _check_growth(self, signed: SignedCheckpoint, before: SignedCheckpoint | None, keys: LogKeys) -> None:
        """Refuse a smaller log that the clock has dated later than a larger one.

        A server that lags behind shows an older time too, and becomes too old if it stays so.
        """
        if before is None or signed.checkpoint.size >= before.checkpoint.size:
            return
        dated = keys.open(before.note)
        if signed.time is not None and dated.time is not None and signed.time > dated.time:
            size, old_size = signed.checkpoint.size, before.checkpoint.size
            raise VerificationFailed(
                Step.CHECKPOINT,
                WatchCode.SHRUNK,
                f"The log has {size} leaves, and had {old_size} at an earlier time by its own clock.",
                "Keep both checkpoints, and ask the operator where the other leaves are.",
                evidence=(before.note, signed.note),
            )


def _keys_proven(keys: LogKeys, leaves: list[tuple[int, bytes]]) -> LogKeys:
    try:
        return proven_keys(leaves)
    except TreatyError as error:
        raise no_genesis(keys) from error
