"""Make and store proofs that a log signed two histories (`treaty_consensus.log.equivocation`).

The files are HOME/evidence/ORIGIN-HEX.equivocation.json: ORIGIN has "_" for ":", HEX is the start of the file's SHA-256, 16
digits. The same two checkpoints are always the same file. No file is replaced or deleted, and of one log at most 64 are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TreatyError
from treaty_consensus.log.checkpoint import LogKeys, open_checkpoint
from treaty_consensus.log.equivocation import SUFFIX, Equivocation
from treaty_consensus.log.merkle import Node, consistency_nodes, consistency_proof, root, root_nodes
from treaty_consensus.log.tiles import node_hashes, tiles_for
from treaty_io import durable

from ..registries.api import RegistryClient

_MAX_KEPT = 64
"""Proofs of one log. One is enough, and a log that signs a new root at each poll would fill the disk."""


async def fetch_hashes(client: RegistryClient, nodes: Collection[Node], size: int) -> dict[Node, bytes]:
    """Return hashes of nodes of a tree of `size` leaves, from a registry's tiles, unverified.

    Raises the errors of `RegistryClient.tile` and `tiles.node_hashes`.
    """
    tiles = tiles_for(nodes, size)
    # Together: a proof needs a few tiles, and each is one round trip.
    contents = await asyncio.gather(*(client.tile(tile) for tile in tiles))
    return node_hashes(nodes, size, dict(zip(tiles, contents, strict=True)))


async def document(client: RegistryClient, keys: LogKeys, note: bytes, other: bytes, folder: Path) -> Path | None:
    """Prove with the registry's own tiles that two checkpoints of a log contradict each other; store the proof in `folder`.

    Return its path, or None if tiles are missing, or are not those of the larger checkpoint's tree.
    """
    try:
        proof = await _prove(client, keys, note, other)
        return await asyncio.to_thread(keep, folder, proof)
    except (TreatyError, OSError):  # the checkpoint is refused also without a proof
        return None


async def _prove(client: RegistryClient, keys: LogKeys, note: bytes, other: bytes) -> Equivocation:
    # A file has one key. Heads before and after the overlap of a rotation have none in common.
    key = keys.common(note, other)
    # By size, because a proof leads from the smaller tree to the larger one.
    old, new = sorted((open_checkpoint(each, key).checkpoint for each in (note, other)), key=lambda head: head.size)
    # Two roots for one size need no further proof.
    if old.size == new.size:
        return Equivocation.of(key, note, other)
    hashes = await fetch_hashes(client, {*root_nodes(old.size), *consistency_nodes(old.size, new.size)}, new.size)
    proof = tuple(consistency_proof(old.size, new.size, hashes))
    return Equivocation.of(key, note, other, root=root(old.size, hashes), proof=proof)


def keep(folder: Path, proof: Equivocation) -> Path:
    """Write a proof into a folder and return its path, or that of an earlier one of this log if 64 are there.

    Durable on return. Raises OSError.
    """
    data, origin = proof.format(), proof.key.name.replace(":", "_")
    path = folder / f"{origin}-{hex_digest(data)[:16]}{SUFFIX}"
    # The name contains the digest, so an existing file has the same bytes.
    if path.exists():
        return path
    # With the digits, or a log whose name begins with this one would count.
    stored = sorted(folder.glob(f"{origin}-{'[0-9a-f]' * 16}{SUFFIX}"))
    if len(stored) >= _MAX_KEPT:
        return stored[0]
    durable.write(path, data, mode=0o600)  # it shows which logs its owner reads
    return path


def fix_for(evidence: Path) -> str:
    """Return the advice for a stored proof."""
    return (
        f"{evidence} proves to every reader that this log signed two histories: treaty equivocation FILE. "
        "Send it to its operator."
    )
