"""The error codes of this package, and those that several packages use.

`TreatyError.code` is one of these, or text from a peer. A code names an action of its reader, and the message says the detail.
A code is interface: it keeps its text and is never reused for another meaning. A class has the codes of one prefix. The tables of
codes in docs/specification are generated from the classes.

    >>> LogCode.NO_GENESIS == "log.no-genesis"
    True
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Self

from .errors import (
    Conflict,
    Gone,
    Malformed,
    NotFound,
    Origin,
    Refused,
    TooLarge,
    TreatyError,
    Unauthorized,
    Unavailable,
    Untrusted,
)


class Retry(Enum):
    """Whether a call that failed with a code may be repeated, for the codes whose family says otherwise."""

    YES = True
    NO = False


class Code(StrEnum):
    """A code, its meaning in one sentence, and the kinds of error that carry it. A code without a kind is only a reason.

    A class may give the `origin` of its errors as a keyword. A member that differs from its class names its own `Origin`, and
    one that differs from its kinds in `TreatyError.retryable` a `Retry`.
    """

    meaning: str
    kinds: tuple[type[TreatyError], ...]
    retry: Retry | None
    own_origin: Origin | None
    class_origin: Origin | None

    def __new__(cls, code: str, meaning: str, *marks: type[TreatyError] | Origin | Retry) -> Self:
        """The member for a code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.kinds = tuple(mark for mark in marks if isinstance(mark, type))
        member.retry = next((mark for mark in marks if isinstance(mark, Retry)), None)
        member.own_origin = next((mark for mark in marks if isinstance(mark, Origin)), None)
        return member

    def __init_subclass__(cls, *, origin: Origin | None = None) -> None:
        """Take the origin of the members that do not name their own."""
        super().__init_subclass__()
        cls.class_origin = origin

    @property
    def origin(self) -> Origin | None:
        """Whose fault the error is; None where the family decides."""
        return self.own_origin or self.class_origin

    @property
    def retryable(self) -> bool | None:
        """Whether the call may be repeated; None where the family decides."""
        return None if self.retry is None else self.retry.value

    @property
    def is_temporary(self) -> bool:
        """Whether an error with this code may pass by itself."""
        return Unavailable in self.kinds if self.retryable is None else self.retryable


class AuditCode(Code):
    BLOB = "audit.blob", "The bytes of a suffix list do not match their digest.", Untrusted
    DECISION = "audit.decision", "A decision differs from the recomputed one, or none was due.", Untrusted
    LEAF = (
        "audit.leaf",
        "A leaf or the checkpoint does not parse, is not signed, is there twice, or breaks a rule of the log.",
        Untrusted,
    )


class BallotCode(Code):
    TIERS = (
        "ballot.tiers",
        "The ranking repeats a candidate, has an empty tier, is too long, or names a protocol that is not in the topic or was "
        "taken back.",
        Malformed,
        NotFound,
        Refused,
    )


class BlobCode(Code):
    MISSING = "blob.missing", "A named blob is absent.", NotFound
    WITHDRAWN = "blob.withdrawn", "The operator withdrew the bytes, or the bundle lacks them.", Gone


class CanonicalCode(Code):
    JSON = "canonical.json", "The bytes are not strict JSON in canonical form (RFC 8785), or a value has no such form.", Malformed
    TEXT = "canonical.text", "The text is not the one spelling of its base64, digits or digest.", Malformed
    TOO_LARGE = "canonical.too-large", "The input has more bytes or values than are read here.", TooLarge


class CardCode(Code):
    FORM = "card.form", "A field or the tags have another shape, are over their caps, or are empty.", Malformed


class CheckpointCode(Code):
    NOT_WITNESSED = (
        "checkpoint.not-witnessed",
        "The checkpoint lacks the cosignatures of enough witnesses, or of the log's clock.",
        Untrusted,
    )


class DecisionCode(Code):
    EARLY = "decision.early", "The epoch is still open.", Refused
    RULE = (
        "decision.rule",
        "The decision breaks a rule: its epoch, its parameters, its cosignatures, its time or its transcript.",
        Malformed,
        Refused,
        Untrusted,
    )


class DidCode(Code):
    DOCUMENT = "did.document", "The document is not JSON, is another DID's, or has no usable key.", Malformed
    METHOD = "did.method", "DIDs of this method, or with a port, are not supported or cannot have this.", Malformed, Refused
    MULTIKEY = "did.multikey", "The key is not an Ed25519 Multikey.", Malformed
    SYNTAX = "did.syntax", "The text is not a DID or the DID URL of a key, or it is too long.", Malformed


class DocumentCode(Code):
    TEXT = (
        "document.text",
        "The document is empty, over 256 KiB, is not UTF-8, or has a byte-order mark or NUL.",
        Malformed,
        TooLarge,
    )


