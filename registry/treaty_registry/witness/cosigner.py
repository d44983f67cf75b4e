"""Judge a checkpoint, record it and cosign it, in this order and one at a time for each log."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import structlog

from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import WitnessCode
from treaty_consensus.errors import Malformed, NotFound, TreatyError, Unavailable
from treaty_consensus.log.checkpoint import SignedCheckpoint
from treaty_consensus.log.equivocation import contradiction
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey, sign_lines
from treaty_consensus.log.witness import AddCheckpoint, judge

from ..codes import RegistryWitnessCode
from ..telemetry.measures import FORKS
from .records import WitnessStore, signing_key

_KEPT_NOTES = 1024
"""Cosigned notes in memory; a witness of many thousand logs makes those of the others again when a monitor asks."""

_log = structlog.get_logger(__name__)


class _Notes(OrderedDict[str, bytes]):
    """The cosigned notes of some logs, by origin. The one that was set least recently is dropped."""

    def __setitem__(self, key: str, value: bytes) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > _KEPT_NOTES:
            self.popitem(last=False)


class Cosigner:
    """The witness. Safe for any number of threads: of two requests for one log the second is judged by the record of
    the first."""

    def __init__(
        self,
        store: WitnessStore,
        key: SignerKey,
        logs: Sequence[VerifierKey],
        clock: Callable[[], float],
        also: Sequence[SignerKey] = (),
    ) -> None:
        """`logs`: the keys of the witnessed logs; several of a log that rotates its key, the oldest first. `clock`: POSIX
        seconds. `also`: more keys of this witness, which cosign everything too.

        Raises `Malformed` on keys that are not log keys, and as `Store.latest`.
        """
        self.key = key.verifier
        self.logs: dict[str, list[VerifierKey]] = {}
        """The keys of each log, by origin."""
        for log in logs:
            self.logs.setdefault(log.name, []).append(log)
        if len({(log.name, log.id) for log in logs}) != len(logs) or any(log.type != KeyType.ED25519 for log in logs):
            raise Malformed(WitnessCode.POLICY, "The keys of logs must be of type 1, each once.")
        self._signers = (key, *also)
        self.keys = tuple(signer.verifier for signer in self._signers)
        """The public keys, in the order of their signatures in an answer."""
        self._origins = {hex_digest(origin.encode()): origin for origin in self.logs}
        self._cosigned = _Notes()
        """The notes that were cosigned last, by origin."""
        self._store = store
        self._clock = clock
        self._latest = {origin: store.latest(keys) for origin, keys in self.logs.items()}
        # One lock for each log: two checkpoints of one log must not both be compared with the same record. A slow
        # disk for one log does not delay another.
        self._turns = {origin: threading.Lock() for origin in self.logs}

    def latest(self, origin: str) -> SignedCheckpoint | None:
        """Return the newest record of a log that is witnessed here."""
        return self._latest[origin]

    def add_checkpoint(self, body: bytes) -> bytes:
        """Return the answer to a request: the signature line. Blocks on the disk.

        Raises as `AddCheckpoint.parse` and `judge`. Raises `Unavailable` when the record cannot be written; nothing is cosigned
        then.
        """
        request = AddCheckpoint.parse(body)
        origin = request.claimed.origin
        # An unknown log has no record to protect, so any lock does.
        with self._turns.get(origin, threading.Lock()):
            latest = self._latest.get(origin)
            try:
                signed = judge(request, self._known(request), latest)
            except TreatyError:
                # A refused request may prove a fork. The proof is kept, because a log that rewrites its history will
                # not serve it later.
                self._look_for_a_fork(request, latest)
                raise
            # The same head needs no new record, only a cosignature with the present time.
            if latest is None or signed.checkpoint != latest.checkpoint:
                self._record(signed)
            # After the record. A crash in between leaves a record that was not cosigned; the log gets the cosignature
            # when it asks again.
            return self._cosign(signed)

    def _known(self, request: AddCheckpoint) -> dict[str, VerifierKey]:
        """Return the key by which the log of a request is judged, under its origin; nothing for an unknown log."""
        keys = self.logs.get(request.claimed.origin)
        return {request.claimed.origin: signing_key(request.note, keys)} if keys else {}

    def checkpoint(self, origin_hash: str) -> bytes:
        """Return the newest checkpoint of a log, with the signature of the log and those of this witness, for monitors.

        `origin_hash`: SHA-256 of the origin, hexadecimal. Raises `NotFound` for another log, and when nothing was cosigned.
        """
        origin = self._origins.get(origin_hash)
        if origin is None:
            raise NotFound(WitnessCode.UNKNOWN_LOG, "No log whose origin has this hash is witnessed here.")
        with self._turns[origin]:
            latest = self._latest[origin]
            if latest is None:
                raise NotFound(WitnessCode.UNKNOWN_LOG, f"Nothing of {origin} was cosigned here yet.")
            # After a restart the cosignatures are made anew: the record may be cosigned again, as for the log.
            cosigned = self._cosigned.get(origin)
            return latest.note + self._cosign(latest) if cosigned is None else cosigned

    def _cosign(self, signed: SignedCheckpoint) -> bytes:
        """Return the signature lines for a recorded checkpoint."""
        lines = sign_lines(signed.checkpoint.format(), self._signers, time=int(self._clock()))
        self._cosigned[signed.checkpoint.origin] = signed.note + lines
        return lines

    def _record(self, signed: SignedCheckpoint) -> None:
        try:
            self._store.record(signed)
        # Nothing is cosigned without a record: after a restart the witness would not know of it.
        except OSError as error:
            _log.error("checkpoint not recorded", origin=signed.checkpoint.origin, error=str(error))
            raise Unavailable(RegistryWitnessCode.RECORD, "This witness cannot record checkpoints now.") from error
        # After the file, so that the memory is never ahead of it.
        self._latest[signed.checkpoint.origin] = signed

    def _look_for_a_fork(self, request: AddCheckpoint, latest: SignedCheckpoint | None) -> None:
        log = self._known(request).get(request.claimed.origin)
        proof = contradiction(request, log, latest) if log and latest else None
        if proof is None:
            return
        try:
            evidence_path = str(self._store.keep(proof))
        # A full disk must not lose the proof: it is in the log line below.
        except OSError as error:
            evidence_path = f"nowhere: {error}"
        FORKS.inc()
        _log.critical(
            "a log signed two histories", origin=request.claimed.origin, proof=proof.format().decode(), kept=evidence_path
        )
