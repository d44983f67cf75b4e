"""Read the keys of a log and its clock from its facts, and judge a rotation of them.

    keys = keys_in(facts)               the keys of the genesis, and of each rotation since
    keys.open(note)                     verifies a checkpoint by the keys that are in force at its size

Specification: `docs/specification/log.md`, "Rotation of keys".
"""

from __future__ import annotations

from msgspec.structs import astuple

from .authority import Authority
from .codes import LogCode, RotationCode
from .errors import Conflict, Malformed, Refused
from .facts import KEYS, Fact, Facts, Keys, KeysFact, find
from .kinds import Genesis
from .log.checkpoint import KeyTerm, LogKeys
from .log.note import VerifierKey
from .rotation import Rotation

MAX_ROTATIONS = 64  # each one is in every bundle, and a reader checks its signatures
MAX_AUTHORITIES = 16  # later ones; each is in every bundle and in the trusted root
MAX_OVERLAP = 366 * 24 * 3600  # seconds; a key that may be stolen must not go on signing for years


def genesis_keys(genesis: Genesis) -> KeysFact:
    """Return the fact of the first keys of a log."""
    return KeysFact((Keys(genesis.log_key, genesis.clock_key, 0, 0),))


def keys_of_log(fact: KeysFact) -> LogKeys:
    """Return the keys of the fact, parsed. Raises `Malformed` (`note.form`) for a genesis without keys."""
    terms = (astuple(keys) for keys in fact.terms)
    return LogKeys(tuple(KeyTerm(VerifierKey.parse(log), VerifierKey.parse(clock), *rest) for log, clock, *rest in terms))


def keys_in(facts: Facts) -> LogKeys:
    """Return the keys of the log whose facts these are. Raises `Refused` (`log.no-genesis`) before leaf 0."""
    return keys_of_log(_fact(facts))


def rotate(facts: Facts, body: Rotation, *, issued: int, now: int, index: int) -> dict[str, Fact]:
    """Judge a rotation that would be leaf `index`; return the changed facts.

    `issued`: the statement's time.
    `now`: the log's clock.

    Raises `Malformed` or `Conflict` (`rotation.keys`), `Conflict` or `Refused` (`rotation.overlap`), and `Untrusted`
    (`rotation.proof`).
    """
    keys = keys_in(facts)
    before, after = keys.newest, (body.log, body.clock)
    if [key.name for key in after] != [keys.name, f"{keys.name}/clock"]:
        raise Malformed(RotationCode.KEYS, f"The keys must be called {keys.name} and {keys.name}/clock.")
    comes = [key for key in after if key not in (before.log, before.clock)]
    # A line of a note names a key by four bytes, so two keys of one log must not share them. A retired key never comes back.
    used_ids = {(key.name, key.id) for term in keys.terms for key in (term.log, term.clock) if key}
    if not (comes or body.authority) or any((key.name, key.id) in used_ids for key in comes):
        raise Conflict(RotationCode.KEYS, "A rotation must name a key that this log has never had.")
    if len(keys.terms) > MAX_ROTATIONS:
        raise Conflict(RotationCode.KEYS, f"The keys of a log are rotated at most {MAX_ROTATIONS} times.")
    # By `issued`, because a reader of a few leaves does not know everything that moved the log's clock.
    if issued < max(now, before.until):
        raise Conflict(
            RotationCode.OVERLAP,
            "The rotation is older than the log's clock, or the last rotation's old keys still sign.",
            fix="Wait until that overlap has ended: of one role at most two keys sign at a time.",
        )
    if not issued <= body.until <= issued + MAX_OVERLAP:
        raise Refused(RotationCode.OVERLAP, "An overlap ends at or after its rotation, and at most 366 days later.")
    if body.authority is not None:
        _check_authority(keys, body.authority, issued=issued, until=body.until)
    body.check_proof(before)
    term = Keys(body.log_key, body.clock_key, index + 1, body.until, body.authority)
    return {KEYS: KeysFact((*_fact(facts).terms, term))}


def _check_authority(keys: LogKeys, authority: Authority, *, issued: int, until: int) -> None:
    earlier = [term.authority for term in keys.terms if term.authority]
    if len(earlier) >= MAX_AUTHORITIES:
        raise Conflict(RotationCode.KEYS, f"The authority of a log is rotated at most {MAX_AUTHORITIES} times.")
    authority.check_certificates(keys.name, issued=issued, until=until)
    if any(part in previous.public for previous in earlier for part in authority.public):
        raise Conflict(RotationCode.KEYS, "A rotation must name an authority that this log has never had.")


def _fact(facts: Facts) -> KeysFact:
    fact = find(facts, KEYS, KeysFact)
    if fact is None:
        raise Refused(LogCode.NO_GENESIS, "This log has no genesis yet. Write the genesis as leaf 0 first.")
    return fact
