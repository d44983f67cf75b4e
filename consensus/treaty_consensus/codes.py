"""The error codes of this package, and those that several packages use.

`TreatyError.code` is one of these, or text from a peer. A code is interface: it keeps its text and is never reused for another
meaning. A class has the codes of one prefix. The tables of codes in docs/specification are generated from the classes.

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
    CERTIFICATE = "audit.certificate", "The certificate of an entry was not logged before it.", Untrusted
    CHECKPOINT = "audit.checkpoint", "The checkpoint is not of the audited leaves.", Untrusted
    CLOCK = "audit.clock", "The log's clock is ahead of the cosignatures of its head.", Untrusted
    DECISION = "audit.decision", "A decision differs from the recomputed one.", Untrusted
    DUPLICATE = "audit.duplicate", "A statement is in the log for the second time.", Untrusted
    LEAF = "audit.leaf", "A leaf does not parse.", Untrusted
    REFUSED = "audit.refused", "A leaf breaks a rule of admission.", Untrusted
    SIGNATURE = "audit.signature", "The signature of a leaf does not verify.", Untrusted
    UNEXPECTED_DECISION = "audit.unexpected-decision", "A decision is in the log where none was due.", Untrusted


class BallotCode(Code):
    SEQ = "ballot.seq", "The ballot does not have the author's next number.", Conflict
    TIERS = "ballot.tiers", "The ranking repeats a candidate, is too long or has an empty tier.", Malformed


class BlobCode(Code):
    MISSING = "blob.missing", "A named blob is absent.", NotFound


class CanonicalCode(Code):
    BASE64 = "canonical.base64", "The text is not the one base64 spelling of its bytes.", Malformed
    DECIMAL = "canonical.decimal", "The number is not plain decimal digits within its bound.", Malformed
    DEPTH = "canonical.depth", "The JSON is nested deeper than 32 levels.", Malformed
    DIGEST = "canonical.digest", "The text is not 64 lower-case hexadecimal digits.", Malformed
    FORM = "canonical.form", "The bytes are JSON, but not in their JCS form (RFC 8785).", Malformed
    INTEGER = "canonical.integer", "An integer is beyond ±(2⁵³−1).", Malformed
    JSON = "canonical.json", "The bytes are not strict JSON: syntax, UTF-8, a repeated name, a float.", Malformed
    STRING = "canonical.string", "A string has a lone surrogate.", Malformed
    TOO_LARGE = "canonical.too-large", "The input has more bytes or values than are read here.", TooLarge
    VALUE = "canonical.value", "A value has no form in canonical JSON.", Malformed


class CardCode(Code):
    FIELD = "card.field", "A field has another shape, or is over its cap.", Malformed
    FORM = "card.form", "An empty field is present; it must be left out.", Malformed
    TAGS = "card.tags", "The tags have another form, or are too many.", Malformed


class CheckpointCode(Code):
    NOT_WITNESSED = "checkpoint.not-witnessed", "The checkpoint lacks the cosignatures of enough witnesses.", Untrusted


class DecisionCode(Code):
    AHEAD = "decision.ahead", "The log's clock is ahead of the witnesses of the decision's input.", Refused
    EARLY = "decision.early", "The epoch is still open.", Refused
    EPOCH = "decision.epoch", "The decision is not the next one of its epoch.", Refused
    NOT_WITNESSED = "decision.not-witnessed", "The decision carries other cosignatures than it must.", Refused
    PARAMETERS = "decision.parameters", "The decision is not made under the parameters in force.", Refused
    PREVIOUS = "decision.previous", "The decision does not follow the newest one of its topic.", Conflict


class DidCode(Code):
    DOCUMENT = "did.document", "The document is not JSON, is another DID's, or has no usable key.", Malformed
    HOST = "did.host", "The host is not a domain name of lower-case A-labels.", Malformed
    KEY_ID = "did.key-id", "The text is not the DID URL of a key.", Malformed
    METHOD = "did.method", "The DID method is not supported.", Malformed
    MULTIKEY = "did.multikey", "The key is not an Ed25519 Multikey.", Malformed
    NO_DOCUMENT = "did.no-document", "A did:key has no document.", Refused
    NO_NAMESPACE = "did.no-namespace", "A DID with a port owns no namespace.", Refused
    PATH = "did.path", "A path segment has a character that is not allowed.", Malformed
    PORT = "did.port", "The port is not a number in its range.", Malformed
    SYNTAX = "did.syntax", "The text is not a DID.", Malformed
    TOO_LONG = "did.too-long", "The DID is over its length cap.", Malformed


class DocumentCode(Code):
    TEXT = "document.text", "The document is empty, or has a byte-order mark or NUL.", Malformed
    TOO_LARGE = "document.too-large", "The document is over 256 KiB.", TooLarge
    UTF8 = "document.utf8", "The document is not UTF-8.", Malformed


class ElectorateCode(Code):
    NO_PRINCIPAL = "electorate.no-principal", "A DID in the statement speaks for no principal; it would not count.", Refused
    ONE_PRINCIPAL = "electorate.one-principal", "Both sides of the statement are the same principal.", Refused


class EquivocationCode(Code):
    FORM = "equivocation.form", "The bytes are not the proof of an equivocation.", Malformed
    NONE = "equivocation.none", "The proof does not show two histories.", Untrusted


class GenesisCode(Code):
    EXISTS = "genesis.exists", "The log has its genesis already.", Conflict
    OPERATOR = "genesis.operator", "The signer is not the operator, a did:key that the genesis names.", Malformed, Refused
    ORIGIN = "genesis.origin", "The origin is not a host with an optional port.", Malformed


class GrantCode(Code):
    NOT_OWNER = "grant.not-owner", "The author does not own the namespace.", Refused


class HandlerCode(Code):
    BINARY = "handler.binary", "A file holds NUL.", Refused
    BYTECODE = "handler.bytecode", "A file is Python bytecode.", Refused
    CODING = "handler.coding", "A source declares another encoding than UTF-8.", Refused
    DATA = "handler.data", "A file would be installed outside the package.", Refused
    DECLARATIVE = "handler.declarative", "The package has message forms beside code, or neither.", Refused
    DIST_INFO = "handler.dist-info", "The dist-info folder has a file that does not belong there.", Refused
    ENTRY_POINT = "handler.entry-point", "The wheel does not have the one entry point that it needs.", Malformed, Refused
    EXISTS = "handler.exists", "The author attached the wheel to the protocol already.", Conflict
    FILENAME = "handler.filename", "The file name is not the one of a handler wheel.", Malformed, Refused
    INTERFACE = "handler.interface", "The handler was written for another handler interface.", Refused
    MANIFEST = (
        "handler.manifest",
        "The manifest has another form, or is not the published one.",
        Malformed,
        TooLarge,
        Refused,
        Untrusted,
    )
    MESSAGES = "handler.messages", "The message forms are incomplete, ambiguous or over their bounds.", Refused
    METADATA = "handler.metadata", "METADATA has another form or other fields than it must.", Malformed, Refused
    MISSING = "handler.missing", "A required file is not in the package.", Malformed
    MODULE_TWICE = "handler.module-twice", "A module has two files.", Refused
    NATIVE = "handler.native", "A file is native code.", Refused
    NO_PACKAGE = "handler.no-package", "A folder of sources has no __init__.py.", Refused
    OTHER_DOCUMENT = "handler.other-document", "The protocol has a document with another hash.", Refused
    PTH = "handler.pth", "A .pth file would run code when Python starts.", Refused
    RECORD = "handler.record", "RECORD does not parse, or lists other files.", Malformed, Refused
    RECORD_HASH = "handler.record-hash", "A file does not match its line in RECORD.", Refused
    REQUIRES = "handler.requires", "The package requires another distribution.", Refused
    SCHEMA = "handler.schema", "A schema is invalid or over its bounds.", Refused
    SCRIPT = "handler.script", "The package installs a command.", Refused
    SOURCE_NAME = "handler.source-name", "A source has a name that not every interpreter reads.", Refused
    TEXT = "handler.text", "A text file has a character that is not plain text.", Refused
    TOO_LARGE = "handler.too-large", "The package is over a size cap.", TooLarge
    TOO_MANY_FILES = "handler.too-many-files", "The package has too many files.", TooLarge
    TOP_LEVEL = "handler.top-level", "The package has another top-level name.", Refused
    VERSION = "handler.version", "The version is not of PEP 440.", Malformed
    WHEEL = "handler.wheel", "The WHEEL file has another form or other fields than it must.", Malformed, Refused
    ZIP = "handler.zip", "The archive has bytes outside its entries, or no plain end record.", Malformed
    ZIP_CONTENT = "handler.zip-content", "The content of an entry does not match its header.", Malformed
    ZIP_DUPLICATE = "handler.zip-duplicate", "Two paths are one path on some file system.", Refused
    ZIP_ENCRYPTED = "handler.zip-encrypted", "The archive is encrypted.", Refused
    ZIP_EXTRA = "handler.zip-extra", "A zip header has extra fields.", Refused
    ZIP_FEATURE = "handler.zip-feature", "The archive uses a zip feature beyond stored and deflated files.", Refused
    ZIP_LINK = "handler.zip-link", "An entry is a link, a folder or a device.", Refused
    ZIP_METHOD = "handler.zip-method", "An entry is neither stored nor deflated.", Refused
    ZIP_MISMATCH = "handler.zip-mismatch", "A local header differs from the central directory.", Malformed
    ZIP_MODE = "handler.zip-mode", "An entry has unusual file attributes.", Refused
    ZIP_NAME = "handler.zip-name", "A path has another form than is allowed, or is too long.", TooLarge, Refused
    ZIP_OVERLAP = "handler.zip-overlap", "Entries overlap, or have bytes between them.", Malformed


class IdentityCode(Code):
    KEYS = "identity.keys", "The keys are not distinct keys of a DID that has a document.", Malformed
    NEW_TENURE = "identity.new-tenure", "The domain changed hands less than 30 days ago.", Refused
    PREVIOUS = "identity.previous", "The newest identity of the DID is another one.", Conflict
    TENURE = "identity.tenure", "The identity has another tenure than it must.", Refused
    UNCHANGED = "identity.unchanged", "The DID document has not changed.", Conflict


class LogCode(Code):
    BUNDLE = "log.bundle", "The entry bundle does not have 1 to 256 entries.", Malformed
    BUNDLE_SIZE = "log.bundle-size", "The entry bundle is larger than its entries can be.", TooLarge
    CHECKPOINT = "log.checkpoint", "The signed text is not a checkpoint.", Malformed
    CLOSING = "log.closing", "An epoch is being closed; only its decisions are taken.", Unavailable
    CONSISTENCY = "log.consistency", "The proof does not show that the log only appended.", Untrusted
    ENTRY_SIZE = "log.entry-size", "The log entry is over 65,535 bytes.", TooLarge
    FRONTIER = "log.frontier", "The subtree hashes are not those of a tree of this size.", Malformed
    HASH = "log.hash", "A leaf hash does not have 32 bytes.", Malformed
    INCLUSION = "log.inclusion", "The proof does not show that the log holds the entry.", Untrusted
    INDEX = "log.index", "The log has no leaf at the index.", NotFound
    NO_GENESIS = "log.no-genesis", "The log has no genesis yet; leaf 0 comes first.", Refused
    NODE = "log.node", "The tree has no such subtree.", NotFound
    ORIGIN = "log.origin", "The checkpoint is of another log.", Untrusted
    RANGE = "log.range", "The new tree is smaller than the old one.", Malformed
    RECEIPT = "log.receipt", "The bytes are not a receipt (C2SP tlog-proof).", Malformed
    RECEIPT_SIZE = "log.receipt-size", "The receipt is over its cap.", TooLarge
    TILE = "log.tile", "The tile does not hold the subtree.", Malformed
    TILE_MISSING = "log.tile-missing", "A needed tile is absent.", NotFound
    TILE_PATH = "log.tile-path", "The path is not the path of a tile.", Malformed
    TILE_WIDTH = "log.tile-width", "The stored tile is narrower.", NotFound


class NoteCode(Code):
    KEY = "note.key", "The text is not a note key.", Malformed
    KEY_TYPE = "note.key-type", "The key has another type than it must.", Malformed
    MALFORMED = "note.malformed", "The bytes are not a signed note.", Malformed
    NAME = "note.name", "The name cannot be the name of a key.", Malformed
    SIGNATURE = "note.signature", "A known key has no signature, two, or one that does not verify.", Untrusted
    SIGNATURES = "note.signatures", "The note has more than 100 signatures.", TooLarge
    SIGNERS = "note.signers", "A note is signed by one key or more, each once.", Malformed
    SIZE = "note.size", "The note is over 256 KiB.", TooLarge
    TEXT = "note.text", "The text does not end in a newline, or has control characters.", Malformed
    TIME = "note.time", "A cosignature has no time.", Malformed


class ParametersCode(Code):
    ANCHORS = "parameters.anchors", "The anchors are not distinct, ordered, registrable domains.", Malformed, Refused
    BOUND = "parameters.bound", "A constant changes by more than one amendment may change it.", Refused
    DOWNGRADE = "parameters.downgrade", "An earlier rule, or a development electorate after an open one.", Refused
    ELECTORATE = "parameters.electorate", "The fields do not fit the kind of electorate.", Malformed
    MEMORY = "parameters.memory", "The constant `memory_horizons` does not fit the rule.", Malformed
    QUORUM = "parameters.quorum", "The quorum is all votes, which no document reaches.", Malformed
    SUFFIX_LIST = "parameters.suffix-list", "The blob is not a Public Suffix List.", Malformed
    WITNESSES = "parameters.witnesses", "The log would be a witness of itself.", Refused


class ProtocolCode(Code):
    NAME = "protocol.name", "The name is not lower-case letters, digits and hyphens.", Malformed
    NAMESPACE = "protocol.namespace", "The namespace is not a domain, a domain with a path, or a did:key.", Malformed
    UNKNOWN = "protocol.unknown", "The protocol is not published here.", NotFound
    URI = "protocol.uri", "The text is not a protocol URI.", Malformed
    VERSION = "protocol.version", "The version is not in the normal form of PEP 440.", Malformed


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
    AUTHORITY = "rotation.authority", "The next authority is none of this log, or was named before.", Malformed, Conflict
    KEYS = "rotation.keys", "The keys are not new keys of the log and its clock.", Malformed, Conflict
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
    BLOB_SIZE = "statement.blob-size", "A named blob is over the cap of its kind.", Malformed
    BODY = "statement.body", "A field is missing, unknown, of another type, null or empty.", Malformed
    BY = "statement.by", "The authors are not one or two distinct, sorted DID URLs of keys.", Malformed, Refused
    ENVELOPE = "statement.envelope", "The bytes are not a DSSE envelope.", Malformed
    ISSUED = "statement.issued", "The time of issue is not in Unix seconds.", Malformed
    NOT_OPERATOR = "statement.not-operator", "Only the operator makes statements of this kind.", Unauthorized
    OTHER_LOG = "statement.other-log", "The statement is for another log.", Refused
    PAYLOAD_TYPE = "statement.payload-type", "The payload type is not that of a statement.", Malformed
    SIGNATURE_INVALID = "statement.signature-invalid", "A signature does not verify.", Unauthorized
    SIGNATURES = "statement.signatures", "The signatures are not exactly those of the authors, in order.", Malformed
    TOPIC = "statement.topic", "The topic is malformed.", Malformed
    TYPE = "statement.type", "The kind of statement is unknown.", Malformed
    UNKNOWN_KEY = "statement.unknown-key", "The key is not one of its DID as the log knows it.", Unauthorized
    UNSIGNED = "statement.unsigned", "An author has not signed.", Malformed


class StatusCode(Code):
    NO_HANDLER = "status.no-handler", "The author has attached no such handler.", NotFound
    NOT_PUBLISHER = "status.not-publisher", "Only the publisher sets the status of a protocol.", Refused


class SystemCode(Code):
    EXTRA = "system.extra", "A library of an extra of the package is not installed.", Unavailable
    FILE = "system.file", "A file or a system call failed.", Unavailable
    PLATFORM = "system.platform", "This part needs Linux.", Unavailable, Origin.CALLER, Retry.NO
    USAGE = "system.usage", "The command line is wrong.", Malformed


class TokenCode(Code):
    AUDIENCE = "token.audience", 'The audience is not ["sigstore", ORIGIN].', Malformed
    CLAIMS = "token.claims", "The claims of the token are malformed.", Malformed
    FORM = "token.form", "The token is not a JWT of three segments in their one spelling.", Malformed
    HEADER = "token.header", "The header of the token is malformed.", Malformed
    JTI = "token.jti", "The jti is not 16 to 64 characters of A-Z, a-z, 0-9, _ and -.", Malformed
    LIFETIME = "token.lifetime", "The lifetime of the token is out of its bounds.", Malformed
    SIGNATURE_INVALID = "token.signature-invalid", "The signature of the token does not verify.", Unauthorized
    SUBJECT = "token.subject", "The sub and iss of the token are not the DID of its key.", Malformed
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
    KEYS = "witness.keys", "The witnesses are not distinct cosignature keys within the caps.", Malformed
    OLD_SIZE = "witness.old-size", "The new checkpoint has fewer leaves than the old one.", Malformed
    POLICY = "witness.policy", "The file is not a policy of witnesses (C2SP tlog-policy).", Malformed, TooLarge
    REQUEST = "witness.request", "The bytes are not a request to a witness (C2SP tlog-witness).", Malformed
    REQUEST_SIZE = "witness.request-size", "The request is over its cap.", TooLarge
    ROOT = "witness.root", "Another checkpoint of this size was cosigned before.", Untrusted
    SIGNATURE = "witness.signature", "The checkpoint is not signed by the key of its log.", Unauthorized
    SIZE = "witness.size", "The newest cosigned checkpoint has another size than the request says.", Conflict
    NOTHING = "witness.nothing", "The witness has cosigned nothing of the log yet.", NotFound, Untrusted
    UNKNOWN_LOG = "witness.unknown-log", "The witness does not know the log.", NotFound
