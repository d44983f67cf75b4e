"""Read and verify stamped statements, and tell which of them a log left out of an epoch.

A witness takes a signed ballot, report or vouch for a log that it watches, stores it, and returns a *stamp*: a signed note
(`log.note`) with its cosignature of type 0x04 (C2SP tlog-cosignature), whose time is the time of the stamp. Its text is

    registry.example LF                                   the log's origin
    treaty-stamp/v1 LF                                    no number, so this is never the text of a checkpoint
    47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= LF       the leaf hash (RFC 6962) of the statement's envelope

The stamp names the envelope and not the statement's id, because an id does not cover signatures: a stamp for an envelope with a
wrong signature, which a log refuses rightly, must not count for the right one. Statement and stamp are one file, canonical JSON
with the extension `.stamped.json`:

    {"stamp": NOTE, "statement": ENVELOPE, "stamped": 1}

The log owes a statement to the decisions of an epoch when

1. enough witnesses of the parameters in force (`needed`) stamped it and cosigned the input of the decisions, each `MARGIN`
   seconds to `LASTS` seconds later by its own clock;
2. the log would have taken it at the input: its signatures verify, and `admit` accepts it;
3. in an open electorate no `did:key` and no `did:treaty` signed it: those count for nothing.

An owed statement whose id is not in the log below the input was left out. File and log together prove it to everyone.
Specification: `docs/specification/log.md`, "Stamps".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from . import canonical, statement
from .admit import admit, reads
from .codes import StampCode
from .errors import Malformed, Refused, TooLarge, TreatyError, Untrusted
from .facts import LOG, Fact, Facts, LogFact, keys_of
from .kinds import Ballot, Input, Report, Vouch, Witnesses
from .log.merkle import leaf_hash
from .log.note import MAX_NOTE_BYTES, SignerKey, VerifierKey, open_note, sign, signature_lines, signers_of, text_of
from .statement import Statement, Verified

MARGIN = 3600
"""Seconds between a stamp and the cosigned input. A registry reads what its witnesses stamped each minute, and when it closes an
epoch. An hour covers a restart, a broken line, and the time that a closing takes."""
LASTS = 13 * 24 * 3600
"""Seconds for which a stamp obliges: a day less than a witness keeps the statement (`treaty_registry.witness.box`). A registry
that was down for longer can no longer learn of it."""
MAX_ENVELOPE = 16 * 1024
"""Bytes of a statement that is stamped: twice the largest ballot with an honest checkpoint."""
MAX_STAMPED = MAX_ENVELOPE + MAX_NOTE_BYTES
MAX_PAGE = 4 * 1024 * 1024
"""Bytes of an answer of a witness that shows what it stamped."""
SUFFIX = ".stamped.json"

_FORMAT = "treaty-stamp/v1"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stamp: str
    statement: str
    stamped: Literal[1]


class _Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    next: int
    stamped: tuple[_File, ...]


@dataclass(frozen=True)
class Stamped:
    """Hold a statement and the note of its stamps. Trust neither before `times` and `admissible`.

    `leaf`: the envelope. `stamp`: a note whose text is that of this envelope.
    """

    leaf: bytes
    stamp: bytes

    @classmethod
    def parse(cls, data: bytes) -> Stamped:
        """Read a file strictly, without verifying a signature. Raises `TooLarge` or `Malformed` (`stamp.form`), and as
        `stampable`."""
        value = canonical.loads(data, limit=MAX_STAMPED, name="stamped statement")
        try:
            file = msgspec.convert(value, _File)
            return cls.of(file.statement.encode(), file.stamp.encode())
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise _bad_stamp(str(error)) from error

    @classmethod
    def of(cls, leaf: bytes, stamp: bytes) -> Stamped:
        """Join an envelope and its stamp. Raises `Malformed` (`stamp.form`) for the stamp of another one, and as `stampable`."""
        stamped_statement = stampable(leaf)
        if text_of(stamp) != stamp_text(stamped_statement.log, leaf):
            raise _bad_stamp("the stamp is of another statement")
        stamped = cls(leaf, stamp)
        vars(stamped)["statement"] = stamped_statement  # cached instead of parsed again
        return stamped

    def format(self) -> bytes:
        """Return the file's bytes; the inverse of `parse`."""
        return canonical.dumps({"stamp": self.stamp.decode(), "statement": self.leaf.decode(), "stamped": 1})

    @cached_property
    def statement(self) -> Statement:
        """Return the parsed statement, unverified."""
        return statement.parse(self.leaf)

    def times(self, keys: Iterable[VerifierKey]) -> dict[VerifierKey, int]:
        """Return when each of these witnesses stamped it (POSIX seconds); none for those that did not.

        Raises `Untrusted` (`note.signature`) when a line of one of them does not verify.
        """
        try:
            opened = open_note(self.stamp, keys)
        except Untrusted:
            # No line of theirs is no fault, a wrong one is.
            if signed_by(self.stamp, keys):
                raise
            return {}
        return {signature.key: signature.time for signature in opened.signatures if signature.time is not None}

    def joined(self, other: Stamped, keys: Sequence[VerifierKey]) -> Stamped:
        """Return this statement with the stamps of `other` by `keys` too. Raises `Untrusted` when one does not verify."""
        new = [key for key in keys if signed_by(other.stamp, [key]) and not signed_by(self.stamp, [key])]
        return Stamped(self.leaf, self.stamp + signature_lines(other.stamp, new)) if new else self


