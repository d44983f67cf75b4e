"""The JSON of the catalogue: one struct per resource of the HTTP API.

Digests and statement ids are 64 hexadecimal digits, `index` is a leaf's. A field that may be missing is null;
`successor` alone is left out, as in the statement it comes from.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from treaty_consensus.kinds import Electorate

Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Index: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
ProtocolState: TypeAlias = Literal["active", "deprecated", "yanked", "revoked"]


class Election(msgspec.Struct, frozen=True):
    """What the newest decision of a topic says of a document: its state, the epoch that was closed, the decision's id."""

    state: str
    epoch: int
    decision: Digest


class Summary(msgspec.Struct, frozen=True):
    """A protocol's one version, as lists show it. `status` is its publisher's word, `election` the network's."""

    uri: str
    topic: str
    title: str
    summary: str
    tags: list[str]
    hash: Digest
    publisher: str
    status: ProtocolState
    election: str | None


class Page(msgspec.Struct, frozen=True):
    """A page of search results; `next` is the cursor of the page after it."""

    protocols: list[Summary]
    next: str | None


class Versions(msgspec.Struct, frozen=True):
    """All versions of a protocol, newest first by PEP 440."""

    namespace: str
    name: str
    versions: list[Summary]


class CardView(msgspec.Struct, frozen=True):
    """A protocol's card; empty once its bytes were withdrawn."""

    title: str
    summary: str
    tags: list[str]
    licence: str


class HandlerView(msgspec.Struct, frozen=True):
    """An attached handler: by whom, and the blobs it is made of."""

    by: str
    filename: str
    wheel: Digest
    size: int
    entry_point: str
    bundle: Digest
    statement: Digest
    index: Index
    status: ProtocolState


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A protocol's one version. `handlers`: the publisher's own, newest first, then those of others, oldest first; at most 64."""

    uri: str
    namespace: str
    name: str
    version: str
    topic: str
    origin: Literal["negotiated", "standard"]
    hash: Digest
    size: int
    publisher: str
    statement: Digest
    index: Index
    card: CardView
    aliases: list[str]
    status: ProtocolState
    handlers: list[HandlerView]
    election: Election | None
    successor: str | None = None


class HashMatches(msgspec.Struct, frozen=True):
    """The protocols whose document has this SHA-256."""

    hash: Digest
    protocols: list[Summary]


class Match(msgspec.Struct, frozen=True):
    """A protocol that a name may mean. `verified`: false for what is merely claimed, and for every SHA-1."""

    uri: str
    hash: Digest
    by: Literal["uri", "hash", "agora", "alias"]
    verified: bool
    publisher: str


class Resolution(msgspec.Struct, frozen=True):
    """Everything a name may mean, in the order of publication; the registry never picks."""

    uri: str
    matches: list[Match]


class TopicSummary(msgspec.Struct, frozen=True):
    """A topic: how many protocols it has, the hash of its consensus, the epoch of its newest decision."""

    topic: str
    protocols: int
    consensus: Digest | None
    epoch: int | None


class Topics(msgspec.Struct, frozen=True):
    """All topics that have a protocol, by name; `next` is where the next page starts."""

    topics: list[TopicSummary]
    next: str | None


class Candidate(msgspec.Struct, frozen=True):
    """A document of a topic: where it is published, how many reports agreed on it, and what the newest decision says: its
    state, and the weight for and against it (decimal, in units of 2^-32)."""

    hash: Digest
    uris: list[str]
    title: str
    state: str | None
    reports: int
    support: str | None
    opposition: str | None


class DecisionView(msgspec.Struct, frozen=True):
    """The newest decision: the statement, and the transcript it rests on (null when its bytes are not held)."""

    statement: Digest
    index: Index
    epoch: int
    leaf: str
    transcript: msgspec.Raw | None


class Topic(msgspec.Struct, frozen=True):
    """A topic's election. `epoch`: the open one. `matrix`: the decision's pairwise
    weights, rows and columns in the order of its transcript's candidates, then NONE. `proof`: the decision's receipt."""

    topic: str
    electorate: Electorate | None
    epoch: int
    candidates: list[Candidate]
    matrix: list[list[str]] | None
    decision: DecisionView | None
    proof: str | None


class IdentityView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest identity of a DID. `keys`: DID URL → Multikey. A did:key is its own proof, and has neither statement nor
    index."""

    did: str
    tenure: int
    keys: dict[str, str]
    statement: Digest | None = None
    index: Index | None = None


