"""Simulated witnesses. They judge by the code of the core, and so notice a fork."""

from __future__ import annotations

import hashlib

from signers import NOW, ORIGIN

from treaty_consensus.errors import Conflict, TreatyError
from treaty_consensus.log.checkpoint import SignedCheckpoint
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey, sign, signature_lines
from treaty_consensus.log.witness import SIZE_TYPE, AddCheckpoint, SizeConflict, judge
from treaty_registry.settings import WitnessName

from .processes import World


class WitnessHost:
    """One witness: it cosigns each head that extends the one before. `down`: it does not answer."""

    def __init__(self, world: World, number: int, log_key: VerifierKey) -> None:
        self._world = world
        self._key = SignerKey(f"witness-{number}.example", KeyType.COSIGNATURE, hashlib.sha256(b"%d" % number).digest())
        self._log_key = log_key
        self._latest: SignedCheckpoint | None = None
        self.down = False
        self.name = WitnessName(f"https://witness-{number}.example", self._key.verifier)

    def answer(self, body: bytes) -> tuple[int, str, bytes]:
        """Return status, media type and body of the answer to a request."""
        try:
            signed = judge(AddCheckpoint.parse(body), {ORIGIN: self._log_key}, self._latest)
        except SizeConflict as error:
            return 409, SIZE_TYPE, b"%d\n" % error.size
        except TreatyError as error:
            self._world.found(f"{self._key.name} refused to cosign: {error}")
            return 409 if isinstance(error, Conflict) else 422, "text/plain", b""
        self._latest = signed
        note = sign(signed.checkpoint.format(), [self._key], time=NOW + int(self._world.scheduler.now))
        return 200, "text/plain", signature_lines(note, [self._key.verifier])
