"""The bodies of statements: one struct per type, in the order in which a log meets them.

`KINDS` maps a statement's `type` to its struct. Unknown fields are refused; an optional field that is absent is left out, never
null. Leaves hold identifiers, digests, keys, enumerations and numbers; free text and bytes are blobs, named by digest and size.
What a field must satisfy beyond its type is checked by `check`, what must be true of the log by `admit`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from . import canonical
from .did import decode_multikey, is_host, parse_did, parse_key_id
from .errors import Malformed
from .log.witness import MAX_COSIGNERS, Quorum
from .protocol import MAX_CARD, MAX_DOCUMENT, is_origin, is_topic, parse_namespace, parse_protocol_uri

MAX_BUNDLE = 64 * 1024
MAX_WHEEL = 2 * 1024 * 1024
MAX_DID_DOCUMENT = 64 * 1024
MAX_TRANSCRIPT = 4 * 1024 * 1024
MAX_ROLL = 128 * 1024 * 1024
MAX_SUFFIX_LIST = 1024 * 1024
MIN_ANCHORS = 16
MAX_ANCHORS = 512
MAX_ALIASES = 8
MAX_CANDIDATES = 32
NONE = "none"
"""In a ballot: the choice that no candidate becomes the consensus."""
RULE: Final = "schulze-margins-v1"
"""The election rule of `election.rule`; a decision made by another one cannot be recomputed here."""

Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Note: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=canonical.MAX_INTEGER)]
Factor: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
Electorate: TypeAlias = Literal["development", "open"]
State: TypeAlias = Literal["published", "candidate", "provisional", "consensus", "dormant", "superseded", "repealed"]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A statement's body. `check()` raises `Malformed` when a field is not in its one spelling."""

    def check(self) -> None:
        """Fields whose types say everything need no more."""


class Blob(Body, frozen=True):
    """Bytes outside the log: their SHA-256 and their number."""

    sha256: Digest
    size: Count

    def at_most(self, limit: int, what: str) -> None:
        """Raises `Malformed` when the blob is larger than its kind allows."""
        if self.size > limit:
            raise Malformed("statement.blob-size", f"A {what} has at most {limit} bytes, not {self.size}.")


class Genesis(Body, frozen=True):
    """Leaf 0: what this log is. `log_key`, `clock_key`: verifier keys (C2SP signed-note); `operator`: a did:key, so that an
    auditor needs nothing but the log; `trusted_root`: SHA-256 of the Sigstore trusted root of the registry's own authority."""

    origin: Text
    log_key: Text
    clock_key: Text
    operator: Text
    trusted_root: Digest

    def check(self) -> None:
        if not is_origin(self.origin):
            raise Malformed("genesis.origin", "A log's origin is a host, with a port where it is not the default.")
        if parse_did(self.operator).method != "key":
            raise Malformed("genesis.operator", "The operator of a log is a did:key.")


class Key(Body, frozen=True):
    """A key of a DID document: its DID URL and its Ed25519 Multikey."""

    id: Text
    multikey: Text


class Identity(Body, frozen=True):
    """The operator's testimony of a DID document it fetched. `previous`: the DID's newest identity statement before this one."""

    did: Text
    document: Blob
    keys: Annotated[tuple[Key, ...], msgspec.Meta(min_length=1, max_length=32)]
    tenure: Annotated[int, msgspec.Meta(ge=1, le=canonical.MAX_INTEGER)]
    previous: Digest | None = None

    def check(self) -> None:
        did = parse_did(self.did)
        self.document.at_most(MAX_DID_DOCUMENT, "DID document")
        for key in self.keys:
            if parse_key_id(key.id)[0] != did:
                raise Malformed("identity.keys", "Every key of an identity is named by the DID it belongs to.")
            decode_multikey(key.multikey)
        if did.method == "key" or len({key.id for key in self.keys}) != len(self.keys):
            raise Malformed("identity.keys", "An identity lists distinct keys of a DID that has a document.")


class Grant(Body, frozen=True):
    """The owner of a namespace lets another DID publish in it and vote for it."""

    namespace: Text
    to: Text

    def check(self) -> None:
        parse_namespace(self.namespace)
        parse_did(self.to)


class Base(Body, frozen=True):
    """The protocol that a document changes: its URI and its hash."""

    uri: Text
    document: Digest


class Publish(Body, frozen=True):
    """A protocol's one version: its URI, topic, document, card. `aliases`: foreign canonical URIs that its publisher claims."""

    uri: Text
    topic: Text
    document: Blob
    card: Blob
    origin: Literal["negotiated", "standard"]
    aliases: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ALIASES)] = ()
    base: Base | None = None

    def check(self) -> None:
        parse_protocol_uri(self.uri)
        _check_topic(self.topic)
        self.document.at_most(MAX_DOCUMENT, "protocol document")
        self.card.at_most(MAX_CARD, "card")
        if len(set(self.aliases)) != len(self.aliases) or not all(map(_is_printable, self.aliases)):
            raise Malformed("publish.aliases", "Aliases are distinct URIs without spaces.")


