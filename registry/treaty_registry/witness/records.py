"""What a witness keeps: its key, and of each log the newest checkpoint that it may have cosigned.

    DATA/witness.key        0600: a C2SP signed-note signer key of type 0x04 (`PRIVATE+KEY+NAME+…`)
    DATA/logs/HEX           the log's checkpoint, with no signature but the log's; HEX = SHA-256 of the origin
    DATA/evidence/HEX.equivocation.json        proofs that a log signed two histories; HEX = SHA-256 of the file
    DATA/lock               held by the running witness; never deleted

Files are written whole and synced: a crash leaves the old record or the new one. A record is written before its cosignature is
made, so at worst something is recorded that was never cosigned. Never restore an old `logs`: the witness would cosign again what
contradicts what it forgot.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treaty_client import durable
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Conflict, NotFound, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import SignedCheckpoint, open_checkpoint
from treaty_consensus.log.equivocation import SUFFIX, Equivocation
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey
from treaty_consensus.log.witness import Quorum

_MAX_KEY_FILE = 4096


class Store:
    """The data directory of a witness. Blocks on the disk; writes for one log are the caller's to put in order."""

    def __init__(self, data: Path) -> None:
        self._data = data

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the directory. Raises `Unavailable` when another process does."""
        self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Unavailable("witness.held", f"Another witness runs on {self._data}.", fix="Stop it first.") from error
            yield
        finally:
            os.close(descriptor)

    def key(self, name: str | None) -> SignerKey:
        """The witness's key; made under `name` when there is none yet.

        Raises `NotFound` when there is none and no name, `Conflict` when it has another name, `Malformed` when no witness can
        have the name, `Untrusted` when others may read it or it is none.
        """
        path = self._data / "witness.key"
        if not path.exists():
            if name is None:
                raise NotFound("witness.no-key", f"There is no witness in {self._data}.", fix="Name it to make one: --name NAME")
            made = SignerKey(name, KeyType.COSIGNATURE, secrets.token_bytes(32))
            Quorum((made.verifier,), 1)
            durable.create(path, f"{made.format()}\n".encode(), mode=0o600)
        key = _read_key(path)
        if name not in (None, key.name):
            raise Conflict(
                "witness.other-name",
                f"The witness in {self._data} is {key.name}, and whoever trusts it knows it by that name.",
                fix="Leave --name out, or choose an empty directory.",
            )
        return key

    def latest(self, log: VerifierKey) -> SignedCheckpoint | None:
        """What was recorded last for a log, None for nothing. Raises `Untrusted` when it is damaged, or by another key."""
        path = self._record(log.name)
        try:
            return open_checkpoint(path.read_bytes(), log)
        except FileNotFoundError:
            return None
        except TreatyError as error:
            raise Untrusted(
                "witness.record",
                f"{path} is no checkpoint of {log.name} signed by the key that is trusted.",
                fix="Bring back the newest copy of this file, or leave that log out.",
            ) from error

    def record(self, signed: SignedCheckpoint) -> None:
        """Replace what is recorded for a log. Durable when it returns; raises OSError."""
        durable.write(self._record(signed.checkpoint.origin), signed.note, mode=0o600)

    def keep(self, proof: Equivocation) -> Path:
        """Keep a proof; where. Raises OSError."""
        data = proof.format()
        path = self._data / "evidence" / f"{hex_digest(data)}{SUFFIX}"
        if not path.exists():
            durable.write(path, data)
        return path

    def _record(self, origin: str) -> Path:
        return self._data / "logs" / hex_digest(origin.encode())


def _read_key(path: Path) -> SignerKey:
    with path.open("rb") as file:
        mode, data = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(_MAX_KEY_FILE)
    if mode & 0o077:
        raise Untrusted("witness.key-mode", f"Others on this machine may read {path}.", fix=f"Run: chmod 600 {path}")
    try:
        key = SignerKey.parse(data.decode("ascii").removesuffix("\n"))
        Quorum((key.verifier,), 1)
    except (UnicodeDecodeError, TreatyError) as error:
        raise Untrusted("witness.key", f"{path} holds no key of a witness.", fix="Bring it back from a backup.") from error
    return key
