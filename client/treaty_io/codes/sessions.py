"""The error codes of sessions: both profiles, negotiation, handlers, reports; see `treaty_consensus.codes`."""

from __future__ import annotations

from treaty_consensus.codes import Code, Retry
from treaty_consensus.errors import Conflict, Malformed, NotFound, Origin, Refused, TooLarge, Unauthorized, Unavailable, Untrusted


class AgentCode(Code, origin=Origin.CALLER):
    CALL = "agent.call", "A call names no agent or nothing to speak, or too much.", Malformed
    CONTRADICTED = (
        "agent.contradicted",
        "Newer facts contradict a verified protocol; it is fetched again.",
        Refused,
        Origin.REGISTRY,
        Retry.YES,
    )
    FUNCTION = (
        "agent.function",
        "A function is missing, cannot be described, has no unique name or does not fit; or a middleware called proceed twice.",
        Malformed,
        NotFound,
        Refused,
    )
    LATE = "agent.late", "The protocol was not ready in time; it is served when it is.", Unavailable, Origin.REGISTRY
    NO_CANDIDATES = (
        "agent.no-candidates",
        "No protocol is published about the topic, or the publishers of all yanked or revoked them.",
        NotFound,
        Origin.REGISTRY,
    )
    NOT_PROVIDED = "agent.not-provided", "The agent does not provide the protocol.", NotFound
    SETTINGS = (
        "agent.settings",
        "The agent is not configured for this: it lacks a part such as a sandbox or a registry, or a setting is wrong.",
        Malformed,
        Conflict,
        Refused,
    )
    STALE = "agent.stale", "The proof of a provided protocol is too old, and its registry does not answer.", Unavailable


class ConfigCode(Code, origin=Origin.CALLER):
    FILE = (
        "config.file",
        "The configuration or a file that it names cannot be read, or has a key or a value that is not allowed.",
        Malformed,
        TooLarge,
        NotFound,
        Refused,
        Unavailable,
        Retry.NO,
    )


class ClientDocumentCode(Code, origin=Origin.REGISTRY):
    DIGEST = "document.digest", "The bytes of the document or its card are not the published ones.", Untrusted
    HEADER = (
        "document.header",
        "A header of the document is there twice, or its base or topic has another form.",
        Malformed,
        Refused,
        Origin.CALLER,
    )


class ClientHandlerCode(Code, origin=Origin.CALLER):
    CODE = "handler.code", "The cached code of the handler cannot be read.", Refused
    FAILED = (
        "handler.failed",
        "The handler does not compile, raised an exception, asked for an effect that it may not have, or broke its interface.",
        Refused,
    )
    REJECTED = "handler.rejected", "The handler rejected the message as malformed.", Malformed, Origin.PEER


class ClientReportCode(Code, origin=Origin.PEER):
    EQUIVOCATION = "report.equivocation", "The negotiation was reported with another document.", Conflict
    NOT_CHECKED = "report.not-checked", "The report could not be checked or answered in time.", Unavailable, Origin.REGISTRY


class FlowCode(Code, origin=Origin.PEER):
    BATCH = "flow.batch", "A batch names no protocol, or too many.", Malformed, TooLarge, Origin.CALLER
    BUSY = "flow.busy", "The sender negotiates more than is remembered of one sender.", Unavailable
    CHANGING = "flow.changing", "The session is being changed already.", Refused, Origin.CALLER, Retry.YES
    ENDLESS = "flow.endless", "100 messages of negotiation, or 8 proposals, led to no session.", Refused
    EXPIRED = "flow.expired", "The lifetime of the session is over.", Refused, Retry.YES
    LIFETIME = "flow.lifetime", "The session would be ready or end too late, or is over already.", Refused
    MESSAGE = "flow.message", "The bytes are not a message of the flow, or not one that is due.", Malformed, Refused
    OFFER = (
        "flow.offer",
        "The protocol or the parameter cannot be offered: it is malformed, not registered, registered already, or one too many.",
        Malformed,
        TooLarge,
        NotFound,
        Conflict,
        Origin.CALLER,
    )
    PARAMETERS = "flow.parameters", "The two agents do not agree on a parameter.", Refused
    PEER = (
        "flow.peer",
        "No DID was named, the transport proved another one, or the message is of or for another agent.",
        Malformed,
        Unauthorized,
        Refused,
    )
    RENEGOTIATIONS = "flow.renegotiations", "The session was changed too often.", TooLarge, Origin.CALLER
    ROUNDS = "flow.rounds", "There were too many offers, or an offer was repeated.", TooLarge
    SESSION = "flow.session", "The session does not exist, or is not the negotiated one.", Malformed, Conflict, NotFound
    SIGNATURE = "flow.signature", "The signature is not a detached JWS in its one spelling.", Malformed
    STALE = "flow.stale", "The message is older than the replay record.", Unauthorized
    TOO_LARGE = "flow.too-large", "A message, the messages that wait, or the sessions of the connection are over a cap.", TooLarge
    VERIFICATION = (
        "flow.verification",
        "A signature, a key, a time or a recipient is wrong, or the message came twice.",
        Malformed,
        Unauthorized,
    )
    VERSION = "flow.version", "The message has another version of the flow.", Refused
    VERSION_CONFLICT = "flow.version-conflict", "The agents have different versions of the protocol or the flow.", Refused


