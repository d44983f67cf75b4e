"""Store a witness's key, and for each log the newest checkpoint that it may have cosigned.

    DATA/witness.key        0600: a C2SP signed-note signer key of type 0x04 (`PRIVATE+KEY+NAME+…`)
    DATA/witness-ml-dsa.key 0600: another one of the same name, of type 0x06 (ML-DSA-44)
    DATA/mirror.key, DATA/mirror-ml-dsa.key, DATA/copies/    those of a mirror (`copies`)
    DATA/box/               statements that were stamped (`box`)
    DATA/logs/HEX           the log's checkpoint, with no signature but the log's; HEX = SHA-256 of the origin
    DATA/evidence/LOG-HEX.equivocation.json    proofs that a log signed two histories, at most 64 of one; LOG = SHA-256 of its
                            origin, 16 digits; HEX = SHA-256 of the file
    DATA/lock               held by the running witness; never deleted

Files are written completely and synced: a crash leaves the old record or the new one. A record is written before its cosignature
is made, so a crash may leave a record that was never cosigned. Never restore an old `logs`: the witness could then cosign a
history that contradicts its lost records.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import SystemCode, WitnessCode
from treaty_consensus.errors import Conflict, NotFound, TooLarge, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import SignedCheckpoint, open_checkpoint
from treaty_consensus.log.equivocation import SUFFIX, Equivocation
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey, signers_of
from treaty_consensus.log.witness import Quorum
from treaty_io import durable

from ..codes import KeysCode, RegistryWitnessCode, SettingsCode

_MAX_KEY_FILE = 4096
_MAX_KEPT = 64  # proofs of one log
_MAX_LOGS_FILE = 32 * 1024 * 1024  # a hundred thousand keys with long names


class WitnessStore:
    """The data directory of a witness. Blocks on the disk; the caller must order the writes for one log."""

    def __init__(self, data: Path) -> None:
        self._data = data

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the directory. Raises `Unavailable` when another process holds the lock."""
        self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            # Two witnesses with one key could cosign two histories.
            descriptor = durable.open_locked(self._data / "lock", wait=False)
        except BlockingIOError as error:
            raise Unavailable(SystemCode.HELD, f"Another witness runs on {self._data}.", fix="Stop it first.") from error
        try:
            yield
        finally:
            os.close(descriptor)

    def key(self, name: str | None) -> SignerKey:
        """Return the witness's key, made under `name` when there is none yet.

        Raises `NotFound` when there is no key and no name, `Conflict` when the key has another name, `Malformed` when the name
        is invalid for a witness, and `Untrusted` when others may read the key or it is damaged.
        """
        path = self._data / "witness.key"
        if not path.exists():
            if name is None:
                raise NotFound(
                    SettingsCode.DIRECTORY, f"There is no witness in {self._data}.", fix="Name it to make one: --name NAME"
                )
            _create_key(path, name, KeyType.COSIGNATURE)
        key = _read_key(path)
        if name not in (None, key.name):
            raise Conflict(
                SettingsCode.DIRECTORY,
                f"The witness in {self._data} is {key.name}. Its name cannot change.",
                fix="Leave --name out, or choose an empty directory.",
            )
        return key

    def ml_dsa_key(self, name: str) -> SignerKey:
        """Return the ML-DSA-44 key of the witness `name`, made when there is none yet, as for a witness of an earlier release.

        Raises as `key`.
        """
        return self._named(self._data / "witness-ml-dsa.key", name, KeyType.ML_DSA_44)

    def mirror_keys(self, name: str) -> list[SignerKey]:
        """Return the two keys of the mirror `name`, made when there are none yet. Raises as `key`."""
        kinds = {"mirror.key": KeyType.COSIGNATURE, "mirror-ml-dsa.key": KeyType.ML_DSA_44}
        return [self._named(self._data / file, name, kind) for file, kind in kinds.items()]

    def _named(self, path: Path, name: str, kind: KeyType) -> SignerKey:
        if not path.exists():
            _create_key(path, name, kind)
        key = _read_key(path)
        if (key.name, key.type) != (name, kind):
            raise Conflict(
                SettingsCode.DIRECTORY, f"{path} is not the key of {name}.", fix="Bring all keys back from one backup."
            )
        return key

    def latest(self, log: Sequence[VerifierKey]) -> SignedCheckpoint | None:
        """Return the newest record of the log with these keys, or None. Raises `Untrusted` when it is damaged or signed by
        another key."""
        path = self._record(log[0].name)
        try:
            note = path.read_bytes()
            return open_checkpoint(note, signing_key(note, log))
        except FileNotFoundError:
            return None
        except TreatyError as error:
            raise Untrusted(
                RegistryWitnessCode.RECORD,
                f"{path} is not a checkpoint of {log[0].name} signed by a trusted key.",
                fix="Bring back the newest copy of this file, or leave that log out. If the log rotates its key, name both keys.",
            ) from error

    def record(self, signed: SignedCheckpoint) -> None:
        """Replace the record of a log. Durable on return; raises OSError."""
        # A crash leaves the old record or the new one, and the new one is not cosigned yet.
        durable.write(self._record(signed.checkpoint.origin), signed.note, mode=0o600)

    def keep(self, proof: Equivocation) -> Path:
        """Store a proof and return its path, or that of an earlier one of this log if 64 are there. Raises OSError."""
        data, log = proof.format(), hex_digest(proof.key.name.encode())[:16]
        path = self._data / "evidence" / f"{log}-{hex_digest(data)}{SUFFIX}"
        if path.exists():
            return path
        stored = sorted(path.parent.glob(f"{log}-*{SUFFIX}"))
        # One is enough, and a log that signs a new root at each request would fill the disk.
        if len(stored) >= _MAX_KEPT:
            return stored[0]
        durable.write(path, data)
        return path

    def _record(self, origin: str) -> Path:
        return self._data / "logs" / hex_digest(origin.encode())


