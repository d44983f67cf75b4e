"""Have a ballot, a report or a vouch stamped by witnesses of its log (`treaty_consensus.stamped`), and keep it with the stamps.

HOME/stamped/ORIGIN-HEX.stamped.json: ORIGIN has "_" for ":", HEX is the start of the SHA-256 of the envelope, 16 digits. A file
proves that the statement was there in time, should the log leave it out. `treaty audit` reads it, and deletes it once the log
has the statement. It is written before the statement goes to the log, so a crash loses none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import NotFound, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.note import KeyType, VerifierKey
from treaty_consensus.stamped import MAX_PAGE, SUFFIX, Stamped, read_page
from treaty_consensus.statement import Statement

from .. import durable
from ..base_url import parse_base_url
from ..codes import StampingCode
from ..network.exchange import BoundedClient
from ..network.hosts import Network
from ..registries.api import parse_problem, refusal_of

_PATIENCE = 10.0  # seconds: a witness that hangs must not keep a vote from the others
_MAX_ANSWER = 64 * 1024
_AHEAD = 300  # seconds by which a witness's clock may be ahead
_PAGE_START = b'{"next":'  # of an answer; a single statement begins with its stamp
_MAX_READ = 1024
"""Files of one log that an audit reads; more would only cost time."""


@dataclass(frozen=True)
class StampingWitness:
    """A witness that stamps statements: the prefix of its URLs, without a trailing slash, and its key."""

    url: str
    key: VerifierKey

    @classmethod
    def parse(cls, text: str) -> StampingWitness:
        """Parse URL#VKEY. Raises `Malformed` (`registry.url`, `note.key`) and `Untrusted` (`stamping.key`)."""
        url, _, vkey = text.partition("#")
        witness = cls(parse_base_url(url), VerifierKey.parse(vkey))
        if witness.key.type != KeyType.COSIGNATURE:
            raise Untrusted(StampingCode.KEY, f"{witness.key.name} stamps by its Ed25519 key (type 4).", fix="Name that key.")
        return witness

    async def stamp(self, http: BoundedClient, leaf: bytes, now: float) -> Stamped:
        """Have an envelope stamped, and check the stamp. `now`: Unix seconds.

        Raises the error that its problem describes, `Unavailable` (`stamping.unreachable`, `network.deadline`) when it cannot be
        reached, `Malformed` (`stamp.form`) for the stamp of another envelope, and `Untrusted` (`note.signature`, `stamping.key`,
        `stamping.time`).
        """
        request = http.build_request("POST", f"{self.url}/add-statement", content=leaf)
        try:
            reply = await http.exchange(request, limit=_MAX_ANSWER)
        except (httpx.HTTPError, OSError) as error:
            raise Unavailable(StampingCode.UNREACHABLE, f"{self.key.name} cannot be reached: {error}") from error
        if reply.status != httpx.codes.OK:
            raise refusal_of(reply.status, parse_problem(reply.body))
        stamped = Stamped.of(leaf, reply.body)
        at = stamped.times([self.key]).get(self.key)
        if at is None:
            raise Untrusted(StampingCode.KEY, f"The stamp is not by the key {self.key}.", fix="Ask its operator for URL#KEY.")
        # It would oblige the log to nothing before that time.
        if at > now + _AHEAD:
            raise Untrusted(StampingCode.TIME, f"The clock of {self.key.name} is {int(at - now)} seconds ahead of this one.")
        return stamped


@dataclass(frozen=True)
class StampedFolder:
    """The stamped statements of a home. `origin`: of their log."""

    folder: Path
    origin: str

    def keep(self, stamped: Stamped) -> Path:
        """Write a stamped statement; return its path. Durable on return. Raises OSError."""
        path = self.folder / f"{self._prefix}-{hex_digest(stamped.leaf)[:16]}{SUFFIX}"
        durable.write(path, stamped.format(), mode=0o600)  # it shows a vote before the log does
        return path

    def read(self) -> dict[Path, Stamped]:
        """Return the stamped statements, at most 1,024. A file that is none is passed over."""
        found = {}
        # With the digits, or a log whose name begins with this one would count.
        for path in sorted(self.folder.glob(f"{self._prefix}-{'[0-9a-f]' * 16}{SUFFIX}"))[:_MAX_READ]:
            try:
                found[path] = Stamped.parse(path.read_bytes())
            except (TreatyError, OSError):
                continue
        return found

    def drop(self, paths: Iterable[Path]) -> None:
        """Delete statements that the log has. Raises OSError."""
        for path in paths:
            path.unlink(missing_ok=True)

    @property
    def _prefix(self) -> str:
        return self.origin.replace(":", "_")


def read_stamped(path: Path) -> list[Stamped]:
    """Return the stamped statements in a file: one, or a witness's answer.

    Raises `NotFound` (`stamping.file`), and as `Stamped.parse`.
    """
    try:
        with path.open("rb") as file:
            # One byte more than the cap shows that the file is too large.
            data = file.read(MAX_PAGE + 1)
    except OSError as error:
        raise NotFound(StampingCode.FILE, f"{path} cannot be read: {error.strerror}.") from error
    return read_page(data)[1] if data.startswith(_PAGE_START) else [Stamped.parse(data)]


@dataclass(frozen=True)
class Stamping:
    """The witnesses by which statements go to a log, and where the stamped ones are kept."""

    witnesses: Sequence[StampingWitness]
    network: Network
    kept: StampedFolder
    clock: Callable[[], float] = field(default=time.time)

    async def stamp(self, statement: Statement) -> Stamped:
        """Return the statement with the stamps of all witnesses that answer, and keep it. Asks all of them at once.

        Raises the first witness's error when none of them stamps it; then nothing is kept. Raises OSError.
        """
        async with self.network.client(timeout=_PATIENCE) as http:
            work = (witness.stamp(http, statement.leaf, self.clock()) for witness in self.witnesses)
            outcomes = await asyncio.gather(*work, return_exceptions=True)
        asked = zip(self.witnesses, outcomes, strict=True)
        stamps = [(witness.key, each) for witness, each in asked if isinstance(each, Stamped)]
        for failure in outcomes:
            if isinstance(failure, BaseException) and (not stamps or not isinstance(failure, TreatyError)):
                raise failure
        joined = _joined(stamps)
        await asyncio.to_thread(self.kept.keep, joined)
        return joined


def _joined(stamps: Iterable[tuple[VerifierKey, Stamped]]) -> Stamped:
    (_, joined), *others = stamps
    for key, other in others:
        joined = joined.joined(other, [key])
    return joined
