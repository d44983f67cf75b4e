"""Hold the keys of a log's operator, and make the statements that only the operator can make.

    DATA/keys/log.key         the log's Ed25519 key, a C2SP signed-note signer key (`PRIVATE+KEY+ORIGIN+…`)
    DATA/keys/clock.key       its clock's cosignature key, the same form, named ORIGIN/clock
    DATA/keys/operator.json   the operator's did:key (`treaty_io.identity`)
    DATA/keys/authority/      the Sigstore authority's keys (`sigstore_authority.keys`)
    DATA/keys/next/           during a rotation: log.key, clock.key, authority/, the next ones (`operator.rotations`)
    DATA/keys/retired/        log-HEX.key, clock-HEX.key, authority-HEX/: those before a rotation; HEX: of their id
    DATA/keys/trusted-root.json   after a rotation of the authority: the trusted root that the genesis pins

The keys are made once, together: the complete directory appears in one step. All files are 0600, the directory is 0700. The log
says which keys sign, and not these files.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import stat
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import structlog

from treaty_client.registries.replies import Testimony
from treaty_consensus import statement
from treaty_consensus.canonical import b64encode, hex_digest, sha256
from treaty_consensus.codes import LogCode
from treaty_consensus.errors import NotFound, TreatyError, Untrusted
from treaty_consensus.facts import keys_of
from treaty_consensus.kinds import Body, Genesis
from treaty_consensus.log.checkpoint import KeyTerm, LogKeys
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey
from treaty_consensus.statement import Verified
from treaty_io import durable
from treaty_io.identity import Identity

from .codes import KeysCode
from .log.checkpoints import CheckpointSigner
from .sigstore_authority.keys import AuthorityKeys, create_keys, load_keys
from .sigstore_authority.trust import trusted_root

NEXT = "next"
"""The folder of the next keys, below that of the keys."""
PINNED_ROOT = "trusted-root.json"
_MAX_KEY_FILE = 4096  # bytes

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Operator:
    """The operator of the log `origin`, with its keys."""

    log_key: SignerKey
    clock_key: SignerKey
    identity: Identity
    authority: AuthorityKeys
    next: tuple[SignerKey, ...] = ()
    """The keys of a rotation that is prepared, or whose old keys are not retired yet."""
    next_authority: AuthorityKeys | None = None
    """The next authority in such a rotation."""
    pinned_root: bytes | None = None
    """The trusted root of the first authority, once that is retired."""

    @property
    def log_keys(self) -> list[SignerKey]:
        """Return the keys of the log that are here."""
        return [self.log_key, *(key for key in self.next if key.type == KeyType.ED25519)]

    @property
    def first_keys(self) -> LogKeys:
        """Return the keys in `log_key` and `clock_key`: those of a new log."""
        return LogKeys((KeyTerm(self.log_key.verifier, self.clock_key.verifier),))

    def signer(self, keys: LogKeys, now: int) -> CheckpointSigner:
        """Return the signer of a log with these keys. Raises `Untrusted` (`keys.missing`, `log.other`) if one is not here.

        `now`: POSIX seconds. During an overlap the keys before are needed too.
        """
        own = {key.verifier: key for key in (self.log_key, self.clock_key, *self.next)}
        term, before = keys.newest, keys.terms[-2:-1]
        ended = [key for old in before for key in (old.log, old.clock) if key and key not in (term.log, term.clock)]
        needed = [term.log, term.clock, *(ended if now < term.until else ())]
        missing = [str(key) for key in needed if key not in own]
        if missing and len(keys.terms) > 1 and any(past.log in own or past.clock in own for past in keys.terms):
            raise Untrusted(
                KeysCode.MISSING,
                f"The keys of {keys.name} were rotated at leaf {term.since - 1}. The data directory lacks {', '.join(missing)}.",
                fix="Copy keys/next from the data directory where the rotation was prepared, and start again.",
            )
        if missing or term.clock is None:
            raise Untrusted(
                LogCode.OTHER,
                "The log in this database has other keys than the ones in the data directory.",
                fix="Start with the data directory and the database that belong together.",
            )
        earlier = tuple(own[key] for key in ended if key in own)
        return CheckpointSigner(own[term.log], own[term.clock], earlier, term.until)

    @property
    def origin(self) -> str:
        """Return the log's name, which its key contains."""
        return self.log_key.name

    @property
    def did(self) -> str:
        """Return the operator's did:key."""
        return self.identity.did

    @cached_property
    def trusted_root(self) -> bytes:
        """Return the Sigstore trusted root of the registry's own authority: the bytes that the genesis of a new log pins."""
        return self.trusted_root_of(self.log_key.verifier)

    def trusted_root_of(self, first: VerifierKey) -> bytes:
        """Return the exact bytes that the genesis of a log pins. `first`: the log's key in its genesis."""
        return self.pinned_root or trusted_root(self.authority, origin=self.origin, log_key=first.public)

    async def check_root(self, keys: LogKeys | None, pinned: Callable[[], Awaitable[bytes]]) -> None:
        """Raise `Untrusted` (`keys.damaged`) unless the trusted root here is the one that the genesis of the log pins.

        `keys`: of the log; None before leaf 0. `pinned`: returns the SHA-256 in the genesis.
        """
        # Until a rotation of the authority the first one is here, and the root is made of it.
        if keys is None or not any(term.authority for term in keys.terms):
            return
        if sha256(self.trusted_root_of(keys.terms[0].log)) != await pinned():
            raise Untrusted(
                KeysCode.DAMAGED,
                "The data directory has neither the authority that the log's genesis pins, nor the trusted root of it.",
                fix="Bring keys/trusted-root.json back from a backup; it is made when that authority is retired.",
            )

    def authority_of(self, keys: LogKeys, root: bytes, now: int) -> AuthorityKeys | None:
        """Return the authority of a log with these keys that signs at `now` (POSIX seconds); None if it is not here.

        `root`: the trusted root that the genesis pins.
        """
        if not any(term.authority for term in keys.terms):
            return self.authority
        named = next((term.authority for term in reversed(keys.terms) if term.authority and now >= term.until), None)
        authorities = [each for each in (self.authority, self.next_authority) if each]
        if named is not None:
            return next((each for each in authorities if each.public == named.public), None)
        first = keys.terms[0].log.public
        return next((each for each in authorities if trusted_root(each, origin=self.origin, log_key=first) == root), None)

    def genesis(self) -> Genesis:
        """Return the body of leaf 0."""
        keys = str(self.log_key.verifier), str(self.clock_key.verifier)
        return Genesis(self.origin, *keys, operator=self.did, trusted_root=hex_digest(self.trusted_root))

    def state(self, body: Body, *, issued: datetime) -> Verified:
        """Return a statement by the operator, signed."""
        signed = self.identity.statement(body, log=self.origin, issued=int(issued.timestamp()))
        return statement.verify(signed, keys_of({}, signed.author))

    def testify(self, body: Body, cosigner: str, *, issued: datetime) -> Testimony:
        """Sign the operator's half of a statement that the key `cosigner` must also sign."""
        key_id = self.identity.key_id
        draft = statement.draft(body, log=self.origin, by=(key_id, cosigner), issued=int(issued.timestamp()))
        signature = self.identity.sign(draft.signing_input)
        return Testimony(b64encode(draft.payload), key_id, b64encode(signature))


