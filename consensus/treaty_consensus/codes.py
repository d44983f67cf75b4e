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

from .errors import Conflict, Malformed, NotFound, Origin, Refused, TooLarge, TreatyError, Unauthorized, Unavailable, Untrusted


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
    CHECKPOINT = "audit.checkpoint", "The checkpoint is not of the audited leaves, or the log's clock is ahead of it.", Untrusted
    DECISION = "audit.decision", "A decision differs from the recomputed one, or none was due.", Untrusted
    LEAF = "audit.leaf", "A leaf does not parse, is not signed, is there twice, or breaks a rule of admission.", Untrusted


class BallotCode(Code):
    SEQ = "ballot.seq", "The ballot does not have the author's next number.", Conflict
    TIERS = "ballot.tiers", "The ranking repeats a candidate, is too long or has an empty tier.", Malformed


class BlobCode(Code):
    MISSING = "blob.missing", "A named blob is absent.", NotFound


class CanonicalCode(Code):
    JSON = "canonical.json", "The bytes are not strict JSON in canonical form (RFC 8785), or a value has no such form.", Malformed
    TEXT = "canonical.text", "The text is not the one spelling of its base64, digits or digest.", Malformed
    TOO_LARGE = "canonical.too-large", "The input has more bytes or values than are read here.", TooLarge


class CardCode(Code):
    FORM = "card.form", "A field or the tags have another shape, are over their caps, or are empty.", Malformed


class CheckpointCode(Code):
    NOT_WITNESSED = "checkpoint.not-witnessed", "The checkpoint lacks the cosignatures of enough witnesses.", Untrusted


class DecisionCode(Code):
    EARLY = "decision.early", "The epoch is still open.", Refused
    PREVIOUS = "decision.previous", "The decision does not follow the newest one of its topic.", Conflict
    RULE = "decision.rule", "The decision breaks a rule: its epoch, its parameters, its cosignatures or its time.", Refused


class DidCode(Code):
    DOCUMENT = "did.document", "The document is not JSON, is another DID's, or has no usable key.", Malformed
    METHOD = "did.method", "The DID method is not supported.", Malformed
    MULTIKEY = "did.multikey", "The key is not an Ed25519 Multikey.", Malformed
    NO_DOCUMENT = "did.no-document", "A did:key has no document.", Refused
    NO_NAMESPACE = "did.no-namespace", "A DID with a port owns no namespace.", Refused
    SYNTAX = "did.syntax", "The text is not a DID or the DID URL of a key, or it is too long.", Malformed


class DocumentCode(Code):
    TEXT = "document.text", "The document is empty, is not UTF-8, or has a byte-order mark or NUL.", Malformed
    TOO_LARGE = "document.too-large", "The document is over 256 KiB.", TooLarge


class ElectorateCode(Code):
    NO_PRINCIPAL = "electorate.no-principal", "A DID in the statement speaks for no principal; it would not count.", Refused
    ONE_PRINCIPAL = "electorate.one-principal", "Both sides of the statement are the same principal.", Refused


class EquivocationCode(Code):
    FORM = "equivocation.form", "The bytes are not the proof of an equivocation.", Malformed
    NONE = "equivocation.none", "The proof does not show two histories.", Untrusted


class GenesisCode(Code):
    EXISTS = "genesis.exists", "The log has its genesis already.", Conflict
    FORM = "genesis.form", "The origin is no host, or the signer is not the operator that the genesis names.", Malformed, Refused


class GrantCode(Code):
    NOT_OWNER = "grant.not-owner", "The author does not own the namespace.", Refused


