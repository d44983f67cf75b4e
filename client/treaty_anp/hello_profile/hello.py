"""Make, parse and answer Hellos, the first message of each side: JSON (RFC 8259) of at most 32 KiB.

docs/specification/hello-profile.md, section 3, has the format and its table. For example:

    {"version": "1.0", "type": "sourceHello", "messageId": "…", "sessionId": "…", "random": "…",
     "sourceDid": "did:wba:buyer.example", "destinationDid": "did:wba:shop.example",
     "verificationMethod": {"id": "did:wba:buyer.example#key-1"},
     "metaProtocol": {"version": "1.0", "supportedCapabilities": ["reportCosignature"],
       "usedProtocolHash": "…64 hex digits", "candidateProtocols": ["https://…"], "candidateRoles": {"https://…": "requester"}}}

The source prints a Hello with `version`, `type` and `metaProtocol` alone; that is enough. Null means absent. The meaning of a
destinationHello to an initiator that offered the hash H (or none):

    usedProtocolHash   selectedProtocol   meaning
    H                  any or none        H is confirmed: both may speak at once
    absent or other    a candidate        that protocol is selected; `selectedProtocolHash` is its hash, if given
    absent             absent             nothing in common
    any other combination is an error

The plain profile proves neither DID: nothing here is signed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from treaty_consensus import canonical
from treaty_consensus.codes import CanonicalCode
from treaty_consensus.did import parse_did, parse_key_id
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unavailable
from treaty_io.codes import HelloCode, SessionCode
from treaty_io.errors import code_in

from ..ending import refused_by_peer
from .actions import Agreement
from .messages import fault_of

# The signed Hello of the E2EE profile fits, too. It bounds the work for a stranger before it has proved anything.
MAX_HELLO = 32 * 1024
# Each candidate is looked up; further ones are passed over.
MAX_CANDIDATES = 16
# More than the candidates that are read. Further ones are refused: without its role a candidate would be taken for any role.
MAX_CANDIDATE_ROLES = 64
HELLO_VERSION = "1.0"
META_VERSIONS = ("1.0",)
"""The versions of the meta-protocol spoken here, lowest first."""

NATURAL_LANGUAGE_PROTOCOL = "naturalLanguageProtocol"
"""The capability of speaking natural language (PT=10)."""
VERIFICATION_PROTOCOL = "verificationProtocol"
"""The capability of exchanging test messages (PT=11)."""
NATURAL_LANGUAGE_NEGOTIATION = "naturalLanguageNegotiation"
"""The capability of questions and answers about the negotiation."""
TEST_CASES_NEGOTIATION = "testCasesNegotiation"
"""The capability of agreeing on test cases."""
FIX_ERROR_NEGOTIATION = "fixErrorNegotiation"
"""The capability of reporting errors and having them mended."""
REPORT_COSIGNATURE = "reportCosignature"
"""The capability of co-signing reports; listed only by an agent whose policy reports."""
CALL_CONTEXT = "callContext"
"""The capability of reading the trace and the time of a call."""
PROTOCOL_PUBLISHED = "protocolPublished"
"""The capability of being told where a negotiated document is published."""
FLOW_PROFILE = "flowProfile"
"""The capability of going on by the flow profile where nothing else is in common."""

GREASE_PREFIX = "grease."
"""The beginning of capabilities that mean nothing (docs/specification/compatibility.md): a peer passes over unknown ones."""

ROLE_FIX = "Connect in another role (role=…), or to an agent that provides the protocol in a role that fits."

HelloType: TypeAlias = Literal["sourceHello", "destinationHello"]

# The caps keep foreign ids short in logs and transcripts. The source names no form.
_Id: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,128}\Z")]
_Random: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{16,128}\Z")]
_Uri: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,512}\Z")]
_Role: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9-]{0,31}\Z")]
_Roles: TypeAlias = Annotated[dict[_Uri, _Role], msgspec.Meta(max_length=MAX_CANDIDATE_ROLES)]
_Version: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})\Z")]

_URI = re.compile(r"[!-~]{1,512}")
_CAPABILITY = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    version: _Version
    supported_capabilities: tuple[Any, ...]
    # Any value: one that cannot be used is left out, and the negotiation follows.
    used_protocol_hash: Any = None
    protocol_hash: Any = None
    candidate_protocols: tuple[Any, ...] | None = None
    selected_protocol: _Uri | None = None
    selected_protocol_hash: Any = None
    candidate_roles: _Roles | None = None
    role: _Role | None = None
    peer_role: _Role | None = None


class _Hello(msgspec.Struct, frozen=True, rename="camel"):
    version: str
    type: str
    meta_protocol: _Meta
    message_id: _Id | None = None
    session_id: _Id | None = None
    source_did: str | None = None
    destination_did: str | None = None
    random: _Random | None = None
    # Other profiles put other things here.
    verification_method: Any = None


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """One Hello. `source_did` is its sender's, `destination_did` its receiver's. Each is "" where the sender leaves it out, and
    so are the ids.

    `candidate_roles`: the source's role in the protocols of these URIs.
    `role`, `peer_role`: the destination's role in the agreed protocol, and the source's; "" unless they are said.
    """

    type: HelloType
    message_id: str
    session_id: str
    source_did: str
    destination_did: str
    meta_version: str = META_VERSIONS[-1]
    capabilities: tuple[str, ...] = ()
    random: str | None = None
    key_id: str | None = None
    used_protocol_hash: str | None = None
    candidate_protocols: tuple[str, ...] = ()
    selected_protocol: str | None = None
    selected_protocol_hash: str | None = None
    candidate_roles: Mapping[str, str] = msgspec.field(default_factory=dict)
    role: str = ""
    peer_role: str = ""

    def format(self) -> str:
        """The message's text. Raises `Malformed` or `TooLarge` where `parse` would."""
        meta: dict[str, Any] = {"version": self.meta_version, "supportedCapabilities": list(self.capabilities)}
        if self.used_protocol_hash is not None:
            meta["usedProtocolHash"] = self.used_protocol_hash
        if self.candidate_protocols:
            meta["candidateProtocols"] = list(self.candidate_protocols)
        if self.selected_protocol is not None:
            meta["selectedProtocol"] = self.selected_protocol
        if self.selected_protocol_hash is not None:
            meta["selectedProtocolHash"] = self.selected_protocol_hash
        if self.candidate_roles:
            meta["candidateRoles"] = dict(self.candidate_roles)
        if self.role:
            meta["role"] = self.role
        if self.peer_role:
            meta["peerRole"] = self.peer_role
        value: dict[str, Any] = {
            "version": HELLO_VERSION,
            "type": self.type,
            "messageId": self.message_id or None,
            "sessionId": self.session_id or None,
            "sourceDid": self.source_did,
            "destinationDid": self.destination_did,
            "metaProtocol": meta,
            "random": self.random,
            "verificationMethod": {"id": self.key_id} if self.key_id is not None else None,
        }
        present = {name: item for name, item in value.items() if item is not None}
        encoded = canonical.dumps(present)
        # This side sends nothing that it would refuse itself.
        if len(encoded) > MAX_HELLO:
            raise TooLarge(CanonicalCode.TOO_LARGE, f"This Hello has {len(encoded)} bytes; at most {MAX_HELLO} are read.")
        _read(present, self.type)
        return encoded.decode()


