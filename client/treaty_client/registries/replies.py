"""The answers of a registry as structs: one for each JSON resource that this client reads."""

from __future__ import annotations

import msgspec


class Reply(msgspec.Struct, frozen=True):
    """The base of all answers. Unknown members are ignored, so a registry may add some."""


class Testimony(Reply, frozen=True):
    """A statement's payload (base64) and the operator's signature (base64) over it, by the key `keyid`."""

    payload: str
    keyid: str
    sig: str


class Summary(Reply, frozen=True):
    """A protocol in a list. `hash`: its document's; `election`: its state in its topic, if it has one."""

    uri: str
    topic: str
    title: str
    hash: str
    publisher: str
    status: str
    summary: str = ""
    tags: tuple[str, ...] = ()
    election: str | None = None


class Page(Reply, frozen=True):
    """Search results; `next` is the cursor of the page after, or None."""

    protocols: tuple[Summary, ...]
    next: str | None = None


class Match(Reply, frozen=True):
    """A protocol that a name may mean. `by`: the kind of match. `verified`: whether the claim was checked, or is only made."""

    uri: str
    hash: str
    by: str
    verified: bool
    publisher: str


class TopicSummary(Reply, frozen=True):
    """A topic, the number of its protocols, and the consensus that was decided at the end of `epoch`, if there is one."""

    topic: str
    protocols: int
    consensus: str | None = None
    epoch: int | None = None


class TopicPage(Reply, frozen=True):
    """A page of topics by name; `next` is where the page after begins, or None."""

    topics: tuple[TopicSummary, ...]
    next: str | None = None


class NextBallot(Reply, frozen=True):
    """The sequence number and epoch that a voter's next ballot must carry."""

    seq: int
    epoch: int


class UseInfo(Reply, frozen=True):
    """The documents that most counterparties of a DID agreed on last, since and until when (epochs)."""

    hashes: list[str]
    counterparties: int
    since: int
    newest: int


class VoteInfo(Reply, frozen=True):
    """The ballot of a DID in a topic, and its use. `first`: its first tier, by the versions to speak. `cast`, `since`: epochs."""

    topic: str
    first: list[str]
    tiers: list[list[str]] | None = None
    cast: int | None = None
    since: int | None = None
    use: UseInfo | None = None


class VotingInfo(Reply, frozen=True):
    """How a DID votes. `epoch`: the open one. `renews`: whether use renews a vote. `names`: document → its first URI."""

    did: str
    epoch: int
    electorate: str | None
    horizon_epochs: int
    renews: bool
    votes: list[VoteInfo]
    names: dict[str, str]


class VouchInfo(Reply, frozen=True):
    """A present vouch of a DID: `to` is the vouched DID, `epoch` the open one when it was logged."""

    to: str
    epoch: int
    statement: str
    index: int


class Vouches(Reply, frozen=True):
    """The sequence number that a DID's next vouch must carry, the open epoch, and its present vouches, newest first."""

    seq: int
    epoch: int
    vouches: tuple[VouchInfo, ...]


class GrantInfo(Reply, frozen=True):
    """A grant in force: `by` lets `to` publish in `namespace`."""

    namespace: str
    to: str
    by: str
    statement: str
    index: int


class Grants(Reply, frozen=True):
    """The grants in force of a DID's namespace and to the DID, newest first."""

    grants: tuple[GrantInfo, ...]


class Speaker(Reply, frozen=True):
    """A DID that reported a document in a topic.

    `reports`: their number; the newest is leaf `index`, in `epoch`. `standing`: that of its `principal`, decimal, in units of
    2^-32 of a full credit.
    """

    did: str
    topic: str
    hash: str
    standing: str
    reports: int
    epoch: int
    index: int
    principal: str | None = None


class Speakers(Reply, frozen=True):
    """A page of speakers; `next` is the cursor of the page after, or None."""

    speakers: tuple[Speaker, ...]
    next: str | None = None


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
    """At the end of an epoch: sums over the pairs that report, and over those of them that could speak at once (`able`)."""

    epoch: int
    able: str
    pairs: str


class LogInfo(Reply, frozen=True):
    """A registry's description of its log. `key`, `clock_key`: verifier keys. `epoch`: the open one. `opened`: its start in Unix
    seconds. `parameters`: the statement in force. `rotations`: the leaves that rotated the keys. `reach`: newest first.
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
    reach: tuple[Reach, ...] = ()