class ElectorateCode(Code):
    NO_PRINCIPAL = "electorate.no-principal", "A DID in the statement speaks for no principal; it would not count.", Refused
    ONE_PRINCIPAL = "electorate.one-principal", "Both sides of the statement are the same DID or the same principal.", Refused


class EquivocationCode(Code):
    FORM = "equivocation.form", "The file is missing, or is not a proof of two histories.", Malformed, NotFound, Untrusted


class HandlerCode(Code):
    ENTRY_POINT = "handler.entry-point", "The wheel does not have the one entry point that it needs.", Malformed, Refused
    MANIFEST = (
        "handler.manifest",
        "The manifest, a schema or a message form of it breaks its rules, or is not the published one.",
        Malformed,
        TooLarge,
        Refused,
        Untrusted,
    )
    MISMATCH = (
        "handler.mismatch",
        "The handler was made for another document, protocol, entry point or handler interface.",
        Refused,
    )
    PACKAGE = (
        "handler.package",
        "The package breaks a rule of packages: its archive, a file of it or its metadata, or a cap of size.",
        Malformed,
        TooLarge,
        Refused,
    )


class IdentityCode(Code):
    FORM = (
        "identity.form",
        "The keys are not distinct keys of a DID that has a document, or the tenure is another one than it must be.",
        Malformed,
        Refused,
    )
    NEW_TENURE = "identity.new-tenure", "The domain changed hands less than 30 days ago.", Refused


class LogCode(Code):
    CLOSING = "log.closing", "An epoch is being closed; only its decisions are taken.", Unavailable
    CONSISTENCY = "log.consistency", "The proof does not show that the log only appended.", Untrusted
    DAMAGED = (
        "log.damaged",
        "The database or the mirror lacks leaves that the log signed, or they do not hash to the recorded root.",
        NotFound,
        Untrusted,
    )
    EXISTS = "log.exists", "A log is where a new one was to be made or restored, or it has its genesis already.", Conflict
    FORM = (
        "log.form",
        "The bytes are not the leaf, tile, entry bundle, checkpoint, receipt or proof that is due, or are over its cap.",
        Malformed,
        TooLarge,
    )
    INCLUSION = "log.inclusion", "The proof does not show that the log holds the entry.", Untrusted
    MISSING = "log.missing", "The log has no such leaf, subtree or tile, or not yet.", NotFound
    NO_GENESIS = "log.no-genesis", "The log has no genesis yet; leaf 0 comes first.", Refused
    OTHER = "log.other", "The checkpoint, the genesis, the keys or the database are of another log.", Conflict, Untrusted


class NoteCode(Code):
    FORM = (
        "note.form",
        "The bytes are not a signed note of at most 256 KiB and 100 signatures, or the text cannot be in one.",
        Malformed,
        TooLarge,
    )
    SIGNATURE = (
        "note.signature",
        "A known key has no signature, two, or one that does not verify; or the keys had been retired at the time.",
        Untrusted,
    )


class ParametersCode(Code):
    AMENDMENT = "parameters.amendment", "An amendment may not change the parameters in this way.", Refused
    VALUE = (
        "parameters.value",
        "The file does not state parameters, or a field of them has a value that is not allowed or does not fit another field.",
        Malformed,
        TooLarge,
        Refused,
    )


class ProtocolCode(Code):
    NAME = (
        "protocol.name",
        "The text is not a protocol URI or a name of a protocol, or a part of it is not in its form.",
        Malformed,
    )
    UNKNOWN = "protocol.unknown", "The protocol is not published here, or no folder has it.", NotFound


class PublishCode(Code):
    BASE = "publish.base", "The base document has another hash than the pinned one, or rests on more than 8 others.", Refused
    BREAKING = "publish.breaking", "The version breaks agents of an earlier one that its number continues.", Refused
    NOT_ENTITLED = (
        "publish.not-entitled",
        "The author does not own the namespace and has no grant, or is not the publisher.",
        Refused,
    )
    VERSION_EXISTS = "publish.version-exists", "The version is published with other content; it is immutable.", Conflict


class RegistryCode(Code):
    BUSY = "registry.busy", "The registry or its local record is busy; nothing was taken. Retry later.", Conflict, Unavailable
    NEWER = "registry.newer", "What was asked for needs a newer release of this program.", Malformed, Refused


class ReportCode(Code):
    EPOCH = "report.epoch", "The report is not for the open epoch.", Refused
    EXISTS = (
        "report.exists",
        "The log has a report of the negotiation, or of the peer and topic in this epoch.",
        Conflict,
        Refused,
    )
    OTHER = (
        "report.other",
        "The report is not the one of this negotiation, or is not signed by its two parties and the log.",
        Malformed,
        Unauthorized,
        Refused,
        Origin.PEER,
    )


