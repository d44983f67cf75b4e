"""Co-signed reports: what the two sides of a session say, and check, before both sign it.

The negotiation id is SHA-256 over the JCS of four strings, the same for both sides and fresh for each session, as each side put a
fresh random into its Hello:

    nid = SHA-256(JCS([source DID, destination DID, source's random, destination's random]))

The side that connected proposes: it signs the payload of a `report` statement (see `treaty_consensus.statement`) and sends it.
The other side signs the same payload only if

    1 it is a report, by the proposer's key and this side's own, and the proposer's signature verifies
    2 log, nid, topic, document and outcome are what this side knows of the session for itself
    3 `epoch` is the log's open one and `issued` when that opened: a report does not say when in it somebody met
    4 `seen_checkpoint` is signed by the log's key and consistent with every one that this side has seen; it has no other
      signature, as those of clocks and witnesses have times
    5 this session was not reported with another document, nor this peer and topic in this epoch already

and otherwise says which of these failed (`report.*`). What was signed is on disk before it is signed, so that no crash, copy or
restored backup can make an honest agent sign two stories of one negotiation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from treaty_consensus import canonical, statement
from treaty_consensus.errors import Malformed, Refused, TreatyError, Unauthorized
from treaty_consensus.kinds import Report
from treaty_consensus.log.note import VerifierKey, signature_lines, text_of
from treaty_consensus.statement import Draft, Statement

from ..meta.hello import Hello


class OpenEpoch(NamedTuple):
    """The open epoch of a log, and when it opened by the log's own account, in Unix seconds."""

    number: int
    opened: int


@dataclass(frozen=True)
class SessionFacts:
    """What one side knows of a session for itself. `own_key`, `peer_key`: DID URLs; `log`: the origin of the protocol's registry;
    `spoke`: whether an application message came through."""

    own_key: str
    peer_key: str
    log: str
    nid: str
    topic: str
    document: str
    spoke: bool


def negotiation_id(source: Hello, destination: Hello) -> str:
    """The nid of a session. Raises `Refused` (`report.random`) when a Hello had no random."""
    if source.random is None or destination.random is None:
        raise Refused("report.random", "A report needs a random in both Hellos.")
    return canonical.hex_digest(canonical.dumps([source.source_did, destination.source_did, source.random, destination.random]))


def draft_report(facts: SessionFacts, epoch: OpenEpoch, seen_checkpoint: bytes) -> Draft:
    """The report that this side would propose. Raises `Malformed`, `Refused` (`report.outcome`) when nothing was said."""
    if not facts.spoke:
        raise Refused("report.outcome", "Nothing was said in this session.")
    body = Report(
        topic=facts.topic,
        nid=facts.nid,
        document=facts.document,
        outcome="agreed",
        epoch=epoch.number,
        seen_checkpoint=seen_checkpoint.decode(),
    )
    return statement.draft(body, log=facts.log, by=(facts.own_key, facts.peer_key), issued=epoch.opened)


def check_proposal(facts: SessionFacts, payload: bytes, key_id: str) -> Statement:
    """Rules 1 (without the signature) and 2: the proposed statement, if it says what this side knows too.
    Raises `TreatyError`."""
    proposed = statement.parse_draft(payload)
    body = proposed.body
    if not isinstance(body, Report):
        raise Malformed("report.type", "What was proposed is no report.")
    expected = {
        "report.parties": (proposed.by, key_id) == (tuple(sorted((facts.own_key, facts.peer_key))), facts.peer_key),
        "report.log": proposed.log == facts.log,
        "report.nid": body.nid == facts.nid,
        "report.topic": body.topic == facts.topic,
        "report.document": body.document == facts.document,
        "report.outcome": body.outcome == "agreed" and facts.spoke,
    }
    for code, holds in expected.items():
        if not holds:
            raise Refused(code, f"The proposed report does not say what this side knows ({code}).")
    return proposed


def check_epoch(proposed: Statement, epoch: OpenEpoch) -> None:
    """Rule 3. Raises `Refused` (`report.epoch`, `report.issued`)."""
    body = proposed.body
    if not isinstance(body, Report) or body.epoch != epoch.number:
        raise Refused("report.epoch", "The report is not for the open epoch.")
    if proposed.issued != epoch.opened:
        raise Refused("report.issued", "The report is not dated to the opening of its epoch.")


def undated(note: bytes, log_key: VerifierKey) -> bytes:
    """A checkpoint with the log's own signature and no other. Raises `Malformed`, `TooLarge` or `Untrusted`."""
    return f"{text_of(note)}\n".encode() + signature_lines(note, [log_key])


def check_signature(proposed: Statement, key_id: str, signature: bytes, keys: Mapping[str, bytes]) -> None:
    """Rule 1: the signature of one of the two verifies under `keys` (DID URL to raw Ed25519). Raises `Unauthorized`."""
    lone = Statement(proposed.body, proposed.log, (key_id,), proposed.issued, proposed.payload, (signature,))
    try:
        statement.verify(lone, keys)
    except Unauthorized as error:
        raise Unauthorized("report.signature", f"The report's signature by {key_id} does not verify.") from error


def refusal_code(error: TreatyError) -> str:
    """What a peer is told: our own words for a broken rule, and for anything else only that it failed here."""
    return error.code if error.code.startswith("report.") else "report.not-checked"