@dataclass(frozen=True)
class LeftOut:
    """Hold a statement that a log owed to the decisions of an epoch, and left out of their input."""

    stamped: Stamped
    epoch: int
    input: Input

    def __str__(self) -> str:
        """Return it for people."""
        omitted = self.stamped.statement
        authors = " and ".join(did.text for did in omitted.authors)
        return f"{omitted.type} {omitted.id} of {authors}, epoch {self.epoch}, whose input has {self.input.size} leaves"


def read_page(data: bytes) -> tuple[int, list[Stamped]]:
    """Return the number to continue at, and the statements, of a witness's answer; those that no witness may stamp are left out.

    Raises `TooLarge` or `Malformed` (`stamp.form`).
    """
    try:
        page = msgspec.convert(canonical.loads(data, limit=MAX_PAGE, name="page of stamped statements"), _Page)
    except msgspec.ValidationError as error:
        raise _bad_stamp(str(error)) from error
    entries = []
    for file in page.stamped:
        # One bad entry must not hide the others.
        with suppress(TreatyError, UnicodeEncodeError):
            entries.append(Stamped.of(file.statement.encode(), file.stamp.encode()))
    return page.next, entries


def stamp_text(origin: str, leaf: bytes) -> str:
    """Return the text of the stamps of an envelope."""
    return f"{origin}\n{_FORMAT}\n{canonical.b64encode(leaf_hash(leaf))}\n"


def stampable(leaf: bytes) -> Statement:
    """Return the statement in an envelope that a witness may stamp.

    Raises `TooLarge` (`stamp.form`), `Refused` (`stamp.form`) for another type than ballot, report and vouch, and as
    `statement.parse`.
    """
    if len(leaf) > MAX_ENVELOPE:
        raise TooLarge(StampCode.FORM, f"A witness stamps statements of at most {MAX_ENVELOPE} bytes.")
    parsed = statement.parse(leaf)
    # Only types with an order of their own (`seq`, the epoch). Of others, such as a status, a copy that was held back could undo
    # what its author stated since.
    if not isinstance(parsed.body, Ballot | Report | Vouch):
        raise Refused(StampCode.FORM, f"A witness stamps ballots, reports and vouches, and no {parsed.type}.")
    return parsed


def stamp(leaf: bytes, key: SignerKey, time: int) -> Stamped:
    """Return an envelope with a witness's stamp. Raises as `stampable`."""
    return Stamped(leaf, sign(stamp_text(stampable(leaf).log, leaf), [key], time=time))


def signed_by(note: bytes, keys: Iterable[VerifierKey]) -> bool:
    """Tell whether a note has a line of one of these keys. The lines are not verified."""
    lines = set(signers_of(note))
    return any((key.name, key.id) in lines for key in keys)


def needed(witnesses: Witnesses) -> int:
    """Return how many of the witnesses must have stamped a statement and cosigned the input.

    Two quorums have so many witnesses in common, so a statement with a quorum of stamps cannot be passed over by the choice of
    another quorum for the input. For four witnesses and a quorum of three it is two: one that lies neither hides a statement nor
    accuses a registry.
    """
    return max(1, 2 * witnesses.quorum - len(witnesses.keys))


def is_stamped_in_time(stamped: Stamped, witnesses: Witnesses, cosigned: bytes) -> bool:
    """Tell whether enough witnesses stamped a statement in time before they cosigned the input of a decision.

    `cosigned`: the note of the input. Each witness is compared with itself, so clocks need not agree. A note or a stamp that does
    not verify proves nothing.
    """
    keys = witnesses.parsed.keys
    try:
        closes = {signature.key: signature.time for signature in open_note(cosigned, keys).signatures}
        stamps = stamped.times(keys)
    except TreatyError:
        return False
    ages = [closed - stamps[key] for key, closed in closes.items() if closed is not None and key in stamps]
    return sum(MARGIN <= age <= LASTS for age in ages) >= needed(witnesses)


def admissible(facts: Facts, log: LogFact, electorate: str, statements: Iterable[Statement], index: int) -> list[Verified]:
    """Return the statements that the log would take now, verified, in the order in which it would.

    `facts`: of the log. `log`: its own fact, at an open epoch. `index`: of the next leaf. A statement that is logged is not
    taken again. Registry and auditor use this one function, so the registry leaves out nothing that the auditor looks for.
    """
    changed: dict[str, Fact] = {LOG: log}
    admitted: list[Verified] = []
    # By `seq`: of two ballots of an author the second is admissible after the first.
    for candidate in sorted(statements, key=lambda each: (_seq(each), each.id)):
        # Its signatures cost nothing, so it counts only in a development electorate.
        if electorate != "development" and any(did.method == "key" or did.validated_by for did in candidate.authors):
            continue
        relevant = {key: fact for key in reads(candidate) if (fact := changed.get(key) or facts.get(key)) is not None}
        try:
            keys = {key_id: key for did in candidate.authors for key_id, key in keys_of(relevant, did).items()}
            verified = statement.verify(candidate, keys)
            changed |= admit(relevant, verified, index + len(admitted))
        except TreatyError:
            continue
        admitted.append(verified)
    return admitted


def _seq(statement: Statement) -> int:
    return statement.body.seq if isinstance(statement.body, Ballot | Vouch) else 0


def _bad_stamp(why: str) -> Malformed:
    return Malformed(StampCode.FORM, f"This is not a stamped statement: {why}.")
