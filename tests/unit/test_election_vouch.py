"""Which vouches count, and how strong they are."""

from __future__ import annotations

import msgspec
import pytest
from plain_counting import edges_of
from simulated_log import ANCHORS, SUFFIX_LIST, SUFFIXES

from treaty_consensus.did import did_key, parse_did
from treaty_consensus.election.arithmetic import ONE, decay
from treaty_consensus.election.defaults import open_parameters
from treaty_consensus.election.principals import PrincipalDirectory, SuffixList
from treaty_consensus.election.report import Acquaintance, Pair, Reports
from treaty_consensus.election.trust import graph_of
from treaty_consensus.election.vouch import Vouches
from treaty_consensus.kinds import Report, Reputation, Vouch

A, B, C = "alpha.example", "bravo.example", "charlie.example"
HORIZON = 4
FRIENDS = {Pair(A, B): 3, Pair(A, C): 5, Pair(B, C): 2}


def terms(**changes: int) -> Reputation:
    reputation = open_parameters(ANCHORS, SUFFIX_LIST).reputation
    assert reputation is not None
    return msgspec.structs.replace(reputation, **changes)


class Log:
    """Vouches, one after the other; who is named by a domain speaks with its root DID."""

    def __init__(self) -> None:
        self.directory = PrincipalDirectory()
        self.vouches = Vouches(self.directory)
        self.dids: list[str] = []
        self.directory.read_domains_by(SUFFIX_LIST.sha256, SuffixList(SUFFIXES))

    def vouch(self, author: str, to: str, *, epoch: int = 0, withdrawn: bool = False) -> None:
        author, to = (name if name.startswith("did:") else f"did:wba:{name}" for name in (author, to))
        self.dids += [author, to]
        self.vouches.add(author, Vouch(to, 0, withdrawn), epoch)

    def edges(self, epoch: int = 0, friends: dict[Pair, int] | None = None, **changes: int) -> dict[tuple[str, str], int]:
        acquainted = self._acquaintance(FRIENDS if friends is None else friends)
        row = self.vouches.counted(epoch, acquainted, terms(**changes), HORIZON)
        names = tuple(sorted({name for did in self.dids if (name := self.directory.principal_of(did))}))
        places = self.directory.places(names)
        return edges_of(graph_of(names, places[row.voucher], places[row.vouched], row.strength))

    def _acquaintance(self, friends: dict[Pair, int]) -> Acquaintance:
        reports = Reports(self.directory)
        for pair, epochs in friends.items():
            authors = tuple(parse_did(f"did:wba:{name}") for name in pair)
            for epoch in range(epochs):
                reports.add(f"{pair} {epoch}", Report("topic", "0" * 64, "1" * 64, "agreed", epoch, ""), authors, epoch, epoch)
        return reports.acquainted()


def test_a_vouch_counts_between_principals_that_are_acquainted() -> None:
    log = Log()
    for author, to in ((A, B), (B, A), (B, C), (C, A)):
        log.vouch(author, to)
    assert log.edges() == {(A, B): ONE, (B, A): ONE, (C, A): ONE}
    assert log.edges(acquainted_epochs=5) == {(C, A): ONE}
    assert log.edges(friends={}) == {}


def test_who_speaks_for_nobody_vouches_for_nobody() -> None:
    log = Log()
    key = did_key(bytes(32))
    for stranger in (key, f"did:wba:sub.{A}", f"did:wba:{A}:users:x", f"did:wba:{A}%3A8443"):
        log.vouch(stranger, B)
        log.vouch(B, stranger)
    log.vouch(A, f"did:web:{A}")
    assert log.edges() == {}
    log.directory.grant(A, key, f"did:wba:{A}")
    assert log.edges() == {(A, B): ONE, (B, A): ONE}, "a grant counts for what was said before it, too"


def test_it_fades_and_is_renewed() -> None:
    log = Log()
    log.vouch(A, B, epoch=1)
    assert [log.edges(epoch).get((A, B), 0) for epoch in (1, 2, 5, 32)] == [decay(age, HORIZON) for age in (0, 1, 4, 31)]
    assert log.edges(33) == {}, "after eight horizons nothing is left"
    log.vouch(A, B, epoch=33)
    assert log.edges(33) == {(A, B): ONE}


def test_the_newest_word_counts_by_whichever_did_it_was_said() -> None:
    log = Log()
    helper = did_key(bytes(32))
    log.directory.grant(A, helper, f"did:wba:{A}")
    log.vouch(A, B)
    log.vouch(helper, f"did:web:{B}", withdrawn=True)
    assert log.edges() == {}
    log.vouch(A, B, epoch=2)
    assert log.edges(2) == {(A, B): ONE}


@pytest.mark.parametrize("most", [1, 2, 3])
def test_only_the_newest_are_kept(most: int) -> None:
    log = Log()
    others = ["delta.example", "echo.example", "foxtrot.example"]
    for other in others:
        log.vouch(A, other)
    log.vouch(A, others[0])  # renewed: now the newest
    log.vouch(A, "gone.example")
    log.vouch(A, "gone.example", withdrawn=True)
    friends = {Pair(A, other): 3 for other in (*others, "gone.example")}
    newest = [others[0], others[2], others[1]][:most]
    assert log.edges(friends=friends, max_vouches=most) == {(A, other): ONE for other in newest}


def test_principals_that_do_not_count_yet_take_their_place() -> None:
    log = Log()
    log.vouch(A, B)
    log.vouch(A, "stranger.example")
    assert log.edges(max_vouches=1) == {}
    assert log.edges(max_vouches=2) == {(A, B): ONE}
