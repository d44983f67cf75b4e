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
        "A function has no unique name, is of another kind than its operation, or takes other arguments.",
        Malformed,
    )
    FUNCTION_MISSING = "agent.function-missing", "No function serves an operation of the protocol.", NotFound
    IDENTITY = "agent.identity", "The identity to go on with has another DID.", Conflict
    INTERNAL = "agent.internal", "This side failed; its log has the reason.", Unavailable
    LATE = "agent.late", "The protocol was not ready in time; it is served when it is.", Unavailable, Origin.REGISTRY
    MIDDLEWARE = "agent.middleware", "A middleware called proceed twice.", Refused
    NO_CANDIDATES = "agent.no-candidates", "No protocol is published about the topic.", NotFound, Origin.REGISTRY
    NOT_PROVIDED = "agent.not-provided", "The agent does not provide the protocol.", NotFound
    SETTINGS = "agent.settings", "The agent is not configured for this: it lacks a sandbox, a negotiator or a protocol.", Refused
    STALE = "agent.stale", "The proof of a provided protocol is too old, and its registry does not answer.", Unavailable
    TAKEN_BACK = "agent.taken-back", "The publishers of all protocols about the topic yanked or revoked them.", NotFound


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
    ACCEPTED = "flow.accepted", "The peer accepted or acknowledged something that was not proposed.", Refused
    ALIAS = (
        "flow.alias",
        "The publishers that claim the id are several, do not claim it, or are not those of the policy.",
        Refused,
        Origin.REGISTRY,
    )
    ALIAS_UNKNOWN = "flow.alias-unknown", "No registry of the policy has a protocol with the id.", NotFound, Origin.REGISTRY
    BATCH = "flow.batch", "A batch names no protocol, or too many.", Malformed, TooLarge, Origin.CALLER
    BUSY = "flow.busy", "The sender negotiates more than is remembered of one sender.", Unavailable
    CHANGING = "flow.changing", "The session is being changed already.", Refused, Origin.CALLER, Retry.YES
    DID_METHOD = "flow.did-method", "No resolver supports the DID method.", Refused, Origin.CALLER
    DOCUMENT = "flow.document", "The id turned out to be another document.", Refused
    ENDLESS = "flow.endless", "100 messages of negotiation, or 8 proposals, led to no session.", Refused
    EXPIRED = "flow.expired", "The lifetime of the session is over.", Refused, Retry.YES
    ID = "flow.id", "The text is not a protocol id.", Malformed, Origin.CALLER
    IDLE = "flow.idle", "Nothing was said for the idle time.", Unavailable, Origin.CALLER
    KEYS = "flow.keys", "The keys of the sender cannot be had or used.", Malformed, Unauthorized
    LIFETIME = "flow.lifetime", "The session would end too late, or is over already.", Refused
    MESSAGE = "flow.message", "The bytes are not a message of the flow, or its payload is not the one of its action.", Malformed
    NO_COMMON_PROTOCOL = "flow.no-common-protocol", "The two agents have no protocol in common.", Refused, Origin.CALLER
    OFFER = "flow.offer", "The protocol cannot be registered, or is registered already.", Malformed, Conflict, Origin.CALLER
    OFFERS = "flow.offers", "The agent registers more than 64 protocols.", TooLarge, Origin.CALLER
    PARAMETERS = "flow.parameters", "The two agents do not agree on a parameter.", Refused
    PEER = "flow.peer", "No DID was named, or the transport proved another one.", Malformed, Refused
    PEER_ERROR = "flow.peer-error", "The peer reports an error with a code of its own.", Refused
    PEER_LOST = (
        "flow.peer-lost",
        "The peer ended the connection, and gave no reason or a temporary one.",
        Unavailable,
        Origin.NETWORK,
    )
    PEER_REFUSED = "flow.peer-refused", "The peer ended the connection for a permanent reason; `peer_code` has it.", Refused
    READY = "flow.ready", "The peer would be ready too late.", Refused
    RECIPIENT = "flow.recipient", "The message is for another agent.", Unauthorized
    RENEGOTIATIONS = "flow.renegotiations", "The session was changed too often.", TooLarge, Origin.CALLER
    REPLAYED = "flow.replayed", "The message came twice, or is much older than one before it.", Unauthorized
    REPORTS = "flow.reports", "The two sides did not agree to co-sign reports.", Refused, Origin.CALLER
    ROLE = "flow.role", "Only the initiator changes a session.", Refused, Origin.CALLER
    ROUNDS = "flow.rounds", "There were too many offers, or an offer was repeated.", TooLarge
    SENDER = "flow.sender", "The message is of another sender than before.", Unauthorized
    SESSION = "flow.session", "The session does not exist, or is not the negotiated one.", Malformed, Conflict, NotFound
    SESSIONS = "flow.sessions", "The connection has too many sessions.", TooLarge
    SIGNATURE = "flow.signature", "The signature is not a detached JWS in its one spelling.", Malformed
    STALE = "flow.stale", "The message is older than the replay record.", Unauthorized
    TIMEOUT = "flow.timeout", "An answer did not come in time.", Unavailable
    TOO_LARGE = "flow.too-large", "A message or a part of it is over its cap.", TooLarge
    UNEXPECTED = "flow.unexpected", "The message is not expected now.", Malformed
    UNREGISTERED = "flow.unregistered", "The protocol is not in the registry of this agent.", NotFound, Origin.CALLER
    VALUE = "flow.value", "A local parameter has no JSON form.", Malformed, Origin.CALLER
    VERIFICATION = "flow.verification", "A signature, a key, a time or a recipient is wrong.", Unauthorized
    VERSION = "flow.version", "The message has another version of the flow.", Refused
    VERSION_CONFLICT = "flow.version-conflict", "The agents have different versions of the protocol or the flow.", Refused
    WAITING = "flow.waiting", "Over 64 messages came while the session changed.", TooLarge
    WORK = "flow.work", "The code of this side was not ready in 25 seconds.", Unavailable, Origin.CALLER


