"""What a registry answers, as far as this client reads it: one struct a JSON resource of the HTTP API."""

from __future__ import annotations

import msgspec


class Reply(msgspec.Struct, frozen=True):
    """Unknown members are passed over: a registry may say more than this client asks for."""


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
    """A protocol that a name may mean: `by` says how, `verified` whether the claim holds rather than is merely made."""

    uri: str
    hash: str
    by: str
    verified: bool
    publisher: str


class NextBallot(Reply, frozen=True):
    """What a voter's next ballot must carry."""

    seq: int
    epoch: int


class VouchInfo(Reply, frozen=True):
    """A vouch that a DID stands by: for whom, and the open epoch when it was logged."""

    to: str
    epoch: int
    statement: str
    index: int


class Vouches(Reply, frozen=True):
    """What a DID's next vouch must carry, the open epoch, and the vouches it stands by, newest first."""

    seq: int
    epoch: int
    vouches: tuple[VouchInfo, ...]


class Speaker(Reply, frozen=True):
    """A DID that reported a document in a topic: how often, the newest time in `epoch` at leaf `index`. `standing`: that of its
    `principal`, decimal, in units of 2^-32 of a full credit."""

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
    """A credit for the report at leaf `index`, earned at the end of `epoch`, and `why`. `now`: what it still counts for; decimal,
    as `amount`, what it was worth then."""

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
    """The standing of whom a DID speaks for at the end of `epoch`, decimal, and a page of the credits that it is the sum of."""

    did: str
    standing: str
    credits: tuple[Credit, ...]
    principal: str | None = None
    epoch: int | None = None
    next: str | None = None


class LogInfo(Reply, frozen=True):
    """What a registry says of its log. `key`, `clock_key`: verifier keys; `epoch`: the open one, `opened` when (Unix seconds)."""

    origin: str
    key: str
    clock_key: str
    operator: str
    electorate: str
    epoch: int
    opened: int
    size: int
