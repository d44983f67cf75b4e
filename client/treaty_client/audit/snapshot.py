"""Save a replay that held, so that the next one begins where it ended.

    FOLDER/replay         the state of a replay: its counts, facts and digests
    KEY                   32 random bytes, 0600: the auditor's own

The file consists of sections, each its length (8 bytes, big-endian) and its bytes, and of the HMAC-SHA256 of all of them under
the key:

    head        {"format", "rules", "origin", "size", "root", "note"}    JCS; "note" is the mirrored checkpoint
    state       msgpack of `_State`: sets are sorted, lists have the order of the log
    key, fact, key, fact, …, an empty section         the facts, sorted by key
    digests, digests, …, an empty section             32 bytes each, sorted, at most 4,096 a section

Nothing in a log can verify such a state: it must be one that this auditor made. So a snapshot counts only

- under the auditor's key, which lies outside the folder of the mirror, and in files that only its user can write;
- for the very rules that made it: the code of the replay is hashed into the head;
- at a root of the mirrored log, proved from its tiles. A root that the log signed and that the mirror lacks is a fork.

All else is ignored, and the replay begins at leaf 0. A snapshot is replaced whole: a crash leaves the older one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path
from typing import IO, Final

import msgspec

from treaty_consensus import canonical
from treaty_consensus.audit import SavedReplay
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.facts import log_of
from treaty_io import durable
from treaty_io.codes import ClientAuditCode

from ..protocols import equivocation
from .mirror import Mirror
from .replay import AuditedReplay, Notes
from .replay_store import ReplayStore

MAX_SNAPSHOT: Final = 8 * 1024**3
"""Bytes of a snapshot, ten times those of a log of a million statements. A larger state is not saved."""
_MAX_STATE: Final = 1024**3
"""Bytes of the section that is decoded in memory."""
_MAX_SECTION: Final = 1024**2
_FORMAT: Final = 1
_MAC: Final = hashlib.sha256().digest_size
_CHUNK: Final = 1024**2
DIGESTS_TOGETHER: Final = 4096
"""Digests of a section."""


class _State(msgspec.Struct, frozen=True, array_like=True):
    replay: SavedReplay
    notes: Notes


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    rules: str
    origin: str
    size: int
    root: str
    note: str


@dataclass(frozen=True)
class Snapshot:
    """A saved replay, whose facts and digests are still in its open file. A context manager, which closes it.

    `size`, `root`: of its leaves. `note`: the checkpoint that covered them.
    """

    size: int
    root: bytes
    note: bytes
    replay: SavedReplay
    notes: Notes
    _rest: IO[bytes]

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *reason: object) -> None:
        self._rest.close()

    def fits(self, mirror: Mirror, evidence: Path) -> bool:
        """Tell whether the mirrored log begins with these leaves. A smaller mirror cannot show it.

        Raises `Untrusted` (`audit.fork`) when the log signed these leaves, and others for the mirror; a proof is written into
        `evidence`.
        """
        mirrored = mirror.checkpoint()
        if mirrored is None or mirrored.checkpoint.size < self.size:
            return False
        if mirror.root_at(self.size) == self.root:
            return True
        try:
            proof = mirror.equivocation(mirror.keys.open_by_any(self.note))
        except TreatyError:
            return False  # a key that this auditor trusted once, and does not now
        fix = "Keep the mirror: together with that checkpoint it proves it."
        raise Untrusted(
            ClientAuditCode.FORK,
            f"An earlier audit replayed {self.size} leaves under a checkpoint of this log, and the mirrored leaves do not begin "
            "with them: the log showed two histories.",
            fix=equivocation.fix_for(equivocation.keep(evidence, proof)) if proof else fix,
        )

    def load(self, store: ReplayStore) -> None:
        """Move the facts and digests into an empty store. Call it once."""
        store.restore(_facts(self._rest), _digests(self._rest))


@dataclass(frozen=True)
class Snapshots:
    """The snapshot of one log, in `folder`. `key`: the file of the auditor's key, which is made when it is absent."""

    folder: Path
    key: Path

    def save(self, run: AuditedReplay, note: bytes, store: ReplayStore, *, before: int = 0) -> bool:
        """Replace the snapshot by the state of a replay that held, whose leaves the checkpoint `note` covers. Durable on return.

        Return False, and change nothing, when an epoch is being closed, when little was added to the `before` leaves of the
        present snapshot, or when the state is too large or the disk fails: without a snapshot the next replay takes longer.
        """
        # A sixteenth: so all writing together takes a few times the bytes of the newest one, however often an audit runs.
        if run.replay.size - before <= before // 16 or (saved := run.replay.saved()) is None:
            return False
        state = msgspec.msgpack.Encoder(order="deterministic").encode(_State(saved, run.notes()))
        origin = log_of(run.replay.facts).origin
        head = _Head(_FORMAT, rules(), origin, saved.size, saved.root().hex(), note.decode())
        try:
            with durable.replacing(self._path, mode=0o600) as file:
                self._write(file, _sections(canonical.dumps(msgspec.to_builtins(head)), state, store))
        except (OSError, ValueError):
            return False
        return True

    def resume(self, origin: str, mirror: Mirror, evidence: Path, store: ReplayStore) -> Snapshot | None:
        """Return the snapshot that `find` returns and that fits the mirror, with its facts and digests in an empty store.

        Raises as `Snapshot.fits`.
        """
        snapshot = self.find(origin)
        if snapshot is None:
            return None
        with snapshot:
            if not snapshot.fits(mirror, evidence):
                return None
            snapshot.load(store)
            return snapshot

    def find(self, origin: str) -> Snapshot | None:
        """Return the snapshot, or None unless it is whole, this auditor's, of this log and of these rules."""
        with suppress(OSError, TreatyError, msgspec.MsgspecError, ValueError), ExitStack() as stack:
            file = stack.enter_context(self._opened())
            head = msgspec.json.decode(_section(file, _MAX_SECTION), type=_Head)
            if (head.format, head.rules, head.origin) == (_FORMAT, rules(), origin):
                state = msgspec.msgpack.decode(_section(file, _MAX_STATE), type=_State)
                root = bytes.fromhex(head.root)
                if (state.replay.size, state.replay.root()) == (head.size, root):
                    stack.pop_all()
                    return Snapshot(head.size, root, head.note.encode(), state.replay, state.notes, file)
        return None

    def _write(self, file: IO[bytes], sections: Iterator[bytes]) -> None:
        mac, written = hmac.new(self._secret(), digestmod=hashlib.sha256), 0
        for number, section in enumerate(sections):
            data = len(section).to_bytes(8, "big") + section
            written += len(data)
            if written > MAX_SNAPSHOT or (number == 1 and len(section) > _MAX_STATE):
                raise ValueError("the state is too large")
            mac.update(data)
            file.write(data)
        file.write(mac.digest())

    @property
    def _path(self) -> Path:
        return self.folder / "replay"

    def _opened(self) -> IO[bytes]:
        """Open the snapshot behind its MAC. Raises OSError, and ValueError unless it is whole and this auditor's."""
        file = _own(self._path)
        try:
            size = os.fstat(file.fileno()).st_size - _MAC
            if not 0 < size <= MAX_SNAPSHOT:
                raise ValueError("not a snapshot")
            mac = hmac.new(self._secret(), digestmod=hashlib.sha256)
            left = size
            # Before anything is parsed.
            while left and (data := file.read(min(_CHUNK, left))):
                mac.update(data)
                left -= len(data)
            if left or not hmac.compare_digest(mac.digest(), file.read()):
                raise ValueError("not this auditor's snapshot")
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def _secret(self) -> bytes:
        with suppress(FileExistsError):
            if not self.key.exists():
                # As `create`: of two processes that begin at once, both use the key of the first.
                durable.create(self.key, secrets.token_bytes(_MAC), mode=0o600)
        with _own(self.key) as file:
            secret = file.read(_MAC + 1)
        if len(secret) != _MAC:
            raise ValueError("not a key")
        return secret


