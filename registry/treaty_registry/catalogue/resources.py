"""Define the JSON of the catalogue: one struct per resource of the HTTP API. Those that a client reads as a whole are in
`treaty_client.registries.replies`.

Digests and statement ids are 64 hexadecimal digits; `index` is the index of a leaf. A missing field is null. Only `successor`
and `base` are omitted when missing, as in the statements they come from, and so is an empty `derived`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from treaty_client.registries.replies import Clients, Digest, Index, Reach
from treaty_consensus.grease import GREASE
from treaty_consensus.handler.compatibility import Compatibility
from treaty_consensus.kinds import Electorate

ProtocolState: TypeAlias = Literal["active", "deprecated", "yanked", "revoked"]


class Election(msgspec.Struct, frozen=True):
    """A document's result in the newest decision of a topic: its state, the closed epoch, the decision's id."""

    state: str
    epoch: int
    decision: Digest


class Summary(msgspec.Struct, frozen=True):
    """One version of a protocol, as in lists. `status` is set by its publisher, `election` by the network.

    `pairs`: the pairs of principals whose reports on its document count in the newest decision.
    """

    uri: str
    topic: str
    title: str
    summary: str
    tags: list[str]
    hash: Digest
    publisher: str
    status: ProtocolState
    election: str | None
    pairs: int = 0


class SearchResult(Summary, frozen=True, kw_only=True):
    """A result of a search. `score`: how well it matches the words, 1 to 100; null without words, and in another order."""

    score: Annotated[int, msgspec.Meta(ge=1, le=100)] | None


class Page(msgspec.Struct, frozen=True):
    """A page of search results. `next` is the cursor of the next page.

    `order`: `words` when better matches of the words come first, `newest` when newer protocols come first, `use` when those with
    more `pairs` do, `name` when it is that of their names. `at_most`: a bound of the number of all results.
    """

    protocols: list[SearchResult]
    next: str | None
    order: Literal["words", "newest", "use", "name"] = "newest"
    at_most: Index = 0


class Versions(msgspec.Struct, frozen=True):
    """All versions of a protocol, newest first by PEP 440."""

    namespace: str
    name: str
    versions: list[Summary]


class CardView(msgspec.Struct, frozen=True):
    """A protocol's card. It is empty once its bytes were withdrawn."""

    title: str
    summary: str
    tags: list[str]
    licence: str


class HandlerView(msgspec.Struct, frozen=True):
    """An attached handler: its publisher and its blobs."""

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
    """One version of a protocol.

    `handlers`: first the publisher's own, newest first, then others, oldest first; at most 64. `base`: the protocol that this
    document changes. `derived`: the protocols that have this one as their base, oldest first; at most 32. `compatibility`:
    with the version before, where both have a handler of their publishers.
    """

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
    base: str | None = None
    derived: list[str] = []
    compatibility: Compatibility | None = None


class HashMatches(msgspec.Struct, frozen=True):
    """The protocols whose document has this SHA-256."""

    hash: Digest
    protocols: list[Summary]


class Match(msgspec.Struct, frozen=True):
    """A protocol that a name may mean. `verified` is false for an unproven claim and for every SHA-1."""

    uri: str
    hash: Digest
    by: Literal["uri", "hash", "agora", "alias"]
    verified: bool
    publisher: str


class Resolution(msgspec.Struct, frozen=True):
    """All protocols that a name may mean, in the order of publication. The registry does not choose one."""

    uri: str
    matches: list[Match]


class Candidate(msgspec.Struct, frozen=True):
    """A document of a topic: its URIs, the number of reports that agreed on it, and its result in the newest decision.

    The result is its state, and the weight for and against it (decimal, in units of 2^-32). `status`: as its publishers left it;
    agents refuse one that is yanked or revoked, and votes for it count for nothing. `successor`: what they name instead. `uris`:
    first one with that status.
    """

    hash: Digest
    uris: list[str]
    title: str
    state: str | None
    status: ProtocolState
    successor: str | None
    reports: int
    support: str | None
    opposition: str | None


class DecisionView(msgspec.Struct, frozen=True):
    """The newest decision: the statement, and the transcript it is based on (null when its bytes are not held)."""

    statement: Digest
    index: Index
    epoch: int
    leaf: str
    transcript: msgspec.Raw | None


class Topic(msgspec.Struct, frozen=True):
    """A topic's election.

    `epoch`: the open one. `matrix`: the decision's pairwise weights, with rows and columns in the order of its transcript's
    candidates, then NONE. `proof`: the decision's receipt.
    """

    topic: str
    electorate: Electorate | None
    epoch: int
    candidates: list[Candidate]
    matrix: list[list[str]] | None
    decision: DecisionView | None
    proof: str | None


class IdentityView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest identity of a DID. `keys`: DID URL → Multikey. A did:key proves itself, and has neither statement nor index."""

    did: str
    tenure: int
    keys: dict[str, str]
    statement: Digest | None = None
    index: Index | None = None


class CreditView(msgspec.Struct, frozen=True, rename={"corroborator": "with"}):
    """A credit, earned at the end of `epoch` for the report at leaf `index`, which `with` corroborated.

    `amount`: `whole`, reduced for the `shared` credits before it. `decay`: the remaining part of a full credit of its age.
    `now`: the current value of this credit. All are decimal, in units of 2^-32. `earlier`: the number of clusters that had
    reported the document before. `why`: a sentence.
    """

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
    """The standing and the weight of a DID's principal at the end of `epoch`, as in its roll (the digest of a blob).

    `weight`: what its ballots weigh before age and counterparties in a topic count; "0" for a DID without a principal.
    `credits`: the credits that the standing comes from, newest first. It is 0 while the principal has no weight.
    """

    did: str
    principal: str | None
    epoch: int | None
    roll: Digest | None
    electorate: Electorate | None
    weight: str
    standing: str
    credits: list[CreditView]
    next: str | None


class LogView(msgspec.Struct, frozen=True):
    """The log's name, keys and size.

    `key`, `clock_key`: the newest C2SP verifier keys. `rotations`: the leaves that changed them. `parameters`: the statement in
    force, `constitution`: the digest of its body. `announced`: the statement that holds from a later epoch on: the first one that
    opens at `holds`, Unix seconds, or after; null for the next epoch. `opened`: when the open epoch started, Unix seconds.
    `closes`: when it is due to close, or null where the operator closes epochs. `contact`: where abuse is reported, an e-mail
    address or https URL; null where none is set. `clients`: the releases that work with this registry. `reach`: of the newest
    epochs, the newest first.
    """

    origin: str
    key: str
    clock_key: str
    operator: str
    electorate: Electorate | None
    parameters: Digest | None
    constitution: Digest | None
    announced: Digest | None
    holds: int | None
    epoch: int
    opened: int
    closes: int | None
    size: int
    rotations: list[Index]
    contact: str | None
    clients: Clients
    reach: list[Reach]


class GreasedLogView(LogView, frozen=True, rename={"grease": GREASE}):
    """A log's description with a member that means nothing, so that no reader comes to refuse unknown ones."""

    grease: bool = True


class Signature(msgspec.Struct, frozen=True):
    """A DSSE signature: the id of its key, and 64 bytes in base64."""

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
    """All proofs of a protocol (`uri`) or of a topic's candidates (`topic`) in one document. See `bundles`. `reports`: of the
    agents that agreed on it, where they were asked for."""

    checkpoint: str
    leaves: list[BundleLeaf]
    blobs: dict[str, str]
    uri: str | None = None
    topic: str | None = None
    consistency: list[str] | None = None
    reports: list[BundleLeaf] | None = None
