"""Define the error codes that only this package uses; see `treaty_consensus.codes`.

A class is called `Registry…` where another package has codes of the same prefix.
"""

from __future__ import annotations

from treaty_consensus.codes import Code
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TooLarge, Unauthorized, Unavailable, Untrusted


class BackupCode(Code):
    FOLDER = "backup.folder", "The running registry cannot reach or write the folder of the backup.", Refused
    NONE = "backup.none", "The folder holds no complete backup.", NotFound
    OTHER_HISTORY = (
        "backup.other-history",
        "The backup contradicts the database, or its own checkpoint.",
        Conflict,
        Untrusted,
    )
    OTHER_LOG = "backup.other-log", "The folder holds the backup of another log.", Conflict


class BlobsCode(Code):
    DAMAGED = "blobs.damaged", "The stored bytes of a blob are damaged or missing.", Unavailable, Untrusted
    UNAVAILABLE = "blobs.unavailable", "The blob store does not answer.", Unavailable


class ContentCode(Code):
    TOO_COSTLY = "content.too-costly", "Checking the blobs needs more time or memory than is allowed.", Refused
    UNCHECKED = "content.unchecked", "The blobs could not be checked: the registry stops or is overloaded.", Unavailable


class ControlCode(Code):
    FAILED = "control.failed", "The registry could not do it, or stopped; its log has the reason.", Unavailable
    NOT_RUNNING = "control.not-running", "No registry runs on the data directory.", NotFound


class CopyCode(Code):
    BEHIND = "copy.behind", "The log has signed leaves that the backup or the mirror lacks.", Untrusted
    OTHER_HISTORY = "copy.other-history", "The backup or the mirror contradicts a signed head.", Untrusted
    UNPROVEN = "copy.unproven", "Nothing shows that the backup or the mirror has every leaf that the log signed.", Refused


class DatabaseCode(Code):
    MIGRATION = "database.migration", "A migration was applied to this database in another form.", Untrusted
    SETTINGS = (
        "database.settings",
        "PostgreSQL runs with a setting that can lose commits, or behind a proxy that loses the leader's lock.",
        Refused,
    )
    UNREACHABLE = "database.unreachable", "PostgreSQL does not answer, or failed while the log was opened.", Unavailable


class DiskCode(Code):
    FULL = "disk.full", "A disk of the registry is full; nothing was written.", Unavailable


class EmbeddedCode(Code):
    MISSING = "embedded.missing", "No embedded PostgreSQL is installed.", Unavailable
    OWNER = "embedded.owner", "The embedded PostgreSQL belongs to another user.", Refused
    PATH_TOO_LONG = "embedded.path-too-long", "The path is too long for a Unix socket.", Refused
    POSTGRES = "embedded.postgres", "The embedded PostgreSQL did not start or takes no connections.", Unavailable


class FenceCode(Code):
    DAMAGED = "fence.damaged", "The record of signed heads is damaged, or of another log.", Untrusted
    EXISTS = "fence.exists", "There is a record of signed heads, and its keys are missing.", Conflict
    FAILED = "fence.failed", "The record of signed heads cannot be read or written: its object store or disk fails.", Unavailable
    HELD = "fence.held", "Another process signs on the data directory.", Unavailable
    IGNORED = "fence.ignored", "The object store does not keep the conditions of a write.", Refused
    MISSING = "fence.missing", "The record of signed heads is missing.", NotFound


class HttpCode(Code):
    BODY_TOO_LARGE = "http.body-too-large", "The body is larger than the route reads.", TooLarge
    HEADERS_TOO_LARGE = "http.headers-too-large", "The headers are larger than the registry reads."
    INTERNAL = "http.internal", "The registry failed; its log has the reason."
    MEDIA_TYPE = "http.media-type", "The route does not read this Content-Type."
    METHOD = "http.method", "The path does not answer this method."
    NOT_ACCEPTABLE = "http.not-acceptable", "The resource has no representation of an acceptable type."
    NOT_FOUND = "http.not-found", "Nothing is served at the path.", NotFound
    REQUEST = "http.request", "The request is not in the form of its route: its body or its query.", Malformed
    TARGET_TOO_LONG = "http.target-too-long", "The path or the query is too long."
    TIMEOUT = "http.timeout", "The request took too long to arrive."


class KeysCode(Code):
    DAMAGED = "keys.damaged", "A key file holds no signer key, or the keys do not belong together.", Untrusted
    MISSING = "keys.missing", "There is no key file.", NotFound
    MODE = "keys.mode", "Other users of the machine can read a key file.", Untrusted
    NOT_PREPARED = "keys.not-prepared", "No rotation is prepared, or none is to be ended.", NotFound
    PREPARED = "keys.prepared", "The keys of a rotation are prepared already.", Conflict
    ROTATED = "keys.rotated", "The log was rotated to keys that are not in the data directory.", Untrusted


class NodeCode(Code):
    ADDRESS = "node.address", "Another node of the registry has the address of this one.", Conflict
    CODE = "node.code", "The request comes from no node of this registry.", Unauthorized
    REPEATED = "node.repeated", "The request of a node was taken before.", Conflict
    REQUEST = "node.request", "The bytes are not a request of a node.", Malformed


class QuotaCode(Code):
    SENDER = "quota.sender", "Too much came from one author or one network. Retry later.", Unavailable
    STRANGERS = "quota.strangers", "Too many statements were signed by did:keys. Use a domain's DID.", Unavailable
    TOTAL = "quota.total", "Too many statements came in all, or wait. Retry later.", Unavailable