def _own(path: Path) -> IO[bytes]:
    """Open a file that only the present user can write. Raises OSError, and ValueError for another file."""
    flags = durable.BINARY if sys.platform == "win32" else os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.fdopen(os.open(path, os.O_RDONLY | flags), "rb")
    status = os.fstat(file.fileno())
    # Windows has no owners and modes of this kind: its folders of users say who may write.
    foreign = sys.platform != "win32" and (status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    if not stat.S_ISREG(status.st_mode) or foreign:
        file.close()
        raise ValueError(f"{path} is not this user's own file")
    return file


def _sections(head: bytes, state: bytes, store: ReplayStore) -> Iterator[bytes]:
    yield head
    yield state
    for key, fact in store.all_facts():
        yield key
        yield fact
    yield b""
    digests = store.all_digests()
    while together := b"".join(islice(digests, DIGESTS_TOGETHER)):
        yield together
    yield b""


def _section(file: IO[bytes], limit: int) -> bytes:
    size = int.from_bytes(file.read(8), "big")
    if size > limit:
        raise ValueError("a section is too large")
    return file.read(size)


def _facts(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    while key := _section(file, _MAX_SECTION):
        yield key.decode(), _section(file, _MAX_SECTION)


def _digests(file: IO[bytes]) -> Iterator[bytes]:
    while together := _section(file, _MAX_SECTION):
        yield from (together[place : place + 32] for place in range(0, len(together), 32))


@cache
def rules() -> str:
    """Return the digest of the code that replays, and of Python.

    A version that people raise would be forgotten once. The price is a replay from leaf 0 after each update.
    """
    code = hashlib.sha256(f"{sys.byteorder} {sys.version}".encode())
    for package in ("treaty_consensus", "treaty_client.audit"):
        for name, data in _files(resources.files(package), package):
            code.update(f"{name} {len(data)} ".encode())
            code.update(data)
    return code.hexdigest()


def _files(folder: Traversable, name: str) -> Iterable[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _files(entry, f"{name}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{name}/{entry.name}", entry.read_bytes()