class FrameCode(Code, origin=Origin.PEER):
    FORM = "frame.form", "The frame has no header byte, or a frame of PT 10 is not UTF-8.", Malformed
    TOO_LARGE = "frame.too-large", "The frame is over its cap.", TooLarge
    UNEXPECTED = "frame.unexpected", "A frame of this type is not allowed in this state.", Refused
    UNSUPPORTED_TYPE = "frame.unsupported-type", "The frame type is not a capability of both Hellos.", Refused


class HelloCode(Code, origin=Origin.PEER):
    CHOICE = "hello.choice", "The answer is to another Hello, or selects or confirms something that was not offered.", Refused
    DESTINATION = "hello.destination", "The Hello is for another DID, or another DID answers.", Refused
    FORM = "hello.form", "The Hello is missing, came twice, or a field of it has another form.", Malformed
    REFUSED = "hello.refused", "The peer refused the Hello, and says why.", Refused, Unavailable
    VERSION = "hello.version", "There is no common version.", Refused


class MetaCode(Code, origin=Origin.PEER):
    MESSAGE = "meta.message", "The bytes are not a meta message of this profile.", Malformed
    NOT_AGREED = "meta.not-agreed", "The message needs a capability that is not in both Hellos.", Refused, Origin.CALLER
    TOO_LARGE = "meta.too-large", "A text of the message is over its cap.", TooLarge
    UNEXPECTED = "meta.unexpected", "The message is not allowed in this state.", Refused
    UNKNOWN_ACTION = "meta.unknown-action", "The profile has no such action.", Refused


