"""The statements that the authors of a history want logged: one of each kind that agents and operators make."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from signers import NOW, ORIGIN, domain_signer, signed
from simulated_registry import echo_wheel

from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.did import parse_did
from treaty_consensus.errors import TreatyError
from treaty_consensus.facts import LogFact, decode
from treaty_consensus.protocol import Card

from .operators import operator
from .tables import Tables

AUTHORS = [domain_signer(f"{name}.example") for name in ("alice", "bob", "carol")]
TOPIC = "commerce/product-info"


@dataclass(eq=False)
class Wish:
    """A statement that its authors want logged. `make` returns its body when it is sent: it may carry the newest checkpoint.
    `blobs`: uploaded before. `after`: settled before.

    `index`, `receipts`: of the answers. `refusal`: it is final.
    """

    name: str
    authors: Sequence[Any]
    make: Any
    blobs: tuple[bytes, ...] = ()
    after: Wish | None = None
    leaf: bytes = b""
    id: str = ""
    index: int | None = None
    receipts: list[bytes] = field(default_factory=list)
    refusal: TreatyError | None = None

    @property
    def settled(self) -> bool:
        """Whether the author knows what became of it."""
        return self.index is not None or self.refusal is not None

    @property
    def ready(self) -> bool:
        """Whether it can be sent."""
        return self.after is None or self.after.settled

    def sign(self, note: str, tables: Tables) -> None:
        """Make the statement, unless it is made. `note`: the newest checkpoint of the process to which it is sent."""
        if not self.leaf:
            self.leaf, self.id = _signed(tuple(self.authors), self.make(note, tables))


@cache
def _signed(authors: tuple[Any, ...], body: kinds.Body) -> tuple[bytes, str]:
    statement = signed(body, *authors)
    return statement.leaf, statement.id


def draw(rng: Random) -> list[Wish]:
    """Return the wishes of a history."""
    wishes = [grant(number) for number in rng.sample(range(40), rng.randrange(2, 7))]
    wishes += [_vouch(number) for number in rng.sample(range(18), rng.randrange(0, 4))]
    wishes += [_ballot(number, rng.choice(AUTHORS)) for number in range(rng.randrange(0, 3))]
    for number in rng.sample(range(6), rng.choice((0, 0, 1, 2))):
        publish = _publish(number)
        statements = [_handler(number, publish), _status(number, publish), _withdrawal(number, publish, rng.randrange(2))]
        statements += [_report(number, publish, which) for which in range(3)]
        wishes += [publish, *rng.sample(statements, rng.randrange(len(statements)))]
    return wishes


def _fixed(body: kinds.Body) -> Any:
    return lambda _note, _tables: body


def grant(number: int) -> Wish:
    """Return a grant. Some of them take another back, and some are the same."""
    author, friend = AUTHORS[number % len(AUTHORS)], number // 2 % 4 if number < 40 else number
    body = kinds.Grant(parse_did(author.did).namespace, f"did:wba:friend-{friend}.example", withdrawn=number % 5 == 4)
    return Wish(f"grant {number}", [author], _fixed(body))


def _vouch(number: int) -> Wish:
    # Of several with one number the log takes one.
    author, to = AUTHORS[number % 3], AUTHORS[(number + 1) % 3]
    return Wish(f"vouch {number}", [author], _fixed(kinds.Vouch(to.did, number // 6, number % 2 == 1)))


def _ballot(number: int, author: Any) -> Wish:
    return Wish(f"ballot {number}", [author], lambda note, _: kinds.Ballot(TOPIC, 0, ((kinds.NONE,),), note))


@cache
def _contents(number: int) -> tuple[str, bytes, bytes]:
    uri = f"https://{ORIGIN}/protocols/{parse_did(AUTHORS[number % 3].did).namespace}/echo-{number // 3}/1.0"
    return uri, f"# Echo {number}\n\nWhat is sent comes back.\n".encode(), Card(f"Echo {number}", "Comes back.").encode()


def _blob(data: bytes) -> kinds.Blob:
    return kinds.Blob(hex_digest(data), len(data))


def _publish(number: int) -> Wish:
    uri, document, card = _contents(number)
    body = kinds.Publish(uri, TOPIC, _blob(document), _blob(card), "negotiated")
    return Wish(f"publish {number}", [AUTHORS[number % 3]], _fixed(body), (document, card))


@cache
def _wheel(number: int) -> tuple[str, bytes]:
    uri, document, _ = _contents(number)
    return echo_wheel(uri, hex_digest(document))


def _handler(number: int, publish: Wish) -> Wish:
    uri, document, _ = _contents(number)
    (filename, wheel), bundle = _wheel(number), b"{}"
    named = filename, _blob(wheel), "treaty_handler_echo:handler", _blob(bundle)
    return Wish(
        f"handler {number}", publish.authors, _fixed(kinds.Handler(uri, hex_digest(document), *named)), (wheel, bundle), publish
    )


def _status(number: int, publish: Wish) -> Wish:
    body = kinds.Status(_contents(number)[0], "deprecated" if number % 2 else "yanked")
    return Wish(f"status {number}", publish.authors, _fixed(body), after=publish)


def _withdrawal(number: int, publish: Wish, which: int) -> Wish:
    _, document, card = _contents(number)
    body = kinds.Withdrawal(hex_digest((document, card)[which]), "illegal")
    return Wish(f"withdrawal {number}.{which}", [operator().identity], _fixed(body), after=publish)


def _report(number: int, publish: Wish, which: int) -> Wish:
    # One of the pairs reports twice.
    pair = [AUTHORS[which % 2], AUTHORS[2]] if which else [AUTHORS[0], AUTHORS[1]]
    document = hex_digest(_contents(number)[1])
    nid = hashlib.sha256(b"%d %d" % (number, which)).hexdigest()

    def make(note: str, tables: Tables) -> kinds.Body:
        row = tables.rows["facts"].get(("log",))
        fact = decode(row["fact"]) if row else None
        epoch = fact.epoch if isinstance(fact, LogFact) else 0
        return kinds.Report(TOPIC, nid, document, "failed" if which == 2 else "agreed", epoch, note)

    return Wish(f"report {number}.{which}", sorted(pair, key=lambda author: str(author.key_id)), make, after=publish)


__all__ = ["AUTHORS", "NOW", "TOPIC", "Wish", "draw", "grant"]
