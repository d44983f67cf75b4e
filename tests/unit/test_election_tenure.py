"""A domain that changes hands: its age, vouches, votes, use and standing begin anew."""

from __future__ import annotations

import pytest
from signers import Signer, domain_signer
from simulated_log import ANCHORS, LogBuilder, open_log

from treaty_consensus.admit import TENURE_WAIT
from treaty_consensus.errors import Untrusted


def rows(log: LogBuilder) -> dict[str, list[object]]:
    """Return principal → its row in the newest roll: principal, cluster, trust, weight, age, standing."""
    return {row[0]: row for row in log.newest_roll()["principals"]}


def acquainted(log: LogBuilder, member: Signer, document: str, epochs: int = 1) -> None:
    """Let an anchor and a member agree, and the anchors among themselves, and close the epoch."""
    for _ in range(epochs):
        for one, other in zip(log.agents, (*log.agents[1:], log.agents[0]), strict=True):
            log.report(one, other, document)
        log.report(log.agents[0], member, document)
        log.close()


@pytest.fixture
def log() -> LogBuilder:
    return open_log(acquainted_epochs=1, mature_epochs=8)


@pytest.fixture
def member(log: LogBuilder) -> Signer:
    return domain_signer("member.example")


@pytest.fixture
def document(log: LogBuilder, member: Signer) -> str:
    """A document that is spoken for some epochs by a member for which an anchor vouches."""
    document = log.publish(log.agents[1], "p")
    acquainted(log, member, document, epochs=2)
    log.vouch(log.agents[0], member)
    log.vote(member, document)
    acquainted(log, member, document, epochs=3)
    assert rows(log)["member.example"][4] == 5 and int(str(rows(log)["member.example"][3])) > 0
    return document


def voices(log: LogBuilder) -> set[str]:
    transcript = log.newest_transcript()
    return {voice["principal"] for voice in transcript["voices"]}  # type: ignore[attr-defined]


def test_a_lapsed_domain_has_neither_weight_nor_voice(log: LogBuilder, member: Signer, document: str) -> None:
    assert "member.example" in voices(log)
    owner = log.renew(member, "the next owner")
    acquainted(log, owner, document)
    assert "member.example" not in rows(log) and "member.example" not in voices(log)


def test_it_begins_anew_with_new_vouches(log: LogBuilder, member: Signer, document: str) -> None:
    owner = log.renew(member, "the next owner")
    acquainted(log, owner, document)
    log.vouch(log.agents[0], owner)
    acquainted(log, owner, document)
    assert rows(log)["member.example"][4] == 2, "its age counts from the new tenure"
    assert "member.example" not in voices(log), "the ballot was the former owner's"
    ends = len(log.leaves)
    with pytest.raises(Untrusted, match="may have changed hands"):
        log.vote(owner, document)
    with pytest.raises(Untrusted, match="may have changed hands"):
        log.vouch(owner, log.agents[0])
    assert len(log.leaves) == ends
    log.start += TENURE_WAIT
    acquainted(log, owner, document)
    log.vote(owner, document)
    acquainted(log, owner, document)
    assert "member.example" in voices(log)


def test_vouches_by_a_lapsed_domain_end_too(log: LogBuilder, member: Signer, document: str) -> None:
    friend = domain_signer("friend.example")
    for _ in range(2):
        log.report(member, friend, document)
        log.vouch(member, friend)
        acquainted(log, member, document)
    assert "friend.example" in rows(log)
    log.renew(member, "the next owner")
    acquainted(log, log.agents[2], document)
    assert "friend.example" not in rows(log)


def test_standing_is_not_sold_with_a_domain(log: LogBuilder, member: Signer, document: str) -> None:
    assert int(str(rows(log)["member.example"][5])) > 0
    owner = log.renew(member, "the next owner")
    acquainted(log, owner, document)
    log.vouch(log.agents[0], owner)
    acquainted(log, owner, document)
    earned = [credit for credit in log.newest_roll()["credits"] if credit["principal"] == "member.example"]
    standing = int(str(rows(log)["member.example"][5]))
    # It may earn for what it reports from now on, as everybody may once.
    assert standing <= sum(int(credit["amount"]) for credit in earned)


def test_a_lapsed_anchor_has_no_seed_until_it_is_named_again(log: LogBuilder, document: str) -> None:
    owner = log.renew(log.agents[3], "the next owner")
    log.agents = (*log.agents[:3], owner, *log.agents[4:])
    acquainted(log, log.agents[2], document)
    assert ANCHORS[3] not in rows(log)
    log.add(log.parameters, log.operator)
    # It is a new announcement, so it holds after thirteen epochs of a second.
    acquainted(log, log.agents[2], document, epochs=3)
    assert ANCHORS[3] in rows(log)
