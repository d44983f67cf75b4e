"""Mirror a registry's log as a folder of static files, fetched from its URL and checked against its key.

    FOLDER/checkpoint                     a signed note; all leaves that it covers are below, complete and checked
    FOLDER/tile/entries/000[.p/W] …       entry bundles
    FOLDER/tile/0/000[.p/W] …             hash tiles, computed from the entries and never fetched

The layout is that of C2SP tlog-tiles, so any web server can serve the folder. `checkpoint` is written last, after the root over
all entries was compared with it. A crash leaves the older mirror and some newer files, which the next run uses. Every file is a
function of the log, so two concurrent writers only repeat work. Memory is bounded by a few entry bundles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from treaty_consensus.codes import LogCode
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint, LogKeys, SignedCheckpoint
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.log.merkle import consistency_nodes, consistency_proof, leaf_hash, root, root_nodes, verify_consistency
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.tiles import (
    TILE_WIDTH,
    Bundle,
    Tile,
    TreeEdge,
    decode_bundle,
    edge_tiles,
    encode_bundle,
    node_hashes,
    parse_path,
    tiles_for,
    truncated,
    width_at,
)
from treaty_io import durable
from treaty_io.codes import MirrorCode

from ..protocols.equivocation import document, fix_for, keep
from ..registries.api import RegistryClient

_AT_ONCE = 8
"""Bundles fetched at once. It bounds memory and the load on the registry."""
# A tile has 8 KiB, so this is 8 MiB. A proof uses the tiles near the root again and again.
_KEPT_TILES = 1024


class Mirror:
    """The mirror in `folder` of the log with that key. Every method raises `Untrusted` (`log.damaged`) on broken files."""

    def __init__(self, folder: Path, key: VerifierKey | LogKeys, evidence: Path) -> None:
        """Open the mirror. `key`: of the log, or all its keys. `evidence`: the folder for proofs of two histories."""
        self._folder = folder
        self._evidence = evidence
        self.keys = key if isinstance(key, LogKeys) else LogKeys.pinned(key)
        """The keys by which checkpoints are verified. Replace them after a rotation."""
        self._tile = lru_cache(_KEPT_TILES)(self._read_tile)

    def checkpoint(self) -> SignedCheckpoint | None:
        """Return the checkpoint of the mirrored leaves, or None if none are."""
        try:
            note = (self._folder / "checkpoint").read_bytes()
        except FileNotFoundError:
            return None
        try:
            return self.keys.open(note)
        except TreatyError as error:
            raise self._damaged("its checkpoint is not one of this log") from error

    async def update(self, client: RegistryClient, progress: Callable[[int, int], None]) -> SignedCheckpoint:
        """Mirror all leaves of the newest checkpoint and return it; return the mirrored one if that is larger.

        `progress`: gets the number of mirrored leaves, and of all. Raises `Untrusted` (`mirror.root`) if entries and checkpoint
        do not fit, or the log differs from the mirrored one, and the errors of `client`. After an error the mirror is unchanged
        and can be continued.
        """
        return await self.follow(client, await client.checkpoint(), progress)

    async def follow(self, client: RegistryClient, note: bytes, progress: Callable[[int, int], None]) -> SignedCheckpoint:
        """Mirror all leaves of the checkpoint `note`, which may be any. Returns and raises as `update`."""
        signed = self.keys.open(note)
        before = self.checkpoint()
        size = signed.checkpoint.size
        # An older checkpoint is not mirrored, but it must be of the mirrored history.
        if before is not None and size <= before.checkpoint.size:
            proof = self.equivocation(signed)
            if proof is not None:
                raise self._wrong_root(self.root_at(size), signed, keep(self._evidence, proof))
            return before
        # From the checked edge: an audit that continues hashes only the new leaves.
        edge = self.edge()
        end = -(-size // TILE_WIDTH)
        for first in range(edge.size // TILE_WIDTH, end, _AT_ONCE):
            bundles = [_bundle(index, size) for index in range(first, min(first + _AT_ONCE, end))]
            # Together, because each bundle is a round trip; in groups, so that memory stays bounded.
            contents = await asyncio.gather(*(self._entries(client, bundle) for bundle in bundles))
            for bundle, entries in zip(bundles, contents, strict=True):
                edge = self.append(edge, bundle, entries)
                progress(edge.size, size)
        # The one check of all new entries: until it holds, `checkpoint` stays the older one.
        if edge.root() != signed.checkpoint.root:
            evidence_path = await document(client, self.keys, before.note, signed.note, self._evidence) if before else None
            raise self._wrong_root(edge.root(), signed, evidence_path)
        self.finish(edge, signed.note)
        return signed

    def finish(self, edge: TreeEdge, note: bytes) -> None:
        """Make `note` the checkpoint of the mirror. `edge`: of all its leaves, which were appended, and has its root."""
        self._write_tiles(edge.tiles)
        # Last: after a crash the older checkpoint stands, and the newer files are used again.
        durable.write(self._folder / "checkpoint", note)

    def tile(self, tile: Tile | Bundle) -> bytes | None:
        """Return a tile or a bundle of the mirrored checkpoint as it is served, or None when the log is smaller."""
        mirrored = self.checkpoint()
        width = width_at(tile, mirrored.checkpoint.size) if mirrored else 0
        if tile.width > width:
            return None
        # The widest one is always there, and begins with every narrower one.
        return truncated(tile, self._path(tile._replace(width=width)).read_bytes())

    def append(self, edge: TreeEdge, bundle: Bundle, entries: list[bytes]) -> TreeEdge:
        """Store the entries of a bundle beyond `edge`, and return the new edge. `entries`: all of the bundle, from its first."""
        offset = edge.size - bundle.index * TILE_WIDTH
        if offset > 0:  # a partial bundle grew: use its checked entries, not the new copies of them
            stored = self._checked_entries(_bundle(bundle.index, edge.size), edge.partial[0])
            entries = [*stored, *entries[offset:]]
        edge, tiles = edge.appended([leaf_hash(entry) for entry in entries[offset:]])
        # Before the hash tile, so that a tile never stands for a bundle that is missing.
        durable.write(self._path(bundle), encode_bundle(entries))
        self._write_tiles({tile: content for tile, content in tiles.items() if tile.width == TILE_WIDTH})
        return edge

    def stored(self, edge: TreeEdge) -> list[bytes]:
        """Return the entries of the last bundle of `edge` that is not full, compared with their hashes."""
        first, size = edge.size // TILE_WIDTH, edge.size % TILE_WIDTH
        return self._checked_entries(_bundle(first, edge.size), edge.partial[0]) if size else []

    def discard_unproved(self) -> None:
        """Delete the files beyond the mirrored checkpoint. An interrupted run left them, or the registry's answers were wrong."""
        mirrored = self.checkpoint()
        size = mirrored.checkpoint.size if mirrored else 0
        for path in (self._folder / "tile").rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                tile = parse_path("/" + path.relative_to(self._folder).as_posix())
                if width_at(tile, size) < tile.width:
                    path.unlink(missing_ok=True)
        # It may hold one of them.
        self._tile.cache_clear()

    def entries(self, start: int = 0) -> Iterator[list[bytes]]:
        """Yield the mirrored leaves from `start` on in order, a bundle at a time, each bundle compared with its hash tile."""
        mirrored = self.checkpoint()
        size = mirrored.checkpoint.size if mirrored else 0
        for index in range(start // TILE_WIDTH, -(-size // TILE_WIDTH)):
            bundle = _bundle(index, size)
            entries = self._checked_entries(bundle, self._tile(Tile(0, index, bundle.width)))
            stored = entries[max(0, start - index * TILE_WIDTH) :]
            if stored:
                yield stored

    def root_at(self, size: int) -> bytes:
        """Return the root of this log at `size`, proved from the mirrored checkpoint. `size` is at most the mirrored one."""
        mirrored = self.checkpoint()
        assert mirrored is not None
        return self._proved_root(size, mirrored.checkpoint)[0]

    def equivocation(self, seen: SignedCheckpoint) -> Equivocation | None:
        """Return the proof that the log signed `seen`, a checkpoint that contradicts the mirrored history.

        Return None if `seen` is of the mirrored history, or larger than the mirror.
        """
        mirrored = self.checkpoint()
        assert mirrored is not None
        head, size = mirrored.checkpoint, seen.checkpoint.size
        if size > head.size:
            return None
        computed_root, proof = self._proved_root(size, head)
        # Heads before and after the overlap of a rotation have no key in common, and a proof has one key.
        if computed_root == seen.checkpoint.root or self.keys.common(seen.note, mirrored.note) not in self.keys.signers(
            seen.note
        ):
            return None
        if size == head.size:
            return Equivocation.of(self.keys, seen.note, mirrored.note)
        return Equivocation.of(self.keys, seen.note, mirrored.note, root=computed_root, proof=tuple(proof))

    def _proved_root(self, size: int, whole: Checkpoint) -> tuple[bytes, list[bytes]]:
        """Return the root at `size`, and the proof from it to the mirrored checkpoint."""
        nodes = {*root_nodes(size), *consistency_nodes(size, whole.size)}
        try:
            tiles = {tile: self._tile(tile) for tile in tiles_for(nodes, whole.size)}
            hashes = node_hashes(nodes, whole.size, tiles)
            computed_root, proof = root(size, hashes), consistency_proof(size, whole.size, hashes)
            # The tiles are on a disk. Verified against the signed checkpoint, a damaged tile cannot accuse the log.
            verify_consistency(size, whole.size, computed_root, whole.root, proof)
        except TreatyError as error:
            raise self._damaged("a hash tile is broken") from error
        return computed_root, proof

    def edge(self) -> TreeEdge:
        """Return the right edge of the mirrored tree."""
        before = self.checkpoint()
        if before is None:
            return TreeEdge()
        size = before.checkpoint.size
        tiles = {*edge_tiles(size), *tiles_for(root_nodes(size), size)}
        try:
            edge = TreeEdge.load(size, {tile: self._read_tile(tile) for tile in tiles})
        except TreatyError as error:
            raise self._damaged("a hash tile is broken") from error
        # New leaves on a damaged edge would end in a root that looks like a fork of the log.
        if edge.root() != before.checkpoint.root:
            raise self._damaged("its hash tiles are not those of its checkpoint")
        return edge

    async def _entries(self, client: RegistryClient, bundle: Bundle) -> list[bytes]:
        """Return entries from the folder if an interrupted run left them there, else fetch them. The root checks them later."""
        return self._read_entries(bundle) or decode_bundle(await client.tile(bundle), bundle.width)

    def _write_tiles(self, tiles: Mapping[Tile, bytes]) -> None:
        for tile, content in tiles.items():
            durable.write(self._path(tile), content)

    def _read_entries(self, bundle: Bundle) -> list[bytes] | None:
        try:
            return decode_bundle(self._path(bundle).read_bytes(), bundle.width)
        # A bundle that is broken is fetched again; the root at the end decides about both.
        except (FileNotFoundError, TreatyError):
            return None

    def _checked_entries(self, bundle: Bundle, hashes: bytes) -> list[bytes]:
        entries = self._read_entries(bundle)
        # Hashed at every read, because the disk or another program may have changed the file.
        if entries is None or b"".join(map(leaf_hash, entries)) != hashes:
            raise self._damaged(f"{bundle.path} is missing, or differs from its hash tile")
        return entries

    def _read_tile(self, tile: Tile) -> bytes:
        try:
            return self._path(tile).read_bytes()
        except FileNotFoundError as error:
            raise self._damaged(f"{tile.path} is missing") from error

    def _path(self, tile: Tile | Bundle) -> Path:
        return self._folder / tile.path.removeprefix("/")

    def _wrong_root(self, computed: bytes, signed: SignedCheckpoint, evidence: Path | None) -> Untrusted:
        fix = f"Move {self._folder} away and mirror the log anew. If that succeeds, the log showed two histories. Keep both."
        return Untrusted(
            MirrorCode.ROOT,
            f"The first {signed.checkpoint.size} entries have the root {computed.hex()}, the log signed "
            f"{signed.checkpoint.root.hex()} for them.",
            fix=fix_for(evidence) if evidence else fix,
        )

    def _damaged(self, why: str) -> Untrusted:
        return Untrusted(
            LogCode.DAMAGED, f"The mirror in {self._folder} is damaged: {why}.", fix="Move it away and mirror the log anew."
        )


def _bundle(index: int, size: int) -> Bundle:
    bundle = Bundle(index)
    return bundle._replace(width=width_at(bundle, size))