class Handler(Body, frozen=True):
    """A handler package for a protocol: the wheel, its entry point, and the Sigstore bundle that attests it."""

    uri: Text
    document: Digest
    filename: Text
    wheel: Blob
    entry_point: Text
    bundle: Blob

    def check(self) -> None:
        parse_protocol_uri(self.uri)
        self.wheel.at_most(MAX_WHEEL, "handler wheel")
        self.bundle.at_most(MAX_BUNDLE, "Sigstore bundle")


class Status(Body, frozen=True):
    """What its publisher says of a protocol (`wheel` absent) or of one handler wheel. The newest one holds."""

    uri: Text
    state: Literal["active", "deprecated", "yanked", "revoked"]
    wheel: Digest | None = None
    successor: Text | None = None

    def check(self) -> None:
        parse_protocol_uri(self.uri)
        if self.successor is not None:
            parse_protocol_uri(self.successor)


class Report(Body, frozen=True):
    """Two agents say, in one statement with two signatures, that they negotiated. `nid`: SHA-256(JCS[both DIDs, both Hello
    randoms]).
    `seen_checkpoint`: a signed checkpoint of this log, so that every report is gossip about it."""

    topic: Text
    nid: Digest
    document: Digest
    outcome: Literal["agreed", "failed"]
    epoch: Count
    seen_checkpoint: Note

    def check(self) -> None:
        _check_topic(self.topic)


class Ballot(Body, frozen=True):
    """A weak order over document hashes and `NONE`: tiers, best first. Unranked ones are tied last; no tiers withdraw the
    ballot."""

    topic: Text
    seq: Count
    tiers: Annotated[tuple[tuple[str, ...], ...], msgspec.Meta(max_length=MAX_CANDIDATES + 1)]
    seen_checkpoint: Note

    def check(self) -> None:
        _check_topic(self.topic)
        choices = [choice for tier in self.tiers for choice in tier]
        if len(set(choices)) != len(choices) or len(choices) > MAX_CANDIDATES + 1 or not all(self.tiers):
            raise Malformed(
                "ballot.tiers",
                f"A ballot ranks each of at most {MAX_CANDIDATES} hashes once, in tiers that are not empty.",
            )
        for choice in choices:
            if choice != NONE:
                canonical.parse_digest(choice)


class Vouch(Body, frozen=True):
    """The principal of the author stands for the one that `to` speaks for, or, `withdrawn`, no longer does. A newer vouch of the
    same pair replaces the one before. `seq`: 0, then one more than in the author's last vouch for anybody."""

    to: Text
    seq: Count
    withdrawn: bool = False

    def check(self) -> None:
        parse_did(self.to)


class Reputation(Body, frozen=True):
    """The constants of an open electorate; `election.trust` and `election.reputation` have the formulas.

    `anchors`: the principals that trust starts from, sorted. `suffix_list`: the Public Suffix List, of which the ICANN section
    counts. Trust flows for `rounds` rounds along vouches: at most the `max_vouches` newest of a principal, each once the two
    were counterparties in `acquainted_epochs` epochs; whoever vouches for fewer than `least_vouches` leaves the rest unspent. The
    cap on what a principal's trust counts for leaves all of it over `cap_share`; what others lent it is lent on up to the cap
    over `loan_share`. A principal is mature after `mature_epochs`; in a topic it weighs its whole once it has `counterparties`
    counterparties, each of them with trust of the cap over `counterparty_share`."""

    anchors: Annotated[tuple[Text, ...], msgspec.Meta(min_length=MIN_ANCHORS, max_length=MAX_ANCHORS)]
    suffix_list: Blob
    rounds: Annotated[int, msgspec.Meta(ge=1, le=64)]
    max_vouches: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    least_vouches: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    cap_share: Annotated[int, msgspec.Meta(ge=2, le=1024)]
    loan_share: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    acquainted_epochs: Factor
    mature_epochs: Factor
    counterparties: Factor
    counterparty_share: Factor

    def check(self) -> None:
        self.suffix_list.at_most(MAX_SUFFIX_LIST, "Public Suffix List")
        if list(self.anchors) != sorted(set(self.anchors)) or not all("." in host and is_host(host) for host in self.anchors):
            raise Malformed("parameters.anchors", "Anchors are distinct registrable domains, in order.")


class Witnesses(Body, frozen=True):
    """Whose cosignatures (C2SP tlog-cosignature) a decision's input needs: `quorum` of `keys`, which are verifier keys."""

    keys: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=MAX_COSIGNERS)]
    quorum: Annotated[int, msgspec.Meta(ge=1, le=MAX_COSIGNERS)]

    def check(self) -> None:
        _ = self.parsed

    @property
    def parsed(self) -> Quorum:
        """The keys as keys. Raises `Malformed` (`witness.keys`, `note.key`)."""
        return Quorum.parse(self.keys, self.quorum)


class Credit(Body, frozen=True):
    """The constants of standing; `election.credit` has the formulas. A report earns 1 / `report_share` of a full credit when it
    is corroborated within `epochs` epochs; credit shared with one corroborator again and again shrinks as `pairs` over
    `pairs` + what they share already."""

    report_share: Factor
    epochs: Factor
    pairs: Factor