class RegistryBlobCode(Code):
    DIGEST = (
        "blob.digest",
        "The bytes do not have the digest or the size that the statement names, or it names no such blob.",
        Malformed,
        Refused,
    )
    UNKNOWN = "blob.unknown", "No logged statement names the blob.", NotFound


class RegistryIdentityCode(Code):
    REQUEST = "identity.request", "The body is not a request for an identity.", Malformed
    UNKNOWN = "identity.unknown", "The log does not know the DID or its key.", Unauthorized, NotFound
    UNRESOLVED = "identity.unresolved", "The DID document of the author cannot be used.", Unauthorized


class RegistryLogCode(Code):
    BUSY = "log.busy", "The queue is full; nothing was taken.", Unavailable
    CLOCK = "log.clock", "The clock of the registry is wrong; nothing was begun.", Unavailable
    COPIES = "log.copies", "Too few copies or standbys hold the newest leaves; they are not confirmed.", Unavailable
    FORKED = "log.forked", "The carried checkpoint is signed by this log and not of its past.", Untrusted
    NOT_LEADING = "log.not-leading", "This process does not write the log, or no longer.", Unavailable
    OTHER_LEADER = "log.other-leader", "Another process writes the log.", Unavailable
    SIGNED_ELSEWHERE = "log.signed-elsewhere", "Another process signs this log; nothing is signed here.", Unavailable
    UNAVAILABLE = "log.unavailable", "The log did not confirm the statement; it may be logged. Retry.", Unavailable


class RegistryMirrorCode(Code):
    ALIVE = "mirror.alive", "The registry of the mirror to be promoted still signs.", Conflict
    BEHIND = "mirror.behind", "The mirror could not follow its registry for two minutes.", Unavailable
    BLOB = "mirror.blob", "The registry does not serve a blob that a logged statement names.", Unavailable
    DIRECTORY = (
        "mirror.directory",
        "The data directory belongs to another mirror, or to a registry.",
        Conflict,
        NotFound,
        Untrusted,
    )
    READ_ONLY = "mirror.read-only", "A mirror takes no writes; the refusal names the address of the registry.", Refused
    STOPPED = "mirror.stopped", "The log broke a rule or signed two histories; the mirror stopped.", Unavailable, Untrusted
    UNFINISHED = "mirror.unfinished", "The mirror has leaves that are not verified and stored yet.", Conflict
    TRUSTED_ROOT = "mirror.trusted-root", "The trusted root is not the one that the genesis pins.", Unavailable, Untrusted


class RegistryStatementCode(Code):
    UNKNOWN = "statement.unknown", "The log has no statement with the id.", NotFound


class RegistryWitnessCode(Code):
    AHEAD = "witness.ahead", "The witness has cosigned more leaves than the log has.", Untrusted
    HELD = "witness.held", "Another witness runs on the data directory.", Unavailable
    HISTORY = "witness.history", "The witness has cosigned another history of the log.", Untrusted
    KEY = "witness.key", "The key file of the witness is damaged, or other users can read it.", Untrusted
    NO_KEY = "witness.no-key", "The data directory has no witness.", NotFound
    OTHER_NAME = "witness.other-name", "The witness in the data directory has another name.", Conflict
    QUORUM = "witness.quorum", "Fewer witnesses are configured than the parameters require.", Unavailable
    RECORD = "witness.record", "The record of checkpoints is damaged, or cannot be written now.", Unavailable, Untrusted


class SearchCode(Code):
    QUERY = "search.query", "The query, a filter, the topic or the cursor of a search is malformed or too long.", Malformed


class SenderCode(Code):
    BLOCKED = "sender.blocked", "The operator of the registry takes nothing from this DID, domain or network.", Refused
    FORM = "sender.form", "The sender, the reason or the factor of a quota is malformed.", Malformed
    NOT_BLOCKED = "sender.not-blocked", "The sender is not blocked.", NotFound
    OWN = "sender.own", "The operator cannot block its own DID.", Refused
    TOO_MANY = "sender.too-many", "There are as many blocks and quotas as a registry keeps.", TooLarge


class ServerCode(Code):
    PORT = "server.port", "The address and port cannot be listened on.", Unavailable


class ServiceCode(Code):
    DATABASE = "registry.database", "The database of the registry does not answer.", Unavailable
    NOT_READY = "registry.not-ready", "This process takes no writes now.", Unavailable


class SettingsCode(Code):
    OTHER_ORIGIN = "settings.other-origin", "The log in the data directory has another origin.", Conflict
    OWNER = "settings.owner", "The data directory belongs to another user.", Refused
    VALUE = "settings.value", "A setting has a value that is not allowed, does not fit another one, or does not exist.", Malformed


class SigstoreCode(Code):
    CERTIFICATE = (
        "sigstore.certificate",
        "The signing certificate is not one of this registry's authority, or is not valid now.",
        Unauthorized,
    )
    KEYS = (
        "sigstore.keys",
        "The keys and certificates of the authority do not belong together, or other users can read them.",
        Untrusted,
    )
    KEYS_EXIST = "sigstore.keys-exist", "The authority has its keys already.", Conflict
    KEYS_MISSING = "sigstore.keys-missing", "A key file of the authority is absent.", NotFound
    KEYS_ROTATED = "sigstore.keys-rotated", "The keys of the authority in force are not on this node.", Unavailable
    PROOF = "sigstore.proof", "The request is not signed by the key that it names.", Unauthorized
    REQUEST = "sigstore.request", "The body is not a request for a certificate or a log entry.", Malformed


class SpeakersCode(Code):
    QUERY = "speakers.query", "The query names neither one hash nor one topic.", Malformed


class StandingCode(Code):
    CURSOR = "standing.cursor", "The cursor is not the next of a page.", Malformed