class FrameCode(Code, origin=Origin.PEER):
    FORM = (
        "frame.form",
        "The frame has no header byte, is not UTF-8 as PT 10, or is of a type that is not agreed or not allowed now.",
        Malformed,
        Refused,
    )
    TOO_LARGE = "frame.too-large", "The frame, or a text of its message, is over its cap.", TooLarge


class HelloCode(Code, origin=Origin.PEER):
    DESTINATION = "hello.destination", "The Hello is for another DID, or another DID answers.", Refused
    FORM = (
        "hello.form",
        "The Hello is missing, came twice, has a field of another form, or selects or confirms something that was not offered.",
        Malformed,
        Refused,
    )
    REFUSED = "hello.refused", "The peer refused the Hello, and says why.", Refused, Unavailable
    VERSION = "hello.version", "There is no common version.", Refused


class MetaCode(Code, origin=Origin.PEER):
    MESSAGE = (
        "meta.message",
        "The bytes are not a meta message of this profile, or not one that is allowed in this state.",
        Malformed,
        Refused,
    )


class NegotiationCode(Code, origin=Origin.PEER):
    ANSWER = (
        "negotiation.answer",
        "The model's answer, a proposal of this side or its test cases have no usable content.",
        Malformed,
        TooLarge,
        Origin.CALLER,
    )
    CODE = (
        "negotiation.code",
        "The written code does not do what the document, the roles or a test case says.",
        Refused,
        Origin.CALLER,
    )
    FAULT = "negotiation.fault", "One side says that the other broke a rule.", Refused
    HANDLER = "negotiation.handler", "No handler passed within the rounds.", Refused, Origin.CALLER
    LIMIT = "negotiation.limit", "There was no agreement within the allowed messages.", Refused
    MESSAGE = (
        "negotiation.message",
        "The peer's message is out of turn or order, repeats an id, accepts another text, or its base cannot be had.",
        Refused,
    )
    REJECTED = (
        "negotiation.rejected",
        "One side rejected the negotiation; Unavailable if its reason may pass.",
        Refused,
        Unavailable,
    )
    TESTS = "negotiation.tests", "The agreed test cases fail, or one side rejected them.", Refused
    TOO_MANY = "negotiation.too-many", "One side reported more errors or asked more questions than are allowed.", Refused


class OperationCode(Code, origin=Origin.CALLER):
    """Those without a kind are in the events and the log of a provider; its caller gets a status."""

    ARGUMENTS = "operation.arguments", "The arguments break the schema of the operation.", Malformed
    RESULT = "operation.result", "The result breaks the schema of the operation.", Malformed
    TOO_LARGE = "operation.too-large", "The value of a function is over the limits of a result (only as a reason)."
    UNAVAILABLE = "operation.unavailable", "A function raised Unavailable (only as a reason)."
    UNCAUGHT = "operation.uncaught", "A function raised an exception (only as a reason)."
    UPSTREAM = "operation.upstream", "A function did not catch the error of an agent that it called (only as a reason)."
    WRONG_RESULT = (
        "operation.wrong-result",
        "The value or the status of a function is not one that the protocol lists (only as a reason).",
    )


class PeerCode(Code, origin=Origin.CALLER):
    CHANGED = "peer.changed", "Another DID answers at a known address.", Refused, Origin.PEER
    CLOSED = "peer.closed", "The peer object was closed.", Refused


class SandboxCode(Code, origin=Origin.CALLER):
    CLOSED = "sandbox.closed", "The pool of workers is closed.", Unavailable
    DIED = "sandbox.died", "The worker died.", Unavailable
    LIMIT = "sandbox.limit", "The handler used up its time or its memory, and was ended.", Unavailable
    UNAVAILABLE = "sandbox.unavailable", "The sandbox cannot start on this machine.", Unavailable, Retry.NO