class TestimonyView(msgspec.Struct, frozen=True):
    """A statement's payload (base64) with the first of its two signatures: `sig` (base64) by `keyid`, the operator's key."""

    payload: str
    keyid: str
    sig: str


class VoterPosition(msgspec.Struct, frozen=True):
    """What a voter signs next in a topic: `seq`, and the open `epoch`."""

    seq: int
    epoch: int


class VouchView(msgspec.Struct, frozen=True):
    """A vouch: for whom, the open epoch when it was logged, and the statement."""

    to: str
    epoch: int
    statement: Digest
    index: Index


class Vouches(msgspec.Struct, frozen=True):
    """What a DID signs next when it vouches: `seq`, in the open `epoch`; and the vouches it stands by, newest first."""

    seq: int
    epoch: int
    vouches: list[VouchView]


class Speaker(msgspec.Struct, frozen=True):
    """A DID that said, together with those it spoke it with, that it agreed on a document in a topic: in how many reports, the
    newest of them at leaf `index` in `epoch`. `principal`: whom it speaks for in the newest roll; `standing`: decimal, in units
    of 2^-32 of a full credit."""

    did: str
    topic: str
    hash: Digest
    principal: str | None
    standing: str
    reports: int
    epoch: int
    index: Index


class Speakers(msgspec.Struct, frozen=True):
    """A page of speakers, those of more standing first, then whose report is newer. Co-signed reports, which both sides opted
    into: who is not here may well speak it."""

    speakers: list[Speaker]
    next: str | None


class CreditView(msgspec.Struct, frozen=True, rename={"corroborator": "with"}):
    """A credit: earned at the end of `epoch` for the report at leaf `index`, which `with` corroborated. `amount`: `whole`,
    diminished for the `shared` credits before; `decay`: what is left of each full credit of its age; `now`: what this one still
    counts for. All decimal, in units of 2^-32. `earlier`: how many clusters had reported the document. `why`: a sentence."""

    epoch: int
    reason: Literal["reported", "elected"]
    topic: str
    hash: Digest
    index: Index
    corroborator: str
    whole: str
    shared: int
    earlier: int
    amount: str
    decay: str
    now: str
    why: str


class StandingView(msgspec.Struct, frozen=True):
    """The standing of the principal that a DID speaks for, at the end of `epoch`, as its roll says (a blob's digest), and the
    credits that it is the sum of, newest first. 0 while the principal weighs nothing."""

    did: str
    principal: str | None
    epoch: int | None
    roll: Digest | None
    standing: str
    credits: list[CreditView]
    next: str | None


class LogView(msgspec.Struct, frozen=True):
    """The log's name, keys and size. `key`, `clock_key`: C2SP verifier keys. `parameters`: the statement in force, `announced`:
    the one that holds from the next epoch on. `opened`: when the open epoch did, Unix seconds; `closes`: when it is due to
    close, or null where epochs are closed by hand."""

    origin: str
    key: str
    clock_key: str
    operator: str
    electorate: Electorate | None
    parameters: Digest | None
    announced: Digest | None
    epoch: int
    opened: int
    closes: int | None
    size: int


class Signature(msgspec.Struct, frozen=True):
    """A DSSE signature: whose key, and 64 bytes of base64."""

    keyid: str
    sig: str


class Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """A statement as it was signed: a DSSE envelope. See `treaty_consensus.statement`."""

    payload: str
    payload_type: str
    signatures: list[Signature]


class BundleLeaf(msgspec.Struct, frozen=True):
    """A leaf and its inclusion proof at the bundle's checkpoint, base64."""

    index: Index
    leaf: str
    proof: list[str]


class Bundle(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that proves a protocol (`uri`) or a topic's candidates (`topic`), in one piece. See `bundles`."""

    checkpoint: str
    leaves: list[BundleLeaf]
    blobs: dict[str, str]
    uri: str | None = None
    topic: str | None = None
    consistency: list[str] | None = None