class NegotiationCode(Code, origin=Origin.PEER):
    ANSWER = (
        "negotiation.answer",
        "The model's answer has the right schema and no usable content.",
        Malformed,
        TooLarge,
        Origin.CALLER,
    )
    BASE = "negotiation.base", "The base document cannot be had, differs, or has a base itself.", Refused
    CAPABILITY = "negotiation.capability", "No function serves an operation, or a case breaks its schema.", Refused, Origin.CALLER
    CODE = "negotiation.code", "The written code is for another document.", Refused, Origin.CALLER
    FAILED = "negotiation.failed", "The negotiator of this side failed; its log has the reason.", Unavailable, Origin.CALLER
    FAULT_DENIED = "negotiation.fault-denied", "The peer denies the reported error.", Refused
    FIX_LIMIT = "negotiation.fix-limit", "Too many errors were reported.", Refused
    HANDLER = "negotiation.handler", "No handler passed within the rounds.", Refused, Origin.CALLER
    LIMIT = "negotiation.limit", "There was no agreement within the allowed messages.", Refused
    NONCONFORMING = "negotiation.nonconforming", "The peer says that this side broke a rule.", Refused, Origin.CALLER
    REJECTED = "negotiation.rejected", "One side rejected the negotiation.", Refused
    ROLES = (
        "negotiation.roles",
        "The manifest does not have the two roles, or the requests, of a negotiation.",
        Refused,
        Origin.CALLER,
    )
    SEQUENCE = "negotiation.sequence", "The sequence number fits no way of counting.", Refused
    SUMMARY = "negotiation.summary", "A later proposal of this side has no summary of its changes.", Malformed, Origin.CALLER
    TEST_CASE = "negotiation.test-case", "The handler did something else than a test case says.", Refused, Origin.CALLER
    TESTS_FAILED = "negotiation.tests-failed", "The agreed test cases fail.", Refused
    TESTS_REJECTED = "negotiation.tests-rejected", "One side rejected the test cases.", Refused
    TEXT = "negotiation.text", "The peer accepted another text than the one proposed.", Refused
    TURN = "negotiation.turn", "It was not the sender's turn, or there is nothing to accept.", Refused


class OperationCode(Code, origin=Origin.CALLER):
    """Those without a kind are in the events and the log of a provider; its caller gets a status."""

    ARGUMENTS = "operation.arguments", "The arguments break the schema of the operation.", Malformed
    KIND = "operation.kind", "A stream was called as a request, or another operation as a stream.", Malformed
    RESULT = "operation.result", "The result breaks the schema of the operation.", Malformed
    TOO_LARGE = "operation.too-large", "The value of a function is over the limits of a result (only as a reason)."
    UNAVAILABLE = "operation.unavailable", "A function raised Unavailable (only as a reason)."
    UNCAUGHT = "operation.uncaught", "A function raised an exception (only as a reason)."
    UNLISTED_CODE = (
        "operation.unlisted-code",
        "A function failed with a status that is not listed (only as a reason).",
    )
    UPSTREAM = "operation.upstream", "A function did not catch the error of an agent that it called (only as a reason)."
    WRONG_RESULT = "operation.wrong-result", "The value of a function breaks the schema (only as a reason)."


class PeerCode(Code, origin=Origin.CALLER):
    CHANGED = "peer.changed", "Another DID answers at a known address.", Refused, Origin.PEER
    CLOSED = "peer.closed", "The peer object was closed.", Refused


class QuestionCode(Code, origin=Origin.PEER):
    LIMIT = "question.limit", "A side asked more questions than are allowed.", Refused, Origin.CALLER
    REPEATED = "question.repeated", "The messageId of a question was used before.", Refused


class SandboxCode(Code, origin=Origin.CALLER):
    CLOSED = "sandbox.closed", "The pool of workers is closed.", Unavailable
    DIED = "sandbox.died", "The worker died.", Unavailable
    MEMORY = "sandbox.memory", "The handler used up its memory and was ended.", Unavailable
    TIMEOUT = "sandbox.timeout", "The handler took too long and was ended.", Unavailable
    UNAVAILABLE = "sandbox.unavailable", "The sandbox cannot start on this machine.", Unavailable, Retry.NO


