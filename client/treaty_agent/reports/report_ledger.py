"""Store an agent's reports below HOME.

    HOME/reports/NID.json             {"document": HEX, "epoch": N, "peer": DID, "settled": BOOL, "topic": TOPIC}
    HOME/reports/outbox/ID.json       {"due": UNIX-SECONDS, "leaf": B64}, a signed report until the log has it

Both are canonical JSON and appear as a whole. The file of a negotiation is created exclusively, so only one of two processes with
the same home can sign for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from treaty_client.registries.signed import SIGNED, SignedIds
from treaty_consensus import canonical, statement
from treaty_consensus.errors import Conflict, Refused, TreatyError, Unavailable
from treaty_consensus.kinds import Count, Digest
from treaty_consensus.statement import MAX_LEAF, Statement
from treaty_io import durable
from treaty_io.codes import ClientReportCode

# Caps of files that this agent wrote itself: a damaged disk or another program must not fill the memory.
_MAX_RECORD = 4096
_MAX_WAITING = 2 * MAX_LEAF
_S = TypeVar("_S", bound=msgspec.Struct)
_T = TypeVar("_T")


class SignedReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a signature about one negotiation. `settled`: the other side has signed it too, or this side signs last."""

    peer: str
    topic: str
    document: Digest
    epoch: Count
    settled: bool


class _Waiting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    due: Count
    leaf: str


class ReportLedger:
    """Read and write HOME/reports. All methods raise `Unavailable` (`report.ledger`) when the disk fails or a file is damaged."""

    def __init__(self, home: Path) -> None:
        """Read nothing yet."""
        self._folder = home / "reports"
        self._outbox = self._folder / "outbox"
        self._signed = SignedIds(home / SIGNED)
        self._pairs: set[tuple[str, str, int]] | None = None

    def has(self, peer: str, topic: str, epoch: int) -> bool:
        """Return whether this process knows of a settled report with this peer on this topic in this epoch."""
        if self._pairs is None:
            records = (_guarded(partial(_read, path, SignedReport, _MAX_RECORD)) for path in _files(self._folder))
            self._pairs = {(record.peer, record.topic, record.epoch) for record in records if record and record.settled}
        return (peer, topic, epoch) in self._pairs

    def epoch_of(self, nid: str) -> int | None:
        """Return the epoch of the settled report of a negotiation, or None."""
        known = self._record(nid)
        return known.epoch if known is not None and known.settled else None

    def record(self, id_: str) -> None:
        """Record the id of a report before it is signed. The other side may be the one that submits it."""
        _guarded(partial(self._signed.add, id_))

    def claim(self, nid: str, signed: SignedReport) -> None:
        """Store a report durably before it is signed; again when it is settled, or signed for a later epoch.

        Raises `Conflict` (`report.equivocation`) when this negotiation was signed with other content, `Refused`
        (`report.repeated`) when another negotiation with this peer on this topic was signed in this epoch.
        """
        path, before = self._path(nid), self._record(nid)
        # Compared with the disk and not with this process's memory: another process of the same home may have signed.
        if before is not None and (before.peer, before.topic, before.document) != (signed.peer, signed.topic, signed.document):
            raise Conflict(ClientReportCode.EQUIVOCATION, "This negotiation was reported with another document.")
        # The same negotiation may be signed again, because its epoch may have closed before the submission.
        if before is None and self.has(signed.peer, signed.topic, signed.epoch):
            raise Refused(ClientReportCode.REPEATED, "This peer and topic were reported in this epoch already.")
        data = canonical.dumps(msgspec.to_builtins(signed))
        # `create` is exclusive: of two processes only one gets the negotiation.
        place = durable.create if before is None else durable.write
        try:
            _guarded(lambda: place(path, data, mode=0o600))
        except FileExistsError as error:
            raise Conflict(ClientReportCode.EQUIVOCATION, "This negotiation is being reported by another process.") from error
        # Only after the write: a failed write must not count as a report.
        if self._pairs is not None and signed.settled:
            self._pairs.add((signed.peer, signed.topic, signed.epoch))

    def _path(self, nid: str) -> Path:
        return self._folder / f"{canonical.parse_digest(nid)}.json"

    def _record(self, nid: str) -> SignedReport | None:
        return _guarded(partial(_read, self._path(nid), SignedReport, _MAX_RECORD))

    def keep(self, report: Statement, due: int) -> None:
        """Keep a signed report for submission at Unix time `due`."""
        value = {"due": due, "leaf": canonical.b64encode(report.leaf)}
        _guarded(lambda: durable.write(self._outbox / f"{report.id}.json", canonical.dumps(value), mode=0o600))

    def waiting(self) -> list[tuple[int, Statement]]:
        """Return the kept reports, each with its due time."""
        found = []
        for path in _files(self._outbox):
            kept = _guarded(partial(_read, path, _Waiting, _MAX_WAITING))
            if kept is not None:
                found.append((kept.due, statement.parse(canonical.b64decode(kept.leaf, limit=MAX_LEAF))))
        return found

    def drop(self, report: Statement) -> None:
        """Remove a report that the log has, or has finally refused."""
        _guarded(lambda: (self._outbox / f"{report.id}.json").unlink(missing_ok=True))


def _files(folder: Path) -> list[Path]:
    # Files that begin with a dot are unfinished writes of a process that crashed.
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith(".")) if folder.is_dir() else []


def _read(path: Path, kind: type[_S], limit: int) -> _S | None:
    try:
        return msgspec.convert(canonical.loads(path.read_bytes(), limit=limit, name=path.name), kind)
    except FileNotFoundError:
        return None
    except (TreatyError, msgspec.ValidationError) as error:
        raise Unavailable(
            ClientReportCode.LEDGER,
            f"{path} is damaged.",
            fix="Move the file away. It protects against reporting one negotiation twice.",
        ) from error


def _guarded(work: Callable[[], _T]) -> _T:
    try:
        return work()
    except FileExistsError:
        raise
    except OSError as error:
        raise Unavailable(ClientReportCode.LEDGER, f"The reports cannot be read or written: {error.strerror}.") from error
