"""Keep the statements that a witness stamped, and show them to the log and to everyone (`treaty_consensus.stamped`).

    DATA/box/HEX/NUMBER.stamped.json     a stamped statement; HEX = SHA-256 of the log's origin; NUMBER = 12 digits, in the order
                                         of arrival

A file is complete and synced before its stamp is returned: a crash leaves a statement that was never acknowledged, or one that
the log can read. It is deleted a day after its stamp obliges no more, and nothing else deletes it, because a log must be able to
learn of each statement that was stamped. So the bytes for a log are bounded, and shared by network: one network has at most as
much as is free. However many networks flood a box, the next one finds room.

A witness does not know the keys of a domain's DID, so it checks the signatures of did:keys alone. A forged statement takes room,
and no log takes it.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from treaty_consensus import canonical, statement
from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import WitnessCode
from treaty_consensus.errors import NotFound, TreatyError, Unavailable, Untrusted
from treaty_consensus.facts import keys_of
from treaty_consensus.log.note import SignerKey
from treaty_consensus.stamped import LASTS, SUFFIX, Stamped, stamp, stampable
from treaty_io import durable
from treaty_io.network.turns import asker_at

from ..codes import QuotaCode, RegistryWitnessCode
from ..storage.space import FreeSpace
from .cosigner import Cosigner

ROOM = 16 * 1024 * 1024
"""Bytes of the statements of one log, about eight thousand ballots. A registry reads all of them when it closes an epoch."""
KEPT = LASTS + 24 * 3600
"""Seconds. A day longer than a stamp obliges, so that a log can always read what it is obliged by."""
PAGE = 128
"""Statements of an answer, about 300 KB."""
_DISK = 64 * 1024 * 1024  # bytes kept free on the disk
_BEFORE = "before the start"  # the network of all that an earlier process took

_log = structlog.get_logger(__name__)


@dataclass
class _Kept:
    """A statement of a box.

    `digest`: of the envelope. `time`: of the stamp. `size`: of the envelope. `network`: from which it came, as long as this
    process runs; no address is stored.
    """

    path: Path
    digest: str
    time: int
    size: int
    network: str = _BEFORE


@dataclass
class _LogBox:
    """The statements for one log.

    `kept`: by number. `numbers`: by the digest of the envelope. `used`: network → bytes. `following`: the next number.
    `turn`: one is taken at a time, because each is judged by the room that those before it left.
    """

    folder: Path
    kept: OrderedDict[int, _Kept] = field(default_factory=OrderedDict)
    numbers: dict[str, int] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    following: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock)

    def add(self, entry: _Kept) -> None:
        """Add the statement whose file is named by `following`."""
        self.kept[self.following] = entry
        self.numbers[entry.digest] = self.following
        self.used[entry.network] += entry.size
        self.following += 1

    def expire(self, until: float) -> None:
        """Delete the statements that were stamped before `until`."""
        while self.kept and next(iter(self.kept.values())).time < until:
            number, stored = next(iter(self.kept.items()))
            stored.path.unlink(missing_ok=True)
            del self.kept[number], self.numbers[stored.digest]
            self.used[stored.network] -= stored.size
            if not self.used[stored.network]:
                del self.used[stored.network]


class Boxes:
    """The boxes of all logs of a witness. Blocks on the disk. Safe for threads."""

    def __init__(self, data: Path, cosigner: Cosigner, key: SignerKey, clock: Callable[[], float]) -> None:
        """`key`: the Ed25519 key of the witness, which signs the stamps."""
        self._data = data
        self._cosigner = cosigner
        self._key = key
        self._clock = clock
        self._boxes: dict[str, _LogBox] = {}
        self._origins = {hex_digest(origin.encode()): origin for origin in cosigner.logs}
        self._opening = threading.Lock()
        self.room = FreeSpace(data, "stamped statements", _DISK)

    def take(self, leaf: bytes, source: str | None) -> bytes:
        """Store a statement that came from the IP address `source`, and return the note of its stamp. Durable on return.

        The same envelope gets its first stamp again. Raises as `stampable`, `NotFound` (`witness.unknown-log`), `Unauthorized`
        for a wrong signature of a did:key, `Unavailable` (`quota.sender`, `witness.record`,
        `disk.full`), and `Untrusted` (`witness.record`) for damaged files.
        """
        parsed = stampable(leaf)
        if parsed.log not in self._cosigner.logs:
            raise NotFound(WitnessCode.UNKNOWN_LOG, f"No log called {parsed.log[:80]} is witnessed here.")
        if all(did.method == "key" for did in parsed.authors):
            statement.verify(parsed, {key_id: key for did in parsed.authors for key_id, key in keys_of({}, did).items()})
        box, digest = self._open(parsed.log), hex_digest(leaf)
        with box.turn:
            box.expire(self._clock() - KEPT)
            if digest in box.numbers:
                return _read(box.kept[box.numbers[digest]].path).stamp
            network = asker_at(source)
            self._check_room(box, network, len(leaf))
            return self._store(box, stamp(leaf, self._key, int(self._clock())), digest, network)

    def page(self, origin_hash: str, start: int) -> bytes:
        """Return the statements from number `start` on, at most `PAGE`, and the number to continue at, as canonical JSON:

            {"next": NUMBER, "stamped": [{"stamp": NOTE, "statement": ENVELOPE, "stamped": 1}, …]}

        Raises `NotFound` (`witness.unknown-log`), and `Untrusted` (`witness.record`) for damaged files.
        """
        origin = self._origins.get(origin_hash)
        if origin is None:
            raise NotFound(WitnessCode.UNKNOWN_LOG, "No log whose origin has this hash is witnessed here.")
        box = self._open(origin)
        with box.turn:
            box.expire(self._clock() - KEPT)
            numbers = [number for number in box.kept if number >= start][:PAGE]
            paths = [box.kept[number].path for number in numbers]
            following = numbers[-1] + 1 if numbers else box.following
        # Without the turn: readers must not hold up those who bring something. A file that expires meanwhile is not shown.
        listed = canonical.join_array(data for path in paths if (data := _bytes(path)))
        return canonical.join_object({"next": canonical.dumps(following), "stamped": listed})

    def _check_room(self, box: _LogBox, network: str, size: int) -> None:
        # At most what is free: k networks that take all they can leave a part of 1 / (k + 1) to the next one.
        if box.used[network] + size > ROOM - box.used.total() - size:
            raise Unavailable(
                QuotaCode.SENDER,
                "This witness holds too many statements of your network.",
                fix="Send it to another witness of the log, or to the log itself.",
            )
        self.room.check(size)

    def _store(self, box: _LogBox, stamped: Stamped, digest: str, network: str) -> bytes:
        path, time = box.folder / f"{box.following:012}{SUFFIX}", int(self._clock())
        try:
            # Synced before the stamp is returned: the log could be accused of a statement that it can read nowhere.
            durable.write(path, stamped.format(), mode=0o600)
        except OSError as error:
            _log.error("statement not stored", error=str(error))
            raise Unavailable(RegistryWitnessCode.RECORD, "This witness cannot store statements now.") from error
        box.add(_Kept(path, digest, time, len(stamped.leaf), network))
        return stamped.stamp

    def _open(self, origin: str) -> _LogBox:
        with self._opening:
            if origin not in self._boxes:
                box, key = _LogBox(self._data / "box" / hex_digest(origin.encode())), self._key.verifier
                for path in sorted(box.folder.glob(f"*{SUFFIX}")):
                    stamped, box.following = _read(path), int(path.name.removesuffix(SUFFIX))
                    time = stamped.times([key]).get(key, 0)
                    box.add(_Kept(path, hex_digest(stamped.leaf), time, len(stamped.leaf)))
                self._boxes[origin] = box
            return self._boxes[origin]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _read(path: Path) -> Stamped:
    try:
        return Stamped.parse(path.read_bytes())
    except TreatyError as error:
        raise Untrusted(
            RegistryWitnessCode.RECORD, f"{path} is damaged.", fix="Bring it back from a backup, or move it away."
        ) from error
