"""Check a report before both sides of a session sign it.

The negotiation id is the same for both sides. It is new for each session, because each side chose a fresh random for its Hello:

    nid = SHA-256(JCS([initiator's DID, responder's DID, initiator's random, responder's random]))

A session that is open in a later epoch may be reported again, by another id: SHA-256(JCS([nid, epoch])).

The initiator proposes: it signs the payload of a `report` statement (see `treaty_consensus.statement`) and sends it. The
responder signs the same payload only if

    1 it is a report, by the proposer's key and this side's own, and the proposer's signature verifies
    2 log, nid, topic, document and outcome equal the facts that this side knows
    3 `epoch` is the log's open one, and `issued` is its opening, so that a report does not reveal the time of a session
    4 `seen_checkpoint` is signed by the log's key and consistent with all checkpoints that this side has seen; it has no
      other signature, because those of clocks and witnesses contain times
    5 this session was not reported with another document, and this peer and topic not yet in this epoch

Else it answers with the code of the failed rule (`report.*`). The content is on disk before it is signed. So a crash, a copy or a
restored backup cannot make an honest agent sign two reports of one negotiation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from treaty_anp.hello_profile.hello import Hello
from treaty_consensus import canonical, statement
from treaty_consensus.codes import ReportCode
from treaty_consensus.errors import Malformed, Refused, TreatyError, Unauthorized
from treaty_consensus.kinds import Report
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.note import signature_lines, signers_of, text_of
from treaty_consensus.statement import Draft, Statement
from treaty_io.codes import ClientReportCode


class OpenEpoch(NamedTuple):
    """The open epoch of a log, and its opening by the log's own account, in Unix seconds."""

    number: int
    opened: int


@dataclass(frozen=True)
class SessionFacts:
    """The facts of a session that one side knows itself.

    `own_key`, `peer_key`: DID URLs.
    `log`: the origin of the protocol's registry.
    `spoke`: whether the session did work. The proposer got an answer, or served a call. The other side got an application
    message, or sent one: of an event it learns no more.
    """

    own_key: str
    peer_key: str
    log: str
    nid: str
    topic: str
    document: str
    spoke: bool


def negotiation_id(initiator: Hello, responder: Hello) -> str:
    """Return the nid of a session. Raises `Refused` (`report.other`) when a Hello has no random."""
    if initiator.random is None or responder.random is None:
        raise Refused(ReportCode.OTHER, "A report needs a random in both Hellos.")
    return canonical.hex_digest(canonical.dumps([initiator.source_did, responder.source_did, initiator.random, responder.random]))


def flow_negotiation_id(initiator: str, responder: str, session_id: str, acknowledgment: str) -> str:
    """Return the nid of a session of the flow profile.

    `initiator`, `responder`: DIDs.
    `acknowledgment`: the messageId of the responder's acknowledgment of the session's present protocol.
    """
    return canonical.hex_digest(canonical.dumps([initiator, responder, session_id, acknowledgment]))


def later_negotiation_id(nid: str, epoch: int) -> str:
    """Return the nid of a further report of a session, in a later epoch than its first one: a log takes a nid once."""
    return canonical.hex_digest(canonical.dumps([nid, epoch]))


def draft_report(facts: SessionFacts, epoch: OpenEpoch, seen_checkpoint: bytes) -> Draft:
    """Return the report that this side would propose. Raises `Malformed`, and `Refused` (`report.other`) if it did no
    work."""
    if not facts.spoke:
        raise Refused(ReportCode.OTHER, "This session did no work.")
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
    """Check rule 1 (without the signature) and rule 2, and return the proposed statement. Raises `TreatyError`."""
    proposed = statement.parse_draft(payload)
    body = proposed.body
    if not isinstance(body, Report):
        raise Malformed(ReportCode.OTHER, "The proposed statement is not a report.")
    if (proposed.by, key_id) != (tuple(sorted((facts.own_key, facts.peer_key))), facts.peer_key):
        raise Refused(ReportCode.OTHER, "The proposed report is not signed by the parties that this side knows.")
    expected = {
        "log": proposed.log == facts.log,
        "nid": body.nid in (facts.nid, later_negotiation_id(facts.nid, body.epoch)),
        "topic": body.topic == facts.topic,
        "document": body.document == facts.document,
        "outcome": body.outcome == "agreed" and facts.spoke,
    }
    for field, holds in expected.items():
        if not holds:
            raise Refused(ReportCode.OTHER, f"The proposed report has another {field} than this side knows.")
    return proposed


def check_epoch(proposed: Statement, epoch: OpenEpoch) -> None:
    """Check rule 3. Raises `Refused` (`report.epoch`, `report.other`)."""
    body = proposed.body
    if not isinstance(body, Report) or body.epoch != epoch.number:
        raise Refused(ReportCode.EPOCH, "The report is not for the open epoch.")
    if proposed.issued != epoch.opened:
        raise Refused(ReportCode.OTHER, "The report is not dated to the opening of its epoch.")


def undated(note: bytes, keys: LogKeys) -> bytes:
    """Return a checkpoint with only the log's own signature. Raises `Malformed`, `TooLarge` or `Untrusted`."""
    signers = signers_of(note)
    # During the overlap of a rotation two keys sign. The earlier one, because both sides must name the same bytes and one of them
    # may not know the rotation yet.
    log_key = next((term.log for term in keys.terms if (term.log.name, term.log.id) in signers), keys.newest.log)
    # Cosignatures contain times, and a report must not show when two agents met.
    return f"{text_of(note)}\n".encode() + signature_lines(note, [log_key])


def check_signature(proposed: Statement, key_id: str, signature: bytes, keys: Mapping[str, bytes]) -> None:
    """Check rule 1: the signature of one side verifies under `keys` (DID URL → raw Ed25519). Raises `Unauthorized`."""
    # With one signature alone: the other side's is not there yet.
    lone = Statement(proposed.body, proposed.log, (key_id,), proposed.issued, proposed.payload, (signature,))
    try:
        statement.verify(lone, keys)
    except Unauthorized as error:
        raise Unauthorized(ReportCode.OTHER, f"The report's signature by {key_id} does not verify.") from error


def refusal_code(error: TreatyError) -> str:
    """Return the code for the peer: the code of a broken rule, else a general one."""
    # Other codes would tell the peer about this side's disk, policy or registry.
    return error.code if error.code.startswith("report.") else ClientReportCode.NOT_CHECKED
