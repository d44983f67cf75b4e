"""A log as its facts alone, moved by the rules of admission: for the tests of these rules."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from signers import NOW, ORIGIN, Signer, domain_signer, key_signer, signed

from treaty_consensus import admit, facts, kinds, statement
from treaty_consensus.did import encode_multikey
from treaty_consensus.errors import TreatyError

OPERATOR, ALICE, BOB = key_signer("operator"), domain_signer("alice.example"), domain_signer("bob.example")
BLOB, OTHER = kinds.Blob("ab" * 32, 10), kinds.Blob("cd" * 32, 10)
GENESIS = kinds.Genesis(ORIGIN, "log-key", "clock-key", OPERATOR.did, "00" * 32)
DAY = 24 * 3600


@dataclass
class Log:
    """A log's facts and length, moved only by `admit`."""

    facts: dict[str, facts.Fact] = field(default_factory=dict)
    size: int = 0

    def add(self, body: kinds.Body, *signers: Signer, issued: int = NOW, log: str = ORIGIN) -> statement.Statement:
        record = signed(body, *signers, issued=issued, log=log)
        keys = {signer.key_id: signer.public_key for signer in signers}
        looked_at = {key: self.facts[key] for key in admit.reads(record) if key in self.facts}
        self.facts |= admit.admit(looked_at, statement.verify(record, keys), self.size)
        self.size += 1
        return record

    def refuses(self, body: kinds.Body, *signers: Signer, issued: int = NOW, log: str = ORIGIN) -> str:
        before = dict(self.facts)
        with pytest.raises(TreatyError) as refusal:
            self.add(body, *signers, issued=issued, log=log)
        assert self.facts == before
        return refusal.value.code


def taken_over(before: facts.IdentityFact) -> kinds.Identity:
    """The document of a domain whose new owner has another key."""
    new = key_signer("new owner")
    key = kinds.Key(f"{ALICE.did}#new", encode_multikey(new.public_key))
    return kinds.Identity(ALICE.did, kinds.Blob("12" * 32, 500), (key,), before.tenure + 1, before.statement)


NEW_OWNER = Signer(ALICE.did, f"{ALICE.did}#new", key_signer("new owner").private_key)


def publish(version: str = "1.0", namespace: str = "alice.example", base: kinds.Base | None = None) -> kinds.Publish:
    uri = f"https://{ORIGIN}/protocols/{namespace}/product-info/{version}"
    return kinds.Publish(uri, "commerce/product-info", BLOB, BLOB, "negotiated", base=base)