def create_operator(directory: Path, origin: str) -> Operator:
    """Make the keys of a new log and store them as `directory`, which must not exist. Durable on return; raises OSError."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))  # mkdtemp makes it 0700
    try:
        for name, key in (
            ("log.key", SignerKey(origin, KeyType.ED25519, secrets.token_bytes(32))),
            ("clock.key", SignerKey(f"{origin}/clock", KeyType.COSIGNATURE, secrets.token_bytes(32))),
        ):
            durable.create(staging / name, f"{key.format()}\n".encode(), mode=0o600)
        Identity.create().save(staging / "operator.json")
        create_keys(staging / "authority", origin=origin, now=datetime.now(UTC))
        # All keys appear in one step. A crash before it leaves only a hidden directory, and the next start makes new
        # keys.
        staging.rename(directory)
    # Also on Ctrl-C: private keys must not stay behind in the hidden directory.
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    descriptor = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A rename is durable only with its directory. The genesis pins these keys, so the log must not begin before
        # them.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    # Read back, so that no log begins with keys that cannot be loaded later.
    return load_operator(directory)


def load_operator(directory: Path, *, rotating: bool = False) -> Operator:
    """Read the files of `create_operator`.

    Keys in `next` that this user may not read count as absent; with `rotating` they raise PermissionError. Raises `NotFound`, or
    `Untrusted` when other users can read a key or the parts do not fit.
    """
    log_key, clock_key = load_key(directory / "log.key"), load_key(directory / "clock.key")
    if log_key.type != KeyType.ED25519 or clock_key.type != KeyType.COSIGNATURE or clock_key.name != f"{log_key.name}/clock":
        raise Untrusted(KeysCode.DAMAGED, f"The keys in {directory} do not belong together.")
    upcoming, following = _load_next(directory / NEXT, needed=rotating)
    if any(key.name != named.name or key.type != named.type for key in upcoming for named in _of_role(key, log_key, clock_key)):
        raise Untrusted(KeysCode.DAMAGED, f"The keys in {directory / NEXT} are not those of {log_key.name}.")
    # `Rotations.retire` moves two folders, and may have been ended between them.
    present = following is None or (directory / "authority").exists()
    authority = load_keys(directory / "authority") if present else following
    assert authority is not None, "one of them is there"
    root = directory / PINNED_ROOT
    pinned = root.read_bytes() if root.exists() else None
    return Operator(log_key, clock_key, Identity.load(directory / "operator.json"), authority, upcoming, following, pinned)


def _load_next(directory: Path, *, needed: bool) -> tuple[tuple[SignerKey, ...], AuthorityKeys | None]:
    """Return the keys of a prepared rotation. If they are not needed: none of them when this user may not read them."""
    try:
        if directory.exists():
            next(directory.iterdir(), None)  # `glob` finds nothing in a folder that it may not read
        keys = tuple(load_key(path) for path in sorted(directory.glob("*.key")))
        return keys, load_keys(directory / "authority") if (directory / "authority").exists() else None
    except PermissionError:
        if needed:
            raise
        # The present keys sign until the rotation is logged. Then `Operator.signer` says which ones are missing.
        _log.warning(
            "the keys of the next rotation cannot be read",
            folder=str(directory),
            effect="The present keys sign. Once the rotation is logged, this registry cannot sign.",
            fix=f"chown -R {os.geteuid()}:{os.getegid()} {shlex.quote(str(directory))}",
        )
        return (), None


def key_files(directory: Path) -> list[Path]:
    """Return the files of the keys, and their folders before them; without those of `next` that this user may not read."""
    paths = sorted(directory.rglob("*"))
    below_next = [path for path in paths if directory / NEXT in (path, *path.parents)]
    if all(os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)) for path in below_next):
        return paths
    return [path for path in paths if path not in below_next]


def _of_role(key: SignerKey, log_key: SignerKey, clock_key: SignerKey) -> list[SignerKey]:
    return [log_key if key.type == KeyType.ED25519 else clock_key]


def load_key(path: Path) -> SignerKey:
    """Read a key of a log or a clock. Raises `NotFound`, or `Untrusted` when others can read it or it is damaged."""
    try:
        with path.open("rb") as file:
            # The mode of the opened file: the file at the path could be replaced between two calls.
            mode, data = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(_MAX_KEY_FILE)
    except FileNotFoundError as error:
        raise NotFound(KeysCode.MISSING, f"There is no {path}.", fix="Bring the keys back from a backup.") from error
    if mode & 0o077:
        raise Untrusted(KeysCode.DAMAGED, f"Others on this machine may read {path}.", fix=f"Run: chmod 600 {path}")
    try:
        return SignerKey.parse(data.decode("ascii").removesuffix("\n"))
    except (UnicodeDecodeError, TreatyError) as error:
        raise Untrusted(KeysCode.DAMAGED, f"{path} holds no signer key.", fix="Bring it back from a backup.") from error