class Parameters(Body, frozen=True):
    """The constants of the election. The first ones hold at once, later ones from the epoch that opens next.

    W is the weight of all live ballots in a topic, q the quorum, Q what a candidate has of it; `election.rule` has the formulas.
    `horizon_epochs`: how long a report counts, and how long an equivocator does not. Candidates need `candidate_pairs` pairs of
    principals in `candidate_clusters` clusters with W / `candidate_share` of weight; `max_candidates` of them are kept.
    `quorum_share`: q is W over it. `cluster_share`: no cluster counts for more than q over it. `provisional_share`: what is
    provisional or kept needs q over it. `over_none`, `over_incumbent`: [x, y], the ratio x : y by which a consensus is preferred.
    `sustain_epochs`: how long conditions hold before a consensus is made or repealed, `dormant_epochs`: before it sleeps.
    `suspect_epochs`: how long a warning stands.

    An *open* electorate has `reputation`, and `epoch_seconds`: its epochs close by the log's clock. In a *development* electorate
    every DID with a domain weighs the same, and epochs are closed by hand. `witnesses`: who must have seen what is decided."""

    rule: Literal["schulze-margins-v1"]
    electorate: Electorate
    horizon_epochs: Factor
    candidate_pairs: Factor
    candidate_clusters: Factor
    candidate_share: Factor
    max_candidates: Annotated[int, msgspec.Meta(ge=1, le=MAX_CANDIDATES)]
    quorum_share: Factor
    cluster_share: Factor
    provisional_share: Factor
    over_none: tuple[Factor, Factor]
    over_incumbent: tuple[Factor, Factor]
    sustain_epochs: Factor
    dormant_epochs: Factor
    suspect_epochs: Factor
    credit: Credit
    epoch_seconds: Annotated[int, msgspec.Meta(ge=1, le=366 * 24 * 3600)] | None = None
    reputation: Reputation | None = None
    witnesses: Witnesses | None = None

    def check(self) -> None:
        is_open = self.electorate == "open"
        if (self.reputation is not None) != is_open or (self.epoch_seconds is not None) != is_open:
            raise Malformed(
                "parameters.electorate", "An open electorate has `reputation` and `epoch_seconds`, a development one neither."
            )
        if self.reputation:
            self.reputation.check()
        if self.witnesses:
            self.witnesses.check()


class Input(Body, frozen=True):
    """The log up to which a decision counts: size and root (hexadecimal); `witnessed`: its checkpoint with the cosignatures that
    the parameters ask for."""

    size: Count
    root: Digest
    witnessed: Note | None = None


class Decision(Body, frozen=True):
    """An epoch's outcome in a topic. Everything it rests on is in the transcript blob; replaying the log gives its identical
    bytes.

    `roll`: who counts in the epoch, and for how much; the same for all its decisions.
    `parameters`, `previous`: ids of the parameters in force and of the topic's decision before. `states`: each candidate in the
    order of its publication, then what left the field in this epoch. `remaining`: how many decisions of this epoch still follow;
    until they are there the log takes nothing else."""

    topic: Text
    epoch: Count
    rule: Literal["schulze-margins-v1"]
    electorate: Electorate
    parameters: Digest
    input: Input
    remaining: Count
    transcript: Blob
    roll: Blob
    states: Annotated[tuple[tuple[Digest, State], ...], msgspec.Meta(max_length=4 * MAX_CANDIDATES)]
    consensus: Digest | None = None
    previous: Digest | None = None

    def check(self) -> None:
        _check_topic(self.topic)
        self.transcript.at_most(MAX_TRANSCRIPT, "decision transcript")
        self.roll.at_most(MAX_ROLL, "electoral roll")


class Withdrawal(Body, frozen=True):
    """The operator no longer serves a blob's bytes. The leaf that named it remains."""

    sha256: Digest
    reason: Literal["illegal", "personal", "malicious"]


KINDS: dict[str, type[Body]] = {
    "genesis": Genesis,
    "identity": Identity,
    "grant": Grant,
    "publish": Publish,
    "handler": Handler,
    "status": Status,
    "report": Report,
    "ballot": Ballot,
    "vouch": Vouch,
    "parameters": Parameters,
    "decision": Decision,
    "withdrawal": Withdrawal,
}
TYPE_OF: dict[type[Body], str] = {kind: name for name, kind in KINDS.items()}


def blobs_of(body: Body) -> tuple[Blob, ...]:
    """The blobs that a statement names, each of which its sender uploads beforehand."""
    match body:
        case Publish():
            return body.document, body.card
        case Handler():
            return body.wheel, body.bundle
        case Identity():
            return (body.document,)
        case Parameters(reputation=Reputation() as reputation):
            return (reputation.suffix_list,)
        case Decision():
            return body.transcript, body.roll
    return ()


def _check_topic(topic: str) -> None:
    if not is_topic(topic):
        raise Malformed(
            "statement.topic",
            "A topic is one to four lower-case names joined by '/', such as commerce/product-info.",
        )


def _is_printable(uri: str) -> bool:
    return re.fullmatch(r"[!-~]+", uri) is not None
