"""Make, parse and answer Hellos, the first message of each side: JSON in a text message of at most 32 KiB.

    {"version": "1.0",
     "type": "sourceHello",                      or "destinationHello"
     "messageId": "…",                           16 to 64 characters of A-Z a-z 0-9 _ -
     "sessionId": "…",                           the source's choice; the destination repeats it
     "sourceDid": "did:wba:buyer.example",       who sends this Hello
     "destinationDid": "did:wba:shop.example",   its receiver; "" in a sourceHello if only an address is known
     "random": "…",                              16 to 128 characters, fresh; without it there is no co-signed report
     "verificationMethod": {"id": "did:…#key-1"},     the key that would co-sign a report
     "metaProtocol": {
       "version": "1.0",
       "supportedCapabilities": ["reportCosignature"],
       "usedProtocolHash": "…64 hex digits",     source: the remembered agreement; destination: confirms it, or see below
       "candidateProtocols": ["https://…"],      source only: URIs, best first, at most 16
       "selectedProtocol": "https://…"}}         destination only: one of the candidates

`random` and `verificationMethod` may be absent, and so may the last three; null means absent. All other members belong to other
profiles and are ignored. `protocolHash` is read as `usedProtocolHash`, and a digest may begin with `sha256:`; two different
values are an error. The plain profile proves neither DID: nothing here is signed.

The meaning of a destinationHello to an initiator that offered the hash H (or none):

    usedProtocolHash  selectedProtocol   meaning
    H                 any candidate      H is confirmed: both may speak at once
    absent, or X≠H    a candidate        that protocol is selected, and X is its hash
    absent            absent             nothing in common
    any other combination is an error
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

from treaty_consensus import canonical
from treaty_consensus.did import parse_did, parse_key_id
from treaty_consensus.errors import Malformed, Refused

from ...codes import HelloCode
from .actions import Agreement

MAX_HELLO = 32 * 1024
MAX_CANDIDATES = 16
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
FLOW_PROFILE = "flowProfile"
"""The capability of going on by the flow profile where nothing else is in common."""

HelloType: TypeAlias = Literal["sourceHello", "destinationHello"]

_Id: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{16,64}\Z")]
_Random: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{16,128}\Z")]
_Uri: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,512}\Z")]
_Capability: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
_Version: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})\Z")]


class _Method(msgspec.Struct, frozen=True):
    id: str


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    version: _Version
    supported_capabilities: Annotated[tuple[_Capability, ...], msgspec.Meta(max_length=32)]
    used_protocol_hash: str | None = None
    protocol_hash: str | None = None
    candidate_protocols: Annotated[tuple[_Uri, ...], msgspec.Meta(max_length=MAX_CANDIDATES)] | None = None
    selected_protocol: _Uri | None = None


class _Hello(msgspec.Struct, frozen=True, rename="camel"):
    version: str
    type: str
    message_id: _Id
    session_id: _Id
    source_did: str
    destination_did: str
    meta_protocol: _Meta
    random: _Random | None = None
    verification_method: _Method | None = None


@dataclass(frozen=True, kw_only=True)
class Hello:
    """One Hello. `source_did` is its sender's, `destination_did` its receiver's ("" when a source does not know it)."""

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

    def format(self) -> str:
        """The message's text. Raises `Malformed` or `TooLarge` where `parse` would."""
        meta: dict[str, Any] = {"version": self.meta_version, "supportedCapabilities": list(self.capabilities)}
        if self.used_protocol_hash is not None:
            meta["usedProtocolHash"] = self.used_protocol_hash
        if self.candidate_protocols:
            meta["candidateProtocols"] = list(self.candidate_protocols)
        if self.selected_protocol is not None:
            meta["selectedProtocol"] = self.selected_protocol
        value: dict[str, Any] = {
            "version": HELLO_VERSION,
            "type": self.type,
            "messageId": self.message_id,
            "sessionId": self.session_id,
            "sourceDid": self.source_did,
            "destinationDid": self.destination_did,
            "metaProtocol": meta,
        }
        if self.random is not None:
            value["random"] = self.random
        if self.key_id is not None:
            value["verificationMethod"] = {"id": self.key_id}
        text = canonical.dumps(value).decode()
        parse(text, self.type)
        return text


