"""Have a ballot, a report or a vouch stamped by witnesses of its log (`treaty_consensus.stamped`), and keep it with the stamps.

HOME/stamped/ORIGIN-HEX.stamped.json: ORIGIN has "_" for ":", HEX is the start of the SHA-256 of the envelope, 16 digits. A file
proves that the statement was there in time, should the log leave it out. It is deleted when the log has the statement: at once
by the receipt, or by `treaty audit`. It is written before the statement goes to the log, so a crash loses none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import StampCode, WitnessCode
from treaty_consensus.errors import NotFound, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.note import KeyType, VerifierKey
from treaty_consensus.log.proof import Receipt
from treaty_consensus.stamped import MARGIN, MAX_PAGE, SUFFIX, Stamped, read_page
from treaty_consensus.statement import Statement
from treaty_io import durable
from treaty_io.base_url import parse_base_url
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network

from ..registries.api import parse_problem, refusal_of
from .log_head import LogHead

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
        """Parse URL#VKEY. Raises `Malformed` (`registry.url`, `note.form`) and `Untrusted` (`stamp.signature`)."""
        url, _, vkey = text.partition("#")
        witness = cls(parse_base_url(url), VerifierKey.parse(vkey))
        if witness.key.type != KeyType.COSIGNATURE:
            raise Untrusted(StampCode.SIGNATURE, f"{witness.key.name} stamps by its Ed25519 key (type 4).", fix="Name that key.")
        return witness

    async def stamp(self, http: BoundedClient, leaf: bytes, now: float) -> Stamped:
        """Have an envelope stamped, and check the stamp. `now`: Unix seconds.

        Raises the error that its problem describes, `Unavailable` (`witness.unreachable`, `network.deadline`) when it cannot be
        reached, `Malformed` (`stamp.form`) for the stamp of another envelope, and `Untrusted` (`note.signature`,
        `stamp.signature`).
        """
        request = http.build_request("POST", f"{self.url}/add-statement", content=leaf)
        try:
            reply = await http.exchange(request, limit=_MAX_ANSWER)
        except (httpx.HTTPError, OSError) as error:
            raise Unavailable(WitnessCode.UNREACHABLE, f"{self.key.name} cannot be reached: {error}") from error
        if reply.status != httpx.codes.OK:
            raise refusal_of(reply.status, parse_problem(reply.body))
        stamped = Stamped.of(leaf, reply.body)
        at = stamped.times([self.key]).get(self.key)
        if at is None:
            raise Untrusted(StampCode.SIGNATURE, f"The stamp is not by the key {self.key}.", fix="Ask its operator for URL#KEY.")
        # It would oblige the log to nothing before that time.
        if at > now + _AHEAD:
            raise Untrusted(StampCode.SIGNATURE, f"The clock of {self.key.name} is {int(at - now)} seconds ahead of this one.")
        return stamped


@dataclass(frozen=True)
class StampedFolder:
    """The stamped statements of a home. `origin`: of their log."""

    folder: Path
    origin: str

    def keep(self, stamped: Stamped) -> Path:
        """Write a stamped statement; return its path. Durable on return. Raises OSError."""
        path = self.path(stamped)
        durable.write(path, stamped.format(), mode=0o600)  # it shows a vote before the log does
        return path

    def path(self, stamped: Stamped) -> Path:
        """Return the file of a stamped statement."""
        return self.folder / f"{self._prefix}-{hex_digest(stamped.leaf)[:16]}{SUFFIX}"

    def read(self) -> dict[Path, Stamped]:
        """Return the stamped statements, at most 1,024. A file that is none is passed over."""
        statements = {}
        # With the digits, or a log whose name begins with this one would count.
        for path in sorted(self.folder.glob(f"{self._prefix}-{'[0-9a-f]' * 16}{SUFFIX}"))[:_MAX_READ]:
            try:
                statements[path] = Stamped.parse(path.read_bytes())
            except (TreatyError, OSError):
                continue
        return statements

    def drop(self, paths: Iterable[Path]) -> None:
        """Delete statements that the log has. Raises OSError."""
        for path in paths:
            path.unlink(missing_ok=True)

    @property
    def _prefix(self) -> str:
        return self.origin.replace(":", "_")


def read_stamped(path: Path) -> list[Stamped]:
    """Return the stamped statements in a file: one, or a witness's answer.

    Raises `NotFound` (`stamp.form`), and as `Stamped.parse`.
    """
    try:
        with path.open("rb") as file:
            # One byte more than the cap shows that the file is too large.
            data = file.read(MAX_PAGE + 1)
    except OSError as error:
        raise NotFound(StampCode.FORM, f"{path} cannot be read: {error.strerror}.") from error
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
        answers = zip(self.witnesses, outcomes, strict=True)
        stamps = [(witness.key, each) for witness, each in answers if isinstance(each, Stamped)]
        for failure in outcomes:
            if isinstance(failure, BaseException) and (not stamps or not isinstance(failure, TreatyError)):
                raise failure
        (_, stamped), *others = stamps
        for key, other in others:
            stamped = stamped.joined(other, [key])
        await asyncio.to_thread(self.kept.keep, stamped)
        return stamped

    async def settle(self, stamped: Stamped) -> None:
        """Delete a stamped statement, now that the log has it. Raises OSError."""
        # An older one may have missed the close of an epoch, which only an audit sees.
        if self.clock() - min(self.times(stamped).values()) < MARGIN:
            await asyncio.to_thread(self.kept.drop, [self.kept.path(stamped)])

    def times(self, stamped: Stamped) -> dict[VerifierKey, int]:
        """Return which of the witnesses stamped a statement, and when."""
        return stamped.times([witness.key for witness in self.witnesses])


@dataclass(frozen=True)
class Delivery:
    """A statement that was sent.

    `receipt`: it was checked; None where only witnesses have the statement, because the registry failed (`failure`).
    `stamps`: the name of each witness that stamped it → its time.
    """

    receipt: Receipt | None
    stamps: Mapping[str, int] = field(default_factory=dict)
    failure: Unavailable | None = None


async def deliver(statement: Statement, head: LogHead, stamping: Stamping | None) -> Delivery:
    """Send a statement to its log, after the witnesses of `stamping` stamped it.

    With a stamp it is not lost when the registry fails: the registry reads it from the witness, or is accused. Raises as
    `LogHead.submit` and `Stamping.stamp`.
    """
    if stamping is None:
        return Delivery(await head.submit(statement))
    # First, because a witness may carry it to the log at once.
    await head.record(statement)
    stamped = await stamping.stamp(statement)
    stamps = {key.name: at for key, at in stamping.times(stamped).items()}
    try:
        receipt = await head.submit(statement)
    except Unavailable as error:
        return Delivery(None, stamps, error)
    await stamping.settle(stamped)
    return Delivery(receipt, stamps)