class SessionCode(Code, origin=Origin.PEER):
    BUSY = "session.busy", "There is no room now. Nothing was begun, so it may be tried again.", Unavailable
    CLOSED = "session.closed", "The session is over.", Refused, Unavailable
    CODE_TIMEOUT = "session.code-timeout", "The code was not ready in time on both sides.", Unavailable, Origin.CALLER
    DRAINING = "session.draining", "The agent that answered stops; another session may be opened.", Unavailable
    ENDED = "session.ended", "The handler has ended the session.", Refused, Origin.CALLER, Retry.YES
    FAILED = "session.failed", "The handler ended the session as failed.", Refused, Origin.CALLER
    HANDLER_TIMEOUT = "session.handler-timeout", "The handler took over 10 seconds for one event.", Unavailable, Origin.CALLER
    HASH_MISMATCH = "session.hash-mismatch", "The document has another hash than the agreed one.", Refused
    HELLO_TIMEOUT = "session.hello-timeout", "No Hello came in time.", Unavailable
    IDLE = "session.idle", "Nothing was said for the idle time.", Unavailable, Origin.CALLER
    INBOX_FULL = "session.inbox-full", "Too many messages came before the session or its handler was ready.", TooLarge
    INTERNAL = "session.internal", "This side failed; its log has the reason.", Unavailable, Origin.CALLER
    LATE = "session.late", "The call was not sent within its time, and was not done.", Unavailable
    MEMBER = "session.member", "The agent cannot join the shared session under this DID.", Refused, Origin.CALLER
    IGNORED = "session.ignored", "The peer sent too many messages that are none of the protocol.", Refused
    MESSAGE = "session.message", "The message is over its cap, or on a stream without a plain name.", TooLarge
    NO_CODE = "session.no-code", "There is no code yet that the peer could fix.", Refused, Origin.CALLER
    NO_COMMON_PROTOCOL = "session.no-common-protocol", "The two agents have no protocol in common.", Refused, Origin.CALLER
    NO_MODEL = "session.no-model", "A protocol was proposed, and this side has no language model.", Refused, Origin.CALLER
    NO_WORKER = (
        "session.no-worker",
        "Another session needed the worker of this one, which has no snapshot.",
        Unavailable,
        Origin.CALLER,
    )
    NOT_NATURAL = "session.not-natural", "The peer does not speak natural language.", Refused
    OPERATION = "session.operation", "The role has no such operation.", Refused, Origin.CALLER
    OUTBOX_FULL = "session.outbox-full", "Too much waits to be sent or to be taken by the application.", TooLarge, Origin.CALLER
    OUTCOME_UNKNOWN = "session.outcome-unknown", "A call was sent and not answered; it may have been done.", Unavailable
    PARAMETERS = "session.parameters", "The parameters of the session are over their caps.", Malformed, Origin.CALLER
    PEER = "session.peer", "The agent is not in the session.", Refused, Origin.CALLER
    PEER_CODE = "session.peer-code", "The peer could not get its code ready; `peer_code` has its reason.", Refused, Unavailable
    PEER_DID = "session.peer-did", "The Hello claims another DID than the transport proved.", Refused
    PEER_LOST = (
        "session.peer-lost",
        "The peer ended the session, and gave no reason or a temporary one.",
        Unavailable,
        Origin.NETWORK,
    )
    PEER_REFUSED = "session.peer-refused", "The peer ended the session for a permanent reason; `peer_code` has it.", Refused
    PROFILE = "session.profile", "The profile of the session does not have this function.", Refused, Origin.CALLER
    PROTOCOL = "session.protocol", "The protocol is not provided at present.", Refused, Retry.YES
    PROTOCOL_UNAVAILABLE = "session.protocol-unavailable", "The protocol is provided, and cannot be verified now.", Unavailable
    REPLACED = (
        "session.replaced",
        "A later connection of the same DID took the place in the shared session.",
        Refused,
        Origin.CALLER,
    )
    REPLY_TIMEOUT = "session.reply-timeout", "One side did not answer in time.", Unavailable
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
    STREAM = "session.stream", "The handler needs several streams, and the transport has one.", Refused, Origin.CALLER
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
