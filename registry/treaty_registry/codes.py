"""Define the error codes that only this package uses; see `treaty_consensus.codes`.

A class is called `Registry…` where another package has codes of the same prefix.
"""

from __future__ import annotations

from treaty_consensus.codes import Code
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TooLarge, Unauthorized, Unavailable, Untrusted


class BackupCode(Code):
    FOLDER = "backup.folder", "The running registry cannot reach or write the folder of the backup.", Refused
    NONE = "backup.none", "The folder holds no complete backup, or the backup of another log.", NotFound, Conflict


class BlobsCode(Code):
    DAMAGED = "blobs.damaged", "The stored bytes of a blob are damaged or missing.", Unavailable, Untrusted
    UNAVAILABLE = "blobs.unavailable", "The blob store does not answer.", Unavailable


class ContentCode(Code):
    TOO_COSTLY = "content.too-costly", "Checking the blobs needs more time or memory than is allowed.", Refused


class ControlCode(Code):
    FAILED = "control.failed", "The registry could not do it, or stopped; its log has the reason.", Unavailable
    NOT_RUNNING = "control.not-running", "No registry runs on the data directory.", NotFound


class CopyCode(Code):
    BEHIND = "copy.behind", "The log has signed leaves that the backup or the mirror lacks.", Untrusted
    OTHER_HISTORY = (
        "copy.other-history",
        "The backup or the mirror contradicts a signed head, the database, or itself.",
        Conflict,
        Untrusted,
    )
    UNPROVEN = "copy.unproven", "Nothing shows that the backup or the mirror has every leaf that the log signed.", Refused


class DatabaseCode(Code):
    SETTINGS = (
        "database.settings",
        "PostgreSQL can lose commits, is behind a proxy that loses the leader's lock, or has other tables.",
        Refused,
        Untrusted,
    )
    UNREACHABLE = "database.unreachable", "PostgreSQL is not installed, does not start, or does not answer.", Unavailable


class DiskCode(Code):
    FULL = "disk.full", "A disk of the registry is full; nothing was written.", Unavailable


class FenceCode(Code):
    DAMAGED = "fence.damaged", "The record of signed heads is missing, damaged, or of another log.", NotFound, Untrusted
    FAILED = "fence.failed", "The record of signed heads cannot be read or written: its object store or disk fails.", Unavailable


class HttpCode(Code):
    INTERNAL = "http.internal", "The registry failed; its log has the reason."
    MEDIA_TYPE = "http.media-type", "The route does not read this Content-Type, or has no representation of an acceptable type."
    METHOD = "http.method", "The path does not answer this method."
    NOT_FOUND = "http.not-found", "Nothing is served at the path.", NotFound
    REQUEST = "http.request", "The request is not in the form of its route: its body or its query.", Malformed
    TIMEOUT = "http.timeout", "The request took too long to arrive."
    TOO_LARGE = "http.too-large", "The body, the headers or the target of the request are larger than the route reads.", TooLarge


class KeysCode(Code):
    DAMAGED = (
        "keys.damaged",
        "The keys or certificates in a folder are damaged, do not belong together, or can be read by other users.",
        Untrusted,
    )
    EXISTS = "keys.exists", "The keys are there already, or those of a rotation are prepared.", Conflict
    MISSING = (
        "keys.missing",
        "The keys that the log has now are not in the data directory.",
        NotFound,
        Conflict,
        Unavailable,
        Untrusted,
    )
    NOT_PREPARED = "keys.not-prepared", "No rotation is prepared, or none is to be ended.", NotFound


class NodeCode(Code):
    REQUEST = (
        "node.request",
        "The request comes from no node of this registry, was taken before, or has another form.",
        Malformed,
        Conflict,
        Unauthorized,
    )


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
    UNKNOWN = "identity.unknown", "The log does not know the DID or its key.", Unauthorized, NotFound
    UNRESOLVED = "identity.unresolved", "The DID document of the author cannot be used.", Unauthorized


class RegistryLogCode(Code):
    CLOCK = "log.clock", "The clock of the registry is wrong; nothing was begun.", Unavailable
    COPIES = "log.copies", "Too few copies or standbys hold the newest leaves; they are not confirmed.", Unavailable
    FORKED = "log.forked", "The carried checkpoint is signed by this log and not of its past.", Untrusted
    NOT_LEADING = "log.not-leading", "This process does not write the log, or no longer.", Unavailable
    OTHER_LEADER = "log.other-leader", "Another process writes the log.", Unavailable
    SIGNED_ELSEWHERE = "log.signed-elsewhere", "Another process signs this log; nothing is signed here.", Unavailable
    UNAVAILABLE = "log.unavailable", "The log did not confirm the statement; it may be logged. Retry.", Unavailable


class RegistryMirrorCode(Code):
    ALIVE = "mirror.alive", "The registry of the mirror to be promoted still signs.", Conflict
    READ_ONLY = "mirror.read-only", "A mirror takes no writes; the refusal names the address of the registry.", Refused
    STOPPED = "mirror.stopped", "The log broke a rule or signed two histories; the mirror stopped.", Unavailable, Untrusted
    UNFINISHED = "mirror.unfinished", "The mirror has leaves that are not verified and stored yet.", Conflict


class RegistryStatementCode(Code):
    UNKNOWN = "statement.unknown", "The log has no statement with the id.", NotFound


class RegistryWitnessCode(Code):
    AHEAD = "witness.ahead", "The witness has cosigned more leaves than the log has.", Untrusted
    HISTORY = "witness.history", "The witness has cosigned another history of the log.", Untrusted
    QUORUM = "witness.quorum", "Fewer witnesses are configured than the parameters require.", Unavailable
    RECORD = "witness.record", "The record of checkpoints is damaged, or cannot be written now.", Unavailable, Untrusted


class SearchCode(Code):
    QUERY = "search.query", "The query, a filter, the topic or the cursor of a search is malformed or too long.", Malformed


class SenderCode(Code):
    BLOCKED = "sender.blocked", "The operator of the registry takes nothing from this DID, domain or network.", Refused
    FORM = (
        "sender.form",
        "The sender, the reason or the factor of a quota is malformed or cannot be set, or there are too many of them.",
        Malformed,
        TooLarge,
        NotFound,
        Refused,
    )


class ServiceCode(Code):
    NOT_READY = "registry.not-ready", "This process takes no writes now.", Unavailable


class SettingsCode(Code):
    DIRECTORY = (
        "settings.directory",
        "The data directory is of another log, mirror, witness or user, or holds none.",
        NotFound,
        Conflict,
        Refused,
        Untrusted,
    )
    VALUE = (
        "settings.value",
        "A setting has a value that is not allowed, does not fit another one or this machine, or does not exist.",
        Malformed,
        Conflict,
        Refused,
    )


class SigstoreCode(Code):
    PROOF = (
        "sigstore.proof",
        "The request is not signed by the key that it names, or its certificate is not one of this registry that is valid now.",
        Unauthorized,
    )