class RotationCode(Code):
    KEYS = (
        "rotation.keys",
        "The keys or the next authority are not new ones of this log, or it had as many as it may have.",
        Malformed,
        Conflict,
    )
    OVERLAP = "rotation.overlap", "The keys before are not retired yet, or the overlap has no allowed end.", Conflict, Refused
    PROOF = "rotation.proof", "Not every key that comes or goes has signed the rotation.", Untrusted


class StampCode(Code):
    FORM = (
        "stamp.form",
        "The file or the statement is none that a witness stamps: a ballot, a report or a vouch within its cap.",
        Malformed,
        TooLarge,
        NotFound,
        Refused,
    )
    SIGNATURE = (
        "stamp.signature",
        "The stamp is not by the key of the witness, or is dated in the future.",
        Untrusted,
        Origin.REGISTRY,
    )


class StatementCode(Code):
    BATCH = "statement.batch", "A batch of statements has an empty line, or is over its caps.", Malformed, TooLarge
    EXISTS = "statement.exists", "The log says this already; nothing is left to do.", Conflict
    FORM = (
        "statement.form",
        "The bytes are not a statement: its envelope or a field has another form, or is not allowed.",
        Malformed,
        Refused,
    )
    NOT_OPERATOR = "statement.not-operator", "Only the operator makes statements of this kind.", Unauthorized
    NO_TARGET = (
        "statement.no-target",
        "There is no handler, grant or vouch of the author that the statement could change.",
        NotFound,
        Origin.CALLER,
    )
    OTHER_LOG = (
        "statement.other-log",
        "The statement is for another log, or its URI is not below the origin of this one.",
        Refused,
    )
    PREVIOUS = (
        "statement.previous",
        "The statement does not have the next number, or does not follow the newest one; make it anew from the newest one.",
        Conflict,
    )
    SIGNATURE_INVALID = "statement.signature-invalid", "A signature does not verify.", Unauthorized
    SIGNATURES = (
        "statement.signatures",
        "The authors are not distinct keys in order, or the signatures are not exactly theirs.",
        Malformed,
        Refused,
    )
    UNKNOWN_KEY = "statement.unknown-key", "The key is not one of its DID as the log knows it.", Unauthorized


class SystemCode(Code):
    EXISTS = "system.exists", "A file or a folder is in the way; nothing was written.", Conflict, Refused, Origin.CALLER
    FILE = "system.file", "A file or a system call of this machine failed.", Unavailable, Origin.CALLER
    HELD = "system.held", "Another process works on the directory or the file.", Conflict, Unavailable
    MISSING = (
        "system.missing",
        "A library of an extra of the package is not installed, or this part needs Linux.",
        Unavailable,
        Origin.CALLER,
        Retry.NO,
    )
    STATE = "system.state", "A file that Treaty keeps is damaged or of another version.", Malformed, Origin.CALLER
    UNCONFIRMED = "system.unconfirmed", "The step must be confirmed by a person.", Refused, Origin.CALLER
    USAGE = "system.usage", "The command line is wrong.", Malformed


class TokenCode(Code):
    INVALID = (
        "token.invalid",
        "The token is missing, malformed, not signed by its DID or issuer, or not valid here, now, for this key and once.",
        Malformed,
        TooLarge,
        Unauthorized,
    )


class TopicCode(Code):
    NAME = "topic.name", "The topic is malformed.", Malformed, Refused
    UNKNOWN = "topic.unknown", "No protocol is published in the topic.", NotFound


class TrustedRootCode(Code, origin=Origin.REGISTRY):
    DIGEST = (
        "trusted-root.digest",
        "The trusted root or the signing service is not the one that the genesis pins, or cannot be read.",
        Malformed,
        Unavailable,
        Untrusted,
    )


class WithdrawalCode(Code):
    NEEDED = "withdrawal.needed", "The blob is a suffix list that decisions need.", Refused


class WitnessCode(Code):
    POLICY = (
        "witness.policy",
        "The witnesses or logs are not distinct, have keys of another type, or their file is malformed or too long.",
        Malformed,
        TooLarge,
    )
    REQUEST = (
        "witness.request",
        "The bytes are not a request to a witness (C2SP tlog-witness, tlog-mirror), or too many.",
        Malformed,
        TooLarge,
    )
    ROOT = "witness.root", "Another checkpoint of this size was cosigned before.", Untrusted
    SIGNATURE = "witness.signature", "The checkpoint is not signed by the key of its log.", Unauthorized
    SIZE = (
        "witness.size",
        "The newest cosigned checkpoint, or the copy of the log, has another size than the request says.",
        Conflict,
    )
    UNKNOWN_LOG = (
        "witness.unknown-log",
        "The witness does not know the log, or has cosigned nothing of it yet.",
        NotFound,
        Untrusted,
    )
    UNREACHABLE = (
        "witness.unreachable",
        "The witness cannot be reached, or gives no usable answer within 5 seconds.",
        Malformed,
        Unavailable,
    )
