"""A finding: a leaf that concerns a watch, or a broken promise of the log itself.

As JSON, on one line and in the body of a webhook:

    {"log": ORIGIN, "severity": "expected" | "unexpected" | "grave", "watch": "did did:wba:example.com", "index": 12,
     "kind": "publish", "statement": HEX, "authors": [DID, …], "issued": SECONDS, "sentence": TEXT}

A grave finding is about the log itself. Its "watch" is "log", its "kind" a code, and it has no index. It may have "fix",
"evidence" (the path of a proof) and "notes" (two signed checkpoints that contradict each other).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TreatyError
from treaty_consensus.events import LogEvent

from .watches import Watch

Severity: TypeAlias = Literal["expected", "unexpected", "grave"]


@dataclass(frozen=True)
class WatchFinding:
    """See the module. `statement`: the id of the leaf; of a grave finding, the digest of its code and notes."""

    log: str
    severity: Severity
    watch: str
    kind: str
    statement: str
    sentence: str
    index: int | None = None
    authors: tuple[str, ...] = ()
    issued: int | None = None
    fix: str = ""
    evidence: Path | None = None
    notes: tuple[bytes, ...] = ()

    @property
    def id(self) -> str:
        """The same text for every delivery of this finding: statement, and the digest of log and watch."""
        return f"{self.statement}-{hex_digest(f'{self.log} {self.watch}'.encode())[:16]}"

    def value(self) -> dict[str, Any]:
        """Return it as JSON. Absent members are left out."""
        members: dict[str, Any] = {"log": self.log, "severity": self.severity, "watch": self.watch, "index": self.index}
        members |= {"kind": self.kind, "statement": self.statement, "authors": list(self.authors) or None, "issued": self.issued}
        members |= {"sentence": self.sentence, "fix": self.fix or None, "evidence": str(self.evidence) if self.evidence else None}
        members |= {"notes": [note.decode("utf-8", "replace") for note in self.notes] or None}
        return {name: value for name, value in members.items() if value is not None}


def finding_of(log: str, event: LogEvent, watch: Watch, *, is_expected: bool) -> WatchFinding:
    """Return the finding that a leaf concerns a watch."""
    return WatchFinding(
        log,
        "expected" if is_expected else "unexpected",
        str(watch),
        event.kind,
        event.id,
        event.sentence,
        event.index,
        event.authors,
        event.issued,
    )


def grave(log: str, error: TreatyError, *, notes: tuple[bytes, ...] = (), evidence: Path | None = None) -> WatchFinding:
    """Return the finding that a log broke a promise."""
    # The message may count seconds. Code and notes are the same at each poll, so the finding is one.
    id_ = hex_digest("\n".join([str(error.code), *(note.decode("utf-8", "replace") for note in notes)]).encode())
    return WatchFinding(log, "grave", "log", str(error.code), id_, error.message, fix=error.fix, evidence=evidence, notes=notes)