def parse(text: str | bytes, expected: HelloType) -> Hello:
    """Parse a Hello of the `expected` type. Raises `TooLarge`, `Malformed` (`hello.*`, `canonical.*`, `did.*`) or `Refused`
    (`hello.version`)."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return _read(canonical.parse_json(data, limit=MAX_HELLO, name="Hello", floats=True), expected)


def _read(value: object, expected: HelloType) -> Hello:
    try:
        hello = msgspec.convert(value, _Hello)
    except msgspec.ValidationError as error:
        raise Malformed(HelloCode.FORM, f"Not a Hello: {fault_of(error)}.") from error
    if hello.version != HELLO_VERSION:
        raise Refused(HelloCode.VERSION, f"A Hello of version {hello.version[:8]!r}; this agent speaks {HELLO_VERSION}.")
    if hello.type != expected:
        raise Malformed(HelloCode.FORM, f"A {expected} is due here.")
    for did in (hello.source_did, hello.destination_did):
        if did:
            parse_did(did)
    meta = hello.meta_protocol
    is_source = expected == "sourceHello"
    return Hello(
        type=expected,
        message_id=hello.message_id or "",
        session_id=hello.session_id or "",
        source_did=hello.source_did or "",
        destination_did=hello.destination_did or "",
        meta_version=meta.version,
        capabilities=_matching(meta.supported_capabilities, _CAPABILITY),
        random=hello.random,
        key_id=_own_key(hello),
        used_protocol_hash=_usable_hash(meta.used_protocol_hash, meta.protocol_hash),
        candidate_protocols=_matching(meta.candidate_protocols or (), _URI)[:MAX_CANDIDATES] if is_source else (),
        candidate_roles=(is_source and meta.candidate_roles) or {},
        selected_protocol=None if is_source else meta.selected_protocol,
        selected_protocol_hash=None if is_source else _usable_hash(meta.selected_protocol_hash),
        role="" if is_source else meta.role or "",
        peer_role="" if is_source else meta.peer_role or "",
    )


def common_version(theirs: str) -> str:
    """The highest version spoken here that is not above `theirs`, which a peer must then speak too. Raises `Refused`."""
    common = [ours for ours in META_VERSIONS if _order(ours) <= _order(theirs)]
    if not common:
        raise Refused(
            HelloCode.VERSION,
            f"No common version of the meta-protocol: {theirs} there, {', '.join(META_VERSIONS)} here.",
        )
    return common[-1]


class Provided(NamedTuple):
    """A protocol that this side speaks: its hash, and whether that may be confirmed without fetching it again. `UNAVAILABLE`:
    it is provided, and cannot be verified now.

    `role`: this side's role, "" if it is not known yet. `peer_roles`: those that fit it.
    """

    protocol_hash: str
    confirmable: bool
    role: str = ""
    peer_roles: tuple[str, ...] = ()

    def admits(self, role: str) -> bool:
        """Return whether a peer may have this role, "" for one that says none."""
        return not (role and self.role) or role in self.peer_roles


UNAVAILABLE = Provided("", False)


def choose(own: Hello, hello: Hello, provides: Mapping[str, Provided]) -> tuple[Hello, Agreement | None]:
    """The responder's answer to a sourceHello: a hash it can confirm, else the first candidate, in the initiator's order, that it
    provides, else nothing. `own`: its Hello, to be completed.

    Raises `Refused`: `hello.destination`, `hello.version`, and `session.role` if only the initiator's role is in the way. Raises
    `Unavailable` (`session.protocol-unavailable`) if a candidate is provided and none can be verified now.
    """
    if hello.destination_did not in ("", own.source_did):
        raise Refused(
            HelloCode.DESTINATION,
            f"This is {own.source_did}, not {hello.destination_did}.",
            fix="Connect to the address of the agent you mean, or leave the DID out.",
        )
    # A peer of the source gets only the names that it knows.
    unread = [] if CALL_CONTEXT in hello.capabilities else [CALL_CONTEXT, GREASE_PREFIX]
    unread += [] if PROTOCOL_PUBLISHED in hello.capabilities else [PROTOCOL_PUBLISHED]
    answer = structs.replace(
        own,
        capabilities=tuple(name for name in own.capabilities if not name.startswith(tuple(unread))),
        session_id=hello.session_id or own.session_id,
        destination_did=hello.source_did,
        meta_version=common_version(hello.meta_version),
    )
    offered, roles = hello.used_protocol_hash, hello.candidate_roles
    # Only if it was verified recently: else the peer would speak before this side knows of a revocation.
    remembered = [uri for uri, provided in provides.items() if provided.confirmable and provided.protocol_hash == offered]
    # The source's order decides: it named its candidates best first.
    common = [*remembered, *(uri for uri in hello.candidate_protocols if uri in provides)]
    ready = [uri for uri in common if provides[uri] != UNAVAILABLE]
    fitting = [uri for uri in ready if provides[uri].admits(roles.get(uri, ""))]
    if common and not ready:
        raise Unavailable(
            SessionCode.PROTOCOL_UNAVAILABLE,
            f"{common[0]} cannot be verified at the moment.",
            fix="Try again later: the registry of this protocol may be back soon.",
        )
    if not common:
        return answer, None
    if not fitting:
        raise _misfit(ready[0], provides[ready[0]], roles[ready[0]])
    uri = fitting[0]
    provided, role = provides[uri], roles.get(uri, "")
    answer = structs.replace(answer, role=provided.role, peer_role=role)
    if uri in remembered:
        return structs.replace(answer, used_protocol_hash=offered), Agreement(uri, offered, True, peer_role=role)
    # Never as `usedProtocolHash`: by the source that confirms an offered hash, and the peer would speak at once.
    agreed = Agreement(uri, provided.protocol_hash, False, peer_role=role)
    return structs.replace(answer, selected_protocol=uri, selected_protocol_hash=provided.protocol_hash), agreed


def validate_answer(own: Hello, hello: Hello, known_uri: str) -> Agreement | None:
    """The agreement that a destinationHello makes of the offers in `own`; None where nothing is in common. `known_uri`: the
    protocol of the offered hash. Raises `Refused` (`hello.*`, `session.role`)."""
    if hello.session_id not in ("", own.session_id) or hello.destination_did not in ("", own.source_did):
        raise Refused(HelloCode.FORM, "This destinationHello answers another sourceHello.")
    if own.destination_did not in ("", hello.source_did):
        who = hello.source_did or "An agent that does not name itself"
        raise Refused(HelloCode.DESTINATION, f"{who} answered, not {own.destination_did}.")
    if hello.meta_version not in META_VERSIONS:
        raise Refused(HelloCode.VERSION, f"The other side chose version {hello.meta_version}, which was not offered.")
    offered, selected, used_hash = own.used_protocol_hash, hello.selected_protocol, hello.used_protocol_hash
    # Otherwise a peer could choose which protocol this side fetches and runs.
    if selected is not None and selected not in own.candidate_protocols:
        raise Refused(HelloCode.FORM, "The other side selected a protocol that was not among the candidates.")
    if used_hash is not None and used_hash == offered:
        return _with_roles(own, hello, Agreement(known_uri, offered, True))
    if selected is not None:
        # A hash that was not offered confirms nothing; here it is passed over, as the selection says enough.
        return _with_roles(own, hello, Agreement(selected, hello.selected_protocol_hash, False))
    if used_hash is not None:
        raise Refused(HelloCode.FORM, "The other side confirmed a protocol hash that was not offered.")
    return None


def _with_roles(own: Hello, hello: Hello, agreement: Agreement) -> Agreement:
    """Return the agreement with the destination's role. Raises `Refused` (`session.role`) if it takes this side for another role.
    Whether the two roles fit is for the manifest to say."""
    role = own.candidate_roles.get(agreement.uri, "")
    if role and hello.peer_role not in ("", role):
        raise Refused(
            SessionCode.ROLE, f"In {agreement.uri} this side is {role}, and the other side takes it for {hello.peer_role}."
        )
    return structs.replace(agreement, peer_role=hello.role)


def _misfit(uri: str, provided: Provided, role: str) -> Refused:
    return Refused(
        SessionCode.ROLE,
        f"In {uri} the agent that answers is {provided.role}, which speaks with {' or '.join(provided.peer_roles) or 'no role'}. "
        f"The agent that connects is {role}.",
        fix=ROLE_FIX,
    )


def _order(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return canonical.parse_decimal(major, limit=9999), canonical.parse_decimal(minor, limit=9999)


def _matching(values: Iterable[object], form: re.Pattern[str]) -> tuple[str, ...]:
    """Return the texts of a form. Others are passed over: a peer may offer more than this side can read."""
    matches = []
    for value in values:
        if isinstance(value, str) and form.fullmatch(value):
            matches.append(value)
    return tuple(matches)


def _usable_hash(*values: object) -> str | None:
    """Return the SHA-256 among the values; None without one, or if two differ. Never raises: without a hash the two sides
    negotiate."""
    # Upper case is left out, too: the peer may compare our lower-case answer by its bytes, and would not see the confirmation.
    hashes = set[str]()
    for value in values:
        if isinstance(value, str) and (match := _HASH.fullmatch(value)):
            hashes.add(match[1])
    return hashes.pop() if len(hashes) == 1 else None


def _own_key(hello: _Hello) -> str | None:
    """The key named by verificationMethod, if it is one of the sender's; other profiles put other things there."""
    method = hello.verification_method
    key_id = method.get("id") if isinstance(method, dict) else None
    if not isinstance(key_id, str):
        return None
    try:
        did, _ = parse_key_id(key_id)
    except Malformed:
        return None
    return key_id if did.text == hello.source_did else None


def told_by(reason: str) -> HelloCode | SessionCode | None:
    """Return the code at the beginning of a peer's text, if refusals of a Hello keep it as their own."""
    peer_codes = (HelloCode.DESTINATION, SessionCode.ROLE, SessionCode.PROTOCOL_UNAVAILABLE)
    peer_code = code_in(reason)
    return next((code for code in peer_codes if code == peer_code), None)


def refused_hello(reason: str) -> TreatyError:
    """Return the error for a Hello that the peer refused. `reason`: its text, which begins with a code."""
    # Callers tell another agent at the address, and a role or a time that does not fit, from all other refusals.
    code = told_by(reason) or HelloCode.REFUSED
    if code is SessionCode.ROLE:
        return Refused(code, f"The other side refused this side's Hello: {reason}", fix=ROLE_FIX)
    return refused_by_peer(code, f"The other side refused this side's Hello: {reason}", reason)
