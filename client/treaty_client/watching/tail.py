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

from treaty_consensus import statement
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.kinds import Genesis
from treaty_consensus.log.checkpoint import Checkpoint, SignedCheckpoint, open_checkpoint
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
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle, decode_bundle, width_at

from ..codes import ClientCheckpointCode, ClientLogCode, MirrorCode, WatchCode
from ..policy import Policy
from ..protocols.equivocation import fetch_hashes
from ..protocols.log_head import LogHead
from ..protocols.verification.checkpoint import check_age, cosigned_between
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
        self._key = registries.get(origin).name.key
        self._head = LogHead(client, registries, origin)
        self._clock_key: VerifierKey | None = None

    @property
    def seen(self) -> SignedCheckpoint | None:
        """The newest checkpoint that the home has verified."""
        return self._registries.get(self._key.name).newest

    async def head(self) -> SignedCheckpoint:
        """Fetch and verify the newest checkpoint, and return it with its time.

        Raises `Untrusted` or `VerificationFailed` if the log breaks a promise, and the errors of `RegistryClient`.
        """
        note, before = await self._client.checkpoint(), self.seen
        observed = await self._head.observe(note)
        clock_key = await self._clock_of(observed.checkpoint)
        signed = open_checkpoint(note, self._key, clock_key)
        if signed.time is None:
            raise Untrusted(
                ClientCheckpointCode.NO_CLOCK, "The log's clock has not cosigned the checkpoint, so its age is unknown."
            )
        self._check_growth(signed, before, clock_key)
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

    async def _clock_of(self, head: Checkpoint) -> VerifierKey:
        """Return the key of the log's clock, which leaf 0 names, proved to be in the log."""
        if self._clock_key is None:
            genesis = await self._genesis(head)
            if genesis.origin != self._key.name or genesis.log_key != str(self._key):
                raise _no_genesis(self._key)
            self._clock_key = VerifierKey.parse(genesis.clock_key)
        return self._clock_key

    async def _genesis(self, head: Checkpoint) -> Genesis:
        if head.size == 0:
            raise _no_genesis(self._key)
        leaf = (await self._entries(0, head.size))[0]
        hashes = await fetch_hashes(self._client, inclusion_nodes(0, head.size), head.size)
        # Before the genesis is believed: with a clock of its own an attacker on the path could date checkpoints.
        verify_inclusion(0, head.size, leaf_hash(leaf), inclusion_proof(0, head.size, hashes), head.root)
        try:
            body = statement.parse(leaf).body
        except TreatyError as error:
            raise _no_genesis(self._key) from error
        if not isinstance(body, Genesis):
            raise _no_genesis(self._key)
        return body

    def _check_growth(self, signed: SignedCheckpoint, before: SignedCheckpoint | None, clock_key: VerifierKey) -> None:
        """Refuse a smaller log that the clock has dated later than a larger one.

        A server that lags behind shows an older time too, and becomes too old if it stays so.
        """
        if before is None or signed.checkpoint.size >= before.checkpoint.size:
            return
        dated = open_checkpoint(before.note, self._key, clock_key)
        if signed.time is not None and dated.time is not None and signed.time > dated.time:
            size, former = signed.checkpoint.size, before.checkpoint.size
            raise VerificationFailed(
                Step.CHECKPOINT,
                WatchCode.SHRUNK,
                f"The log has {size} leaves, and had {former} at an earlier time by its own clock.",
                "Keep both checkpoints, and ask the operator where the other leaves are.",
                evidence=(before.note, signed.note),
            )


def _no_genesis(key: VerifierKey) -> Untrusted:
    return Untrusted(ClientLogCode.GENESIS, f"Leaf 0 of this log is not the genesis of {key.name} with the key you trust.")
