"""Rotate the keys of the log, its clock and its authority: prepare the next ones, log the rotation, retire the ones before.

    DATA/keys/next/       made by `prepare`, copied to every node and into the backup by people, then named in the log
    DATA/keys/retired/    where `retire` moves the keys before, after the overlap

The log says which keys sign, so a crash between two steps changes nothing: a key that is here and not logged signs nothing, and
a logged one signs from whichever folder it is in. Each step can be repeated. The next authority signs from the end of the overlap
on, alone; until then it is in the trusted root only, so that a client that keeps this root has time to fetch it anew.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from treaty_consensus.codes import RotationCode
from treaty_consensus.errors import Conflict, NotFound, Refused, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey, sign
from treaty_consensus.rotation import Rotation, rotation_text, signers_of_rotation
from treaty_consensus.statement import Verified
from treaty_io import durable

from ..codes import KeysCode
from ..keys import NEXT, PINNED_ROOT, Operator, load_key, load_operator
from ..log.checkpoints import CheckpointSigner
from ..sigstore_authority.keys import AuthorityKeys, create_keys

_log = structlog.get_logger(__name__)

RETIRED = "retired"
ROLES = {"log": KeyType.ED25519, "clock": KeyType.COSIGNATURE}
AUTHORITY = "authority"
"""The third role: the Sigstore authority."""


@dataclass(frozen=True)
class Rotated:
    """The keys that sign, the leaf that named them, and the end of the overlap in POSIX seconds.

    `authority`: the SHA-256 of the next authority that the leaf names, if it names one.
    """

    log_key: str
    clock_key: str
    index: int
    until: int
    authority: str | None = None


def prepare(directory: Path, roles: Collection[str]) -> list[str]:
    """Make the next keys of these `ROLES`, or of the `AUTHORITY`, in the directory of the keys; return them in public form.
    Durable on return.

    Raises `Conflict` (`keys.exists`), and as `load_operator`. A crash leaves nothing, or a hidden folder that is never read.
    """
    operator = load_operator(directory, rotating=True)
    if operator.next or operator.next_authority:
        raise Conflict(
            KeysCode.EXISTS,
            f"{directory / NEXT} has the keys of a rotation.",
            fix="Log it with treaty-registry rotate. If it is logged: treaty-registry retire-keys",
        )
    names = {"log": operator.log_key.name, "clock": operator.clock_key.name}
    keys = {role: SignerKey(names[role], ROLES[role], secrets.token_bytes(32)) for role in ROLES if role in roles}
    public = [str(key.verifier) for key in keys.values()]
    staging = Path(tempfile.mkdtemp(prefix=f".{NEXT}-", dir=directory))  # mkdtemp makes it 0700
    try:
        for role, key in keys.items():
            durable.create(staging / f"{role}.key", f"{key.format()}\n".encode(), mode=0o600)
        if AUTHORITY in roles:
            authority = create_keys(staging / AUTHORITY, origin=operator.origin, now=datetime.now(UTC))
            public.append(f"{AUTHORITY} {authority.named().digest}")
        # In one step, and never over keys that are there: an empty folder alone is replaced.
        staging.rename(directory / NEXT)
    # Also on Ctrl-C: private keys must not stay behind in the hidden folder.
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    durable.sync_directory(directory)
    return public


class Rotations:
    """The rotations of one log. Its methods block on the disk."""

    def __init__(self, directory: Path, operator: Operator) -> None:
        """`directory`: of the keys. `operator`: what it had at the start."""
        self._directory, self._operator = directory, operator
        self._reported: VerifierKey | None = None

    def signer(self, keys: LogKeys, now: int) -> CheckpointSigner:
        """Return the signer of a log with these keys. Raises as `Operator.signer`."""
        with suppress(Untrusted):
            return self._operator.signer(keys, now)
        # They may have been copied here since the start.
        self._operator = load_operator(self._directory)
        return self._operator.signer(keys, now)

    def secret(self, keys: LogKeys) -> bytes:
        """Return the seed of the log's newest key, which every node has; of its own key, if this node lacks that one."""
        newest = keys.newest.log
        if all(key.verifier != newest for key in self._operator.log_keys):
            # It may have been copied here since the start.
            self._operator = load_operator(self._directory)
        newest_key = next((key for key in self._operator.log_keys if key.verifier == newest), None)
        if newest_key is None and self._reported != newest:
            self._reported = newest
            _log.error("this node lacks the newest key of the log, so no other node takes its messages", key=str(newest))
        return (newest_key or self._operator.log_key).seed

    def authority(self, keys: LogKeys, root: bytes, now: int) -> AuthorityKeys:
        """Return the authority that signs at `now`. `root`: the pinned one. Raises `Unavailable` (`keys.missing`)."""
        authority = self._operator.authority_of(keys, root, now)
        if authority is None:
            # It may have been copied here since the start.
            self._operator = load_operator(self._directory)
            authority = self._operator.authority_of(keys, root, now)
        if authority is None:
            raise Unavailable(
                KeysCode.MISSING,
                "This registry's authority was rotated, and the keys of the one in force are not here.",
                fix="Its operator must copy keys/next from the data directory where the rotation was prepared.",
            )
        return authority

    def draft(self, keys: LogKeys, issued: datetime, overlap: int) -> Verified | None:
        """Return the statement that rotates to the prepared keys; None if it is logged already.

        `overlap`: seconds for which the keys before sign too. Raises `NotFound` (`keys.not-prepared`), and as `load_operator`.
        """
        operator = self._operator = load_operator(self._directory, rotating=True)
        if not (operator.next or operator.next_authority):
            raise _not_prepared("No rotation is prepared.", "Make the next keys first: treaty-registry prepare-rotation")
        before = keys.newest
        assert before.clock is not None, "the log names it"
        following = {key.type: key.verifier for key in operator.next}
        log, clock = following.get(KeyType.ED25519, before.log), following.get(KeyType.COSIGNATURE, before.clock)
        authority = operator.next_authority if not _names(keys, operator.next_authority) else None
        if (log, clock, authority) == (before.log, before.clock, None):
            return None
        until = int(issued.timestamp()) + overlap
        named = authority.named() if authority else None
        text = rotation_text(before, log, clock, until, named)
        own = {key.verifier: key for key in (operator.log_key, operator.clock_key, *operator.next)}
        signers = [own[key] for key in signers_of_rotation(before, log, clock, named) if key in own]
        proof = sign(text, signers, time=int(issued.timestamp())).decode()
        named = authority.named(text) if authority else None
        return operator.state(Rotation(str(log), str(clock), until, proof, named), issued=issued)

    def described(self, keys: LogKeys) -> Rotated:
        """Return the newest rotation."""
        term = keys.newest
        digest = term.authority.digest if term.authority else None
        return Rotated(str(term.log), str(term.clock), term.since - 1, term.until, digest)

    def retire(self, keys: LogKeys, now: datetime) -> list[str]:
        """Move the keys before the newest rotation to `retired`, and the new ones to their place; return the retired files.

        Raises `NotFound` (`keys.not-prepared`) without such a rotation, and `Refused` (`rotation.overlap`) before its overlap
        ended.
        """
        operator, term = load_operator(self._directory, rotating=True), keys.newest
        authority = operator.next_authority
        are_logged = all(key.verifier in (term.log, term.clock) for key in operator.next) and _names(keys, authority)
        if not (operator.next or authority) or not are_logged:
            raise _not_prepared("No rotation is to be ended.", "Log the prepared one first: treaty-registry rotate")
        if now.timestamp() < term.until:
            raise Refused(
                RotationCode.OVERLAP,
                f"The old keys sign until {datetime.fromtimestamp(term.until, UTC):%Y-%m-%d %H:%M:%S} UTC.",
                fix="Retire them after that time. Readers who have not followed the rotation by then need the new key from you.",
            )
        moved = [self._replace(role) for role, type_ in ROLES.items() if any(key.type == type_ for key in operator.next)]
        if authority is not None:
            moved += self._replace_authority(operator, keys)
        (self._directory / NEXT).rmdir()
        durable.sync_directory(self._directory)
        self._operator = load_operator(self._directory)
        return [str(path) for path in moved]

    def _replace(self, role: str) -> Path:
        place = self._directory / f"{role}.key"
        retired = self._directory / RETIRED / f"{role}-{load_key(place).verifier.id.hex()}.key"
        retired.parent.mkdir(mode=0o700, exist_ok=True)
        # The copy first. A crash in between leaves the old key in both places.
        if not retired.exists():
            durable.create(retired, place.read_bytes(), mode=0o600)
        (self._directory / NEXT / f"{role}.key").replace(place)
        return retired

    def _replace_authority(self, operator: Operator, keys: LogKeys) -> list[Path]:
        place, retired = self._directory / AUTHORITY, []
        # A crash between the two moves leaves the next one in its folder alone, where `load_operator` finds it.
        if place.exists():
            if operator.pinned_root is None:
                # First: afterwards the certificates in it are not here. A crash leaves the bytes that would be computed now.
                durable.write(self._directory / PINNED_ROOT, operator.trusted_root_of(keys.terms[0].log), mode=0o600)
            retired = [self._directory / RETIRED / f"{AUTHORITY}-{operator.authority.named().digest[:8]}"]
            retired[0].parent.mkdir(mode=0o700, exist_ok=True)
            place.rename(retired[0])
            durable.sync_directory(retired[0].parent)
        (self._directory / NEXT / AUTHORITY).rename(place)
        return retired


def _names(keys: LogKeys, authority: AuthorityKeys | None) -> bool:
    """Whether a rotation named this authority. True without one."""
    return authority is None or any(term.authority and term.authority.public == authority.public for term in keys.terms)


def _not_prepared(message: str, fix: str) -> NotFound:
    return NotFound(KeysCode.NOT_PREPARED, message, fix=fix)
