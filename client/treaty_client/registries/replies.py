"""The answers of a registry as structs: one for each JSON resource that this client reads.

A registry encodes the same structs, except for six. `Summary`, `Page`, `Match`, `Credit`, `Standing` and `LogInfo` have fewer
members here, or words of which a newer registry may know more. The registry's own structs of these are complete and closed,
because the description of the API is generated from them.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from treaty_consensus.kinds import Electorate

# In the dialect of JSON Schema, because the description of the API shows them.
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Index: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Reply(msgspec.Struct, frozen=True):
    """The base of all answers. Unknown members are ignored, so a registry may add some."""


class Testimony(Reply, frozen=True):
    """A statement's payload (base64) with the first of its two signatures: `sig` (base64) by `keyid`, the operator's key."""

    payload: str
    keyid: str
    sig: str


class ValidatedKey(Reply, frozen=True):
    """A key that a registry validated: `keyid`, of `did` in its `tenure`. `ends`: the last second in which it signs."""

    did: str
    keyid: str
    tenure: int
    ends: int


class Summary(Reply, frozen=True):
    """A protocol in a list. `hash`: its document's; `election`: its state in its topic, or None; `pairs`: its proved use."""

    uri: str
    topic: str
    title: str
    hash: str
    publisher: str
    status: str
    summary: str = ""
    tags: tuple[str, ...] = ()
    election: str | None = None
    pairs: int = 0


class SearchResult(Summary, frozen=True):
    """A protocol that a search found. `score`: 1 to 100, how well it matches the words; None without words."""

    score: int | None = None


class Page(Reply, frozen=True):
    """Search results; `next` is the cursor of the page after, or None."""

    protocols: tuple[SearchResult, ...]
    next: str | None = None


class Versions(Reply, frozen=True):
    """All versions of a protocol."""

    versions: tuple[Summary, ...]


class Match(Reply, frozen=True):
    """A protocol that a name may mean. `by`: the kind of match. `verified`: whether the claim was checked, or is only made."""

    uri: str
    hash: str
    by: str
    verified: bool
    publisher: str


class TopicSummary(Reply, frozen=True):
    """A topic: its number of protocols, the hash of its consensus, the epoch of its newest decision.

    `uri`, `status`: of the consensus. Agents refuse it if it is yanked or revoked. `successor`: what its publishers name instead.
    An older registry tells none of the three.
    """

    topic: str
    protocols: int
    consensus: Digest | None
    epoch: int | None
    uri: str | None = None
    status: str | None = None
    successor: str | None = None


class TopicPage(Reply, frozen=True):
    """All topics that have a protocol, by name. `next` is the start of the next page."""

    topics: list[TopicSummary]
    next: str | None


class NextBallot(Reply, frozen=True):
    """The fields of a voter's next ballot in a topic: `seq`, and the open `epoch`."""

    seq: int
    epoch: int


class UseInfo(Reply, frozen=True):
    """The votes that the reports of a DID imply in a topic: for the documents that most counterparties agreed on last, as their
    lines speak.

    `counterparties`: how many. `since`: the epoch since which it is these documents. `newest`: that of the newest report.
    """

    hashes: list[Digest]
    counterparties: int
    since: int
    newest: int


class VoteInfo(Reply, frozen=True):
    """The standing ballot of a DID in a topic, and its use there.

    `tiers`: as they were signed; null without a ballot. `first`: its first tier by the versions to speak, without `none`. `cast`:
    the epoch in which it was cast or reaffirmed. `since`: that in which its ranking began.
    """

    topic: str
    tiers: list[list[str]] | None
    first: list[Digest]
    cast: int | None
    since: int | None
    use: UseInfo | None


class VotingInfo(Reply, frozen=True):
    """How a DID votes: its newest ballots. `epoch`: the open one. `renews`: whether use does. `names`: document → first URI."""

    did: str
    epoch: int
    electorate: Electorate | None
    horizon_epochs: int
    renews: bool
    votes: list[VoteInfo]
    names: dict[Digest, str]


class VouchInfo(Reply, frozen=True):
    """A vouch in force: its subject, the open epoch when it was logged, and the statement."""

    to: str
    epoch: int
    statement: Digest
    index: Index


class Vouches(Reply, frozen=True):
    """The fields of a DID's next vouch: `seq`, and the open `epoch`. `vouches`: its vouches in force, newest first."""

    seq: int
    epoch: int
    vouches: list[VouchInfo]


class GrantInfo(Reply, frozen=True):
    """A grant in force: the namespace, the DID that may publish there, the DID that granted it, and the statement."""

    namespace: str
    to: str
    by: str
    statement: Digest
    index: Index


class Grants(Reply, frozen=True):
    """The grants in force of a DID's namespace and to the DID itself, newest first."""

    did: str
    grants: list[GrantInfo]


class Speaker(Reply, frozen=True):
    """A DID that co-signed reports of agreement on a document in a topic.

    `reports`: their number; `index` and `epoch`: of the newest. `principal`: the principal of the DID in the newest roll.
    `standing`: decimal, in units of 2^-32 of a full credit.
    """

    did: str
    topic: str
    hash: Digest
    principal: str | None
    standing: str
    reports: int
    epoch: int
    index: Index


class Speakers(Reply, frozen=True):
    """A page of speakers, ordered by standing, then by the time of the newest report.

    Reports are co-signed and optional, so an agent that is not listed may also speak the protocol.
    """

    speakers: list[Speaker]
    next: str | None


class Credit(Reply, frozen=True, rename={"corroborator": "with"}):
    """A credit for the report at leaf `index`, earned at the end of `epoch`. `why`: its explanation.

    `amount`: its value then. `now`: its present value. Both are decimal.
    """

    epoch: int
    reason: str
    topic: str
    hash: str
    index: int
    corroborator: str
    amount: str
    now: str
    why: str


class Standing(Reply, frozen=True):
    """The decimal standing and weight, at the end of `epoch`, of the principal for which a DID speaks, and a page of the credits
    in its standing."""

    did: str
    standing: str
    credits: tuple[Credit, ...]
    weight: str = "0"
    electorate: str | None = None
    principal: str | None = None
    epoch: int | None = None
    next: str | None = None


class Reach(Reply, frozen=True):
    """How well the network understands itself at the end of an epoch: of `pairs`, so many (`able`) could speak at once.

    Both are decimal sums of w · w' over pairs of principals that report in a topic.
    """

    epoch: int
    able: str
    pairs: str


class Clients(Reply, frozen=True):
    """The releases of agents, as PEP 440 versions: `least` is the oldest that can fetch, publish and report at a registry. A
    hint, which nothing signs."""

    least: str
    recommended: str


class LogInfo(Reply, frozen=True):
    """A registry's description of its log. `key`, `clock_key`: verifier keys. `epoch`: the open one. `opened`: its start in Unix
    seconds. `parameters`: the statement in force. `rotations`: the leaves that rotated the keys. `reach`: newest first.
    `clients`: None from a registry that names none.
    """

    origin: str
    key: str
    clock_key: str
    operator: str
    electorate: str
    epoch: int
    opened: int
    size: int
    parameters: str | None = None
    rotations: tuple[int, ...] = ()
    clients: Clients | None = None
    reach: tuple[Reach, ...] = ()