class HandlerCode(Code):
    ARCHIVE = (
        "handler.archive",
        "The archive is not a plain zip file of regular files with plain names.",
        Malformed,
        TooLarge,
        Refused,
    )
    ENTRY_POINT = "handler.entry-point", "The wheel does not have the one entry point that it needs.", Malformed, Refused
    EXISTS = "handler.exists", "The author attached the wheel to the protocol already.", Conflict
    FILE = "handler.file", "A file is not plain UTF-8 text, or is not at a place that the package may have.", Refused
    INTERFACE = "handler.interface", "The handler was written for another handler interface.", Refused
    MANIFEST = (
        "handler.manifest",
        "The manifest has another form, or is not the published one.",
        Malformed,
        TooLarge,
        Refused,
        Untrusted,
    )
    MESSAGES = (
        "handler.messages",
        "The message forms are incomplete, ambiguous or over their bounds, or stand beside code.",
        Refused,
    )
    METADATA = (
        "handler.metadata",
        "The file name or the dist-info folder has another form or content than it must.",
        Malformed,
        Refused,
    )
    MISSING = "handler.missing", "A required file is not in the package.", Malformed
    OTHER_DOCUMENT = "handler.other-document", "The protocol has a document with another hash.", Refused
    SCHEMA = "handler.schema", "A schema is invalid or over its bounds.", Refused
    TOO_LARGE = "handler.too-large", "The package is over a cap of size, or has too many files.", TooLarge


class IdentityCode(Code):
    KEYS = "identity.keys", "The keys are not distinct keys of a DID that has a document.", Malformed
    NEW_TENURE = "identity.new-tenure", "The domain changed hands less than 30 days ago.", Refused
    PREVIOUS = "identity.previous", "The newest identity of the DID is another one.", Conflict
    TENURE = "identity.tenure", "The identity has another tenure than it must.", Refused
    UNCHANGED = "identity.unchanged", "The DID document has not changed.", Conflict


class LogCode(Code):
    CLOSING = "log.closing", "An epoch is being closed; only its decisions are taken.", Unavailable
    CONSISTENCY = "log.consistency", "The proof does not show that the log only appended.", Untrusted
    FORM = "log.form", "The bytes are not the tile, entry bundle, checkpoint, receipt or proof that is due.", Malformed
    INCLUSION = "log.inclusion", "The proof does not show that the log holds the entry.", Untrusted
    MISSING = "log.missing", "The log has no such leaf, subtree or tile.", NotFound
    NO_GENESIS = "log.no-genesis", "The log has no genesis yet; leaf 0 comes first.", Refused
    ORIGIN = "log.origin", "The checkpoint is of another log.", Untrusted
    TOO_LARGE = "log.too-large", "The entry, entry bundle or receipt is over its cap.", TooLarge


class NoteCode(Code):
    FORM = "note.form", "The bytes are not a signed note, or the text cannot be in one.", Malformed
    SIGNATURE = "note.signature", "A known key has no signature, two, or one that does not verify.", Untrusted
    TOO_LARGE = "note.too-large", "The note is over 256 KiB, or has more than 100 signatures.", TooLarge


class ParametersCode(Code):
    AMENDMENT = "parameters.amendment", "An amendment may not change the parameters in this way.", Refused
    VALUE = (
        "parameters.value",
        "A field of the parameters has a value that is not allowed, or does not fit another field.",
        Malformed,
        Refused,
    )


class ProtocolCode(Code):
    NAME = "protocol.name", "The text is not a protocol URI, or a part of it is not in its form.", Malformed
    UNKNOWN = "protocol.unknown", "The protocol is not published here.", NotFound


class PublishCode(Code):
    ALIASES = "publish.aliases", "The aliases are not distinct URIs without spaces.", Malformed
    BASE = "publish.base", "The base document has another hash than the pinned one.", Refused
    NOT_ENTITLED = "publish.not-entitled", "The author may not publish in the namespace.", Refused
    OTHER_HOST = "publish.other-host", "The URI is not below the origin of the log.", Refused
    VERSION_EXISTS = "publish.version-exists", "The version is published with other content; it is immutable.", Conflict


class RegistryCode(Code):
    BUSY = "registry.busy", "The registry or its local record is busy. Retry later.", Conflict, Unavailable
    NEWER = "registry.newer", "What was asked for needs a newer release of this program.", Malformed, Refused


class ReportCode(Code):
    EPOCH = "report.epoch", "The report is not for the open epoch.", Refused
    EXISTS = "report.exists", "The log has a report of the negotiation.", Conflict
    PARTIES = "report.parties", "The report is not signed by the two parties.", Refused


class SigstoreLeafCode(Code):
    FORM = "sigstore-leaf.form", "The leaf is neither a certificate nor a hashedrekord.", Malformed