class SessionCode(Code, origin=Origin.PEER):
    BUSY = "session.busy", "There is no room now. Nothing was begun, so it may be tried again.", Unavailable
    CLOSED = "session.closed", "The session is over, or its keys are used up.", Refused, Unavailable
    CODE_TIMEOUT = "session.code-timeout", "The code was not ready in time on both sides.", Unavailable, Origin.CALLER
    DRAINING = "session.draining", "The agent that answered stops; another session may be opened.", Unavailable
    ENDED = "session.ended", "The handler has ended the session.", Refused, Origin.CALLER, Retry.YES
    FAILED = "session.failed", "The handler ended the session as failed.", Refused, Origin.CALLER
    HASH_MISMATCH = "session.hash-mismatch", "The document has another hash than the agreed one.", Refused
    IDLE = "session.idle", "Nothing was said for the idle time.", Unavailable, Origin.CALLER
    INBOX_FULL = "session.inbox-full", "Too many messages came before the session or its handler was ready.", TooLarge
    INTERNAL = "session.internal", "This side failed; its log has the reason.", Unavailable, Origin.CALLER
    LATE = "session.late", "The call was not sent within its time, and was not done.", Unavailable
    IGNORED = "session.ignored", "The peer sent too many messages that are none of the protocol.", Refused
    MESSAGE = (
        "session.message",
        "The message is over its cap, on a stream without a plain name, or ends each worker of a shared session.",
        TooLarge,
        Refused,
    )
    NO_COMMON_PROTOCOL = "session.no-common-protocol", "The two agents have no protocol in common.", Refused, Origin.CALLER
    NO_MODEL = "session.no-model", "A protocol was proposed, and this side has no language model.", Refused, Origin.CALLER
    NO_WORKER = (
        "session.no-worker",
        "Another session needed the worker of this one, which has no snapshot.",
        Unavailable,
        Origin.CALLER,
    )
    OPERATION = (
        "session.operation",
        "The role has no such operation, or it is called as another kind than it is.",
        Malformed,
        Refused,
        Origin.CALLER,
    )
    OUTBOX_FULL = "session.outbox-full", "Too much waits to be sent or to be taken by the application.", TooLarge, Origin.CALLER
    OUTCOME_UNKNOWN = "session.outcome-unknown", "A call was sent and not answered; it may have been done.", Unavailable
    PEER = (
        "session.peer",
        "The agent is not in the shared session, cannot join it under this DID, or was replaced by a later connection.",
        Refused,
        Origin.CALLER,
    )
    PEER_CODE = "session.peer-code", "The peer could not get its code ready; `peer_code` has its reason.", Refused, Unavailable
    PEER_LOST = (
        "session.peer-lost",
        "The peer ended the session, and gave no reason or a temporary one.",
        Unavailable,
        Origin.NETWORK,
    )
    PEER_REFUSED = "session.peer-refused", "The peer ended the session for a permanent reason; `peer_code` has it.", Refused
    PROFILE = (
        "session.profile",
        "The session does not have this function: its profile, the two Hellos, the transport or this side's part lacks it.",
        Refused,
        Origin.CALLER,
    )
    PROTOCOL = "session.protocol", "The protocol is not provided at present.", Refused, Retry.YES
    PROTOCOL_UNAVAILABLE = "session.protocol-unavailable", "The protocol is provided, and cannot be verified now.", Unavailable
    REPLY_TIMEOUT = "session.reply-timeout", "One side did not answer in time, or sent no Hello.", Unavailable
    REVOKED = "session.revoked", "The protocol of the session was taken back by its publisher.", Unavailable
    ROLE = (
        "session.role",
        "The protocol has no such role, leaves it open, or the roles of the two sides do not fit.",
        Refused,
        Origin.CALLER,
    )
    SLOW_PEER = "session.slow-peer", "The peer does not read what it is sent.", Unavailable
    SNAPSHOT = "session.snapshot", "The handler has no snapshot of the session within the cap.", Refused, Origin.CALLER
    STORAGE_FULL = "session.storage-full", "Handlers keep state for too many peers already.", Refused, Origin.CALLER
    WITHDRAWN = "session.withdrawn", "The agent no longer serves the protocol of the session.", Unavailable


class TranscriptCode(Code, origin=Origin.CALLER):
    DIFFERS = "transcript.differs", "A note of the transcript replays to another result.", Untrusted
    FORM = (
        "transcript.form",
        "The file cannot be read, or is not an unchanged transcript of this version within its cap.",
        Malformed,
        TooLarge,
        NotFound,
        Untrusted,
    )