def parse(text: str, expected: HelloType) -> Hello:
    """Parse a Hello of the `expected` type. Raises `TooLarge`, `Malformed` (`hello.*`, `canonical.*`, `did.*`) or `Refused`
    (`hello.version`)."""
    value = canonical.parse_json(text.encode("utf-8", "surrogatepass"), limit=MAX_HELLO, name="Hello")
    try:
        hello = msgspec.convert(value, _Hello)
    except msgspec.ValidationError as error:
        raise Malformed(HelloCode.FIELD, f"Not a Hello: {error}.") from error
    if hello.version != HELLO_VERSION:
        raise Refused(HelloCode.VERSION, f"A Hello of version {hello.version[:8]!r}; this agent speaks {HELLO_VERSION}.")
    if hello.type != expected:
        raise Malformed(HelloCode.TYPE, f"A {expected} is due here.")
    parse_did(hello.source_did)
    if hello.destination_did or expected == "destinationHello":
        parse_did(hello.destination_did)
    meta = hello.meta_protocol
    parsed = Hello(
        type=expected,
        message_id=hello.message_id,
        session_id=hello.session_id,
        source_did=hello.source_did,
        destination_did=hello.destination_did,
        meta_version=meta.version,
        capabilities=meta.supported_capabilities,
        random=hello.random,
        key_id=_own_key(hello),
        used_protocol_hash=_protocol_hash(meta),
    )
    if expected == "sourceHello":
        return replace(parsed, candidate_protocols=meta.candidate_protocols or ())
    return replace(parsed, selected_protocol=meta.selected_protocol)


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
    """A protocol that this side speaks: its hash, and whether that may be confirmed without fetching it again."""

    protocol_hash: str
    confirmable: bool


def choose(own: Hello, hello: Hello, provides: Mapping[str, Provided]) -> tuple[Hello, Agreement | None]:
    """The responder's answer to a sourceHello: a hash it can confirm, else the first candidate, in the initiator's order, that it
    provides, else nothing. `own`: its Hello, to be completed. Raises `Refused` (`hello.destination`, `hello.version`)."""
    if hello.destination_did not in ("", own.source_did):
        raise Refused(
            HelloCode.DESTINATION,
            f"This is {own.source_did}, not {hello.destination_did}.",
            fix="Connect to the address of the agent you mean, or leave the DID out.",
        )
    answer = replace(
        own,
        session_id=hello.session_id,
        destination_did=hello.source_did,
        meta_version=common_version(hello.meta_version),
    )
    offered = hello.used_protocol_hash
    confirmed = next((uri for uri, known in provides.items() if known.confirmable and known.protocol_hash == offered), None)
    if confirmed is not None:
        return replace(answer, used_protocol_hash=offered), Agreement(confirmed, offered, True)
    selected = next((uri for uri in hello.candidate_protocols if uri in provides), None)
    if selected is None:
        return answer, None
    chosen = provides[selected].protocol_hash
    # Repeating the offered hash would confirm it; left out, it says that this session takes the long way.
    shown = None if chosen == offered else chosen
    return replace(answer, selected_protocol=selected, used_protocol_hash=shown), Agreement(selected, chosen, False)


def validate_answer(own: Hello, hello: Hello, known_uri: str) -> Agreement | None:
    """The agreement that a destinationHello makes of the offers in `own`; None where nothing is in common. `known_uri`: the
    protocol of the offered hash. Raises `Refused` (`hello.*`)."""
    if (hello.session_id, hello.destination_did) != (own.session_id, own.source_did):
        raise Refused(HelloCode.SESSION, "This destinationHello answers another sourceHello.")
    if own.destination_did not in ("", hello.source_did):
        raise Refused(HelloCode.DESTINATION, f"{hello.source_did} answered, not {own.destination_did}.")
    if hello.meta_version not in META_VERSIONS:
        raise Refused(HelloCode.VERSION, f"The other side chose version {hello.meta_version}, which was not offered.")
    offered, selected, shown = own.used_protocol_hash, hello.selected_protocol, hello.used_protocol_hash
    if selected is not None and selected not in own.candidate_protocols:
        raise Refused(HelloCode.SELECTED, "The other side selected a protocol that was not among the candidates.")
    if shown is not None and shown == offered:
        return Agreement(known_uri, offered, True)
    if selected is not None:
        return Agreement(selected, shown, False)
    if shown is not None:
        raise Refused(HelloCode.HASH, "The other side confirmed a protocol hash that was not offered.")
    return None


def _order(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return canonical.parse_decimal(major, limit=9999), canonical.parse_decimal(minor, limit=9999)


def _protocol_hash(meta: _Meta) -> str | None:
    offered = {text.removeprefix("sha256:") for text in (meta.used_protocol_hash, meta.protocol_hash) if text is not None}
    if len(offered) > 1:
        raise Malformed(HelloCode.HASH, "usedProtocolHash and protocolHash say different things.")
    return canonical.parse_digest(offered.pop()) if offered else None


def _own_key(hello: _Hello) -> str | None:
    """The key named by verificationMethod, if it is one of the sender's; other profiles put other things there."""
    if hello.verification_method is None:
        return None
    try:
        did, _ = parse_key_id(hello.verification_method.id)
    except Malformed:
        return None
    return hello.verification_method.id if did.text == hello.source_did else None