class RotationCode(Code):
    KEYS = "rotation.keys", "The keys or the next authority are not new ones of this log.", Malformed, Conflict
    LIMIT = "rotation.limit", "The keys of the log were rotated 64 times, or its authority 16 times.", Conflict
    OVERLAP = "rotation.overlap", "The keys before are not retired yet.", Conflict
    PROOF = "rotation.proof", "Not every key that comes or goes has signed the rotation.", Untrusted
    ROOT = "rotation.root", "The trusted root that the genesis pins has another form.", Malformed
    RETIRED = "rotation.retired", "The checkpoint is signed by keys that had been retired at its time.", Untrusted
    UNTIL = "rotation.until", "The overlap ends before the rotation, or more than 366 days after it.", Refused


class StampCode(Code):
    FORM = "stamp.form", "The bytes are not a stamped statement.", Malformed
    KIND = "stamp.kind", "A witness stamps only ballots, reports and vouches.", Refused
    SIZE = "stamp.size", "The statement is larger than a witness stamps.", TooLarge


class StatementCode(Code):
    FORM = "statement.form", "The bytes are not a statement: its envelope or a field has another form.", Malformed
    NOT_OPERATOR = "statement.not-operator", "Only the operator makes statements of this kind.", Unauthorized
    OTHER_LOG = "statement.other-log", "The statement is for another log.", Refused
    SIGNATURE_INVALID = "statement.signature-invalid", "A signature does not verify.", Unauthorized
    SIGNATURES = (
        "statement.signatures",
        "The authors are not distinct keys in order, or the signatures are not exactly theirs.",
        Malformed,
        Refused,
    )
    TYPE = "statement.type", "The kind of statement is unknown.", Malformed
    UNKNOWN_KEY = "statement.unknown-key", "The key is not one of its DID as the log knows it.", Unauthorized


class StatusCode(Code):
    NO_HANDLER = "status.no-handler", "The author has attached no such handler.", NotFound
    NOT_PUBLISHER = "status.not-publisher", "Only the publisher sets the status of a protocol.", Refused


class SystemCode(Code):
    EXTRA = "system.extra", "A library of an extra of the package is not installed.", Unavailable
    FILE = "system.file", "A file or a system call failed.", Unavailable
    PLATFORM = "system.platform", "This part needs Linux.", Unavailable, Origin.CALLER, Retry.NO
    USAGE = "system.usage", "The command line is wrong.", Malformed


class TokenCode(Code):
    FORM = "token.form", "The token is not a JWT with the header and claims that it must have.", Malformed
    SIGNATURE_INVALID = "token.signature-invalid", "The signature of the token does not verify.", Unauthorized
    TOO_LARGE = "token.too-large", "The token is over its cap.", TooLarge
    UNKNOWN_KEY = "token.unknown-key", "The DID does not list the key for authentication.", Unauthorized


class TopicCode(Code):
    NAME = "topic.name", "The topic is malformed.", Malformed, Refused
    UNKNOWN = "topic.unknown", "No protocol is published in the topic.", NotFound


class VouchCode(Code):
    SELF = "vouch.self", "A DID cannot vouch for itself.", Refused
    SEQ = "vouch.seq", "The vouch does not have the author's next number.", Conflict


class WithdrawalCode(Code):
    NEEDED = "withdrawal.needed", "The blob is a suffix list that decisions need.", Refused


class UploadCode(Code):
    FORM = "upload.form", "The bytes are not an upload of entries (C2SP tlog-mirror).", Malformed


class WitnessCode(Code):
    ANSWER = "witness.answer", "The answer is not one of a witness.", Malformed, Unavailable
    POLICY = (
        "witness.policy",
        "The witnesses are not distinct cosignature keys, or the file is no policy of them (C2SP tlog-policy).",
        Malformed,
        TooLarge,
    )
    REQUEST = "witness.request", "The bytes are not a request to a witness (C2SP tlog-witness), or too many.", Malformed, TooLarge
    ROOT = "witness.root", "Another checkpoint of this size was cosigned before.", Untrusted
    SIGNATURE = "witness.signature", "The checkpoint is not signed by the key of its log.", Unauthorized
    SIZE = "witness.size", "The newest cosigned checkpoint has another size than the request says.", Conflict
    NOTHING = "witness.nothing", "The witness has cosigned nothing of the log yet.", NotFound, Untrusted
    UNKNOWN_LOG = "witness.unknown-log", "The witness does not know the log.", NotFound