def signing_key(note: bytes, keys: Sequence[VerifierKey]) -> VerifierKey:
    """Return the first of a log's keys that a note has a line of, or the first one. Raises `Malformed` or `TooLarge`."""
    signers = signers_of(note)
    return next((key for key in keys if (key.name, key.id) in signers), keys[0])


def read_log_keys(path: Path) -> list[str]:
    """Return the verifier keys in a file, one a line. Raises `TooLarge` (`witness.policy`), and OSError."""
    with path.open("rb") as file:
        # One byte more shows that the file is too large.
        data = file.read(_MAX_LOGS_FILE + 1)
    if len(data) > _MAX_LOGS_FILE:
        raise TooLarge(WitnessCode.POLICY, f"{path} has more than {_MAX_LOGS_FILE} bytes.")
    lines = (line.strip() for line in data.decode("utf-8", "replace").split("\n"))
    return [line for line in lines if line and not line.startswith("#")]


def _create_key(path: Path, name: str, kind: KeyType) -> None:
    key = SignerKey(name, kind, secrets.token_bytes(32))
    # A key that no quorum can name is refused before it is stored.
    Quorum((key.verifier,), 1)
    durable.create(path, f"{key.format()}\n".encode(), mode=0o600)


def _read_key(path: Path) -> SignerKey:
    with path.open("rb") as file:
        mode, data = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(_MAX_KEY_FILE)
    # A stolen key could cosign another history in this witness's name.
    if mode & 0o077:
        raise Untrusted(KeysCode.DAMAGED, f"Others on this machine may read {path}.", fix=f"Run: chmod 600 {path}")
    try:
        key = SignerKey.parse(data.decode("ascii").removesuffix("\n"))
        Quorum((key.verifier,), 1)
    except (UnicodeDecodeError, TreatyError) as error:
        raise Untrusted(KeysCode.DAMAGED, f"{path} holds no key of a witness.", fix="Bring it back from a backup.") from error
    return key
