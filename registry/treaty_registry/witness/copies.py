"""Keep copies of logs that others upload (C2SP tlog-mirror), and cosign them as a mirror.

    DATA/mirror.key, DATA/mirror-ml-dsa.key      the keys of the mirror, which is another cosigner than the witness
    DATA/copies/HEX/                             the copy of a log (`treaty_client.audit.mirror`); HEX = SHA-256 of the origin

The *pending* checkpoint of a log is the one that the witness recorded last, so all copies are of one history. Entries are stored
a package at a time, each proved to be of a pending checkpoint. When all of its entries are durable, the checkpoint is cosigned
and served. After a restart, entries beyond the served checkpoint are uploaded again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from treaty_client.audit.mirror import Mirror
from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import WitnessCode
from treaty_consensus.errors import Conflict, NotFound, Untrusted
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint
from treaty_consensus.log.merkle import Frontier, leaf_hash
from treaty_consensus.log.note import SignerKey, VerifierKey, sign_lines
from treaty_consensus.log.subtree import verify_subtree
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle, parse_path
from treaty_consensus.log.upload import Upload

from ..codes import RegistryWitnessCode
from ..storage.space import FreeSpace
from .cosigner import Cosigner
from .records import signing_key

_KEPT_PENDING = 8  # checkpoints up to which an upload that has begun may still be finished
_EXCESS = 32 * TILE_WIDTH  # entries that are here already and are sent again, at most
_ROOM = 64 * 1024 * 1024  # bytes kept free on the disk


class UploadConflict(Conflict):
    """Report that an upload does not fit the state of the copy, which it has: 409."""

    def __init__(self, pending: int, next_entry: int) -> None:
        super().__init__(WitnessCode.SIZE, f"The copy continues at entry {next_entry} of {pending}.")
        self.pending = pending
        self.next_entry = next_entry


class LogCopy:
    """The copy of one log. Blocks on the disk. Safe for threads: packages are stored one at a time."""

    def __init__(self, folder: Path, keys: Sequence[VerifierKey], evidence: Path) -> None:
        """`keys`: those of the log; several of a log that rotates its key."""
        self._keys = keys
        served = folder / "checkpoint"
        key = signing_key(served.read_bytes(), keys) if served.exists() else keys[0]
        self.mirror = Mirror(folder, key, evidence)
        self.turn = threading.Lock()
        self.edge = self.mirror.edge()
        """The right edge of all stored entries."""
        self._pending: OrderedDict[int, SignedCheckpoint] = OrderedDict()

    def expect(self, latest: SignedCheckpoint) -> None:
        """Add the newest pending checkpoint."""
        self._pending[latest.checkpoint.size] = latest
        while len(self._pending) > _KEPT_PENDING:
            self._pending.popitem(last=False)

    @property
    def conflict(self) -> UploadConflict:
        """Return the refusal that tells the newest pending size and the next entry."""
        return UploadConflict(max(self._pending), self.edge.size)

    def target(self, upload: Upload) -> SignedCheckpoint:
        """Return the checkpoint up to which is uploaded. Raises `UploadConflict` when the upload does not fit."""
        signed = self._pending.get(upload.end)
        excess = min(upload.end, self.edge.size) - upload.start
        # Smaller ones than what is stored would need another edge; the client is told the newest one.
        if signed is None or upload.end < self.edge.size or upload.start > self.edge.size or excess > _EXCESS:
            raise self.conflict
        return signed

    def store(self, start: int, entries: Sequence[bytes], proof: Sequence[bytes], signed: SignedCheckpoint) -> None:
        """Store the entries from `start` on, in one bundle, that the proof shows to be of a checkpoint.

        Raises `Untrusted` (`log.consistency`). Durable on return.
        """
        with self.turn:
            end, first = start + len(entries), start - start % TILE_WIDTH
            # Another upload may have been quicker. The entries are the same: both are proved.
            before = (
                self.mirror.stored(self.edge) if first < start and self.edge.size // TILE_WIDTH == first // TILE_WIDTH else []
            )
            if len(before) < start - first:
                # The bundle is full by now, so these entries are here.
                if self.edge.size >= end:
                    return
                raise self.conflict
            whole = [*before[: start - first], *entries]
            subtree = Frontier()
            for entry in whole:
                subtree.append(leaf_hash(entry))
            checkpoint = signed.checkpoint
            verify_subtree(first, end, checkpoint.size, subtree.root(), checkpoint.root, proof)
            if end > self.edge.size:
                self.edge = self.mirror.append(self.edge, Bundle(first // TILE_WIDTH, end - first), whole)

    def finish(self, signed: SignedCheckpoint, cosign: Callable[[SignedCheckpoint], bytes]) -> bytes:
        """Serve a checkpoint whose entries are all stored; return the cosignatures of the mirror. Durable on return."""
        with self.turn:
            checkpoint, served = signed.checkpoint, self.mirror.checkpoint()
            if self.edge.size != checkpoint.size:
                raise self.conflict
            if self.edge.root() != checkpoint.root:
                raise Untrusted(RegistryWitnessCode.RECORD, "The stored entries are not those of the checkpoint.")
            lines = cosign(signed)
            if served is None or served.checkpoint.size <= checkpoint.size:
                self.mirror.finish(self.edge, signed.note + lines)
                # From the end of an overlap on another key signs.
                self.mirror.keys = LogKeys.pinned(signing_key(signed.note, self._keys))
            return lines


class Copies:
    """The copies of all logs of one witness. Safe for threads."""

    def __init__(self, data: Path, cosigner: Cosigner, signers: Sequence[SignerKey], clock: Callable[[], float]) -> None:
        self._data = data
        self._cosigner = cosigner
        self._signers = signers
        self._clock = clock
        self._copies: dict[str, LogCopy] = {}
        self._origins = {hex_digest(origin.encode()): origin for origin in cosigner.logs}
        self._opening = threading.Lock()
        self.room = FreeSpace(data, "copies", _ROOM)

    @property
    def keys(self) -> list[VerifierKey]:
        """Return the public keys of the mirror."""
        return [signer.verifier for signer in self._signers]

    def of(self, origin: str) -> LogCopy:
        """Return the copy of a log, with its pending checkpoint. Raises `NotFound` (404), and `Untrusted` (422) without one."""
        if origin not in self._cosigner.logs:
            raise NotFound(WitnessCode.UNKNOWN_LOG, f"No log called {origin[:80]} is mirrored here.")
        latest = self._cosigner.latest(origin)
        if latest is None:
            raise Untrusted(
                WitnessCode.UNKNOWN_LOG, f"No checkpoint of {origin} was sent yet.", fix="Send it first: add-checkpoint"
            )
        copy = self._open(origin)
        copy.expect(latest)
        return copy

    def expect(self, origin: str) -> None:
        """Tell the copy of a log that the witness has a newer checkpoint."""
        latest = self._cosigner.latest(origin)
        if latest is not None:
            self._open(origin).expect(latest)

    def cosign(self, signed: SignedCheckpoint) -> bytes:
        """Return the signature lines of the mirror."""
        return sign_lines(signed.checkpoint.format(), self._signers, time=int(self._clock()))

    def read(self, origin_hash: str, path: str) -> bytes:
        """Return the checkpoint or a tile of a copy. Raises `NotFound` or `Malformed`."""
        origin = self._origins.get(origin_hash)
        if origin is None:
            raise NotFound(WitnessCode.UNKNOWN_LOG, "No log whose origin has this hash is mirrored here.")
        mirror = self._open(origin).mirror
        served = mirror.checkpoint()
        note = served.note if served else None
        data = note if path == "/checkpoint" else mirror.tile(parse_path(path))
        if data is None:
            raise NotFound(WitnessCode.UNKNOWN_LOG, f"The copy of {origin} does not have {path}.")
        return data

    def _open(self, origin: str) -> LogCopy:
        with self._opening:
            if origin not in self._copies:
                folder = self._data / "copies" / hex_digest(origin.encode())
                self._copies[origin] = LogCopy(folder, self._cosigner.logs[origin], self._data / "evidence")
            return self._copies[origin]
