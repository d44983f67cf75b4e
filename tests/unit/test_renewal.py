"""`treaty vote --check`: the sentences on a ballot and its use, for each case of "Use renews a vote"."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from treaty_client.audit.renewal import Renewal, left, renewal, sentences
from treaty_client.registries.replies import UseInfo, VoteInfo, VotingInfo

A, B = "a" * 64, "b" * 64
PLACE = "https://registry.example/protocols"
NAMES = {A: f"{PLACE}/alpha.example/one/1.0", B: f"{PLACE}/bravo.example/two/1.0"}
VOTING = VotingInfo("did:wba:alpha.example", 26, "open", 13, True, [], NAMES)
BALLOT = VoteInfo("commerce/chat", [[A], ["none"]], [A], 13, 10, None)
SILENT = VoteInfo("commerce/chat", None, [], None, None, None)
AGAIN = f"treaty vote commerce/chat {NAMES[A]} none"
USED = f"treaty vote commerce/chat {NAMES[B]} none"


def used(document: str, since: int) -> VoteInfo:
    return replace(BALLOT, use=UseInfo([document], 3, since, 25))


@pytest.mark.parametrize(
    ("vote", "case", "phrase"),
    [
        (used(A, 20), "renewed", "so the vote is renewed in each epoch. There is nothing to do."),
        (used(B, 14), "yields", f"To vote by its use: {USED}. To keep the former vote: {AGAIN}."),
        (
            used(B, 13),
            "stands",
            "It counts 49 % of its weight, half of it 13 epochs after it was cast, and nothing from epoch 117",
        ),
        (used(B, 3), "stands", f"use what it voted for, or cast it again: {AGAIN}."),
        (BALLOT, "unused", "No report of it counts here, so only a new ballot renews this one. It counts 49 % of its weight"),
        (replace(SILENT, use=UseInfo([B], 1, 3, 25)), "silent", f"its use votes for it. To vote: {USED}."),
        (SILENT, "silent", "It has no ballot here, and no use."),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 12 else "",
)
def test_each_case_has_its_advice(vote: VoteInfo, case: str, phrase: str) -> None:
    assert renewal(vote, VOTING) == case
    assert phrase in " ".join(sentences(vote, VOTING))


def test_a_ballot_fades_to_nothing_after_eight_horizons() -> None:
    assert renewal(BALLOT, replace(VOTING, epoch=13 + 8 * 13 - 1)) is Renewal.UNUSED, "the last epoch in which it counts"
    old = replace(VOTING, epoch=13 + 8 * 13)
    assert renewal(BALLOT, old) is Renewal.FADED
    assert left(BALLOT, old) == 0
    assert "has faded to nothing. Vote again" in " ".join(sentences(BALLOT, old))


def test_a_new_ranking_counts_half_at_first() -> None:
    new = replace(BALLOT, cast=26, since=26)
    assert left(new, VOTING) == 50
    assert left(replace(new, since=25), VOTING) == 75


def test_where_ballots_do_not_fade_it_says_so() -> None:
    development = replace(VOTING, electorate="development", epoch=1_000)
    assert renewal(used(B, 3), development) is Renewal.STANDS
    assert "In a development electorate ballots do not fade." in " ".join(sentences(used(B, 3), development))
    before = replace(VOTING, renews=False)
    assert renewal(used(A, 20), before) is Renewal.UNUSED
    assert "Under the rule of this log no use renews a vote" in " ".join(sentences(used(A, 20), before))


def test_what_a_registry_says_stays_printable() -> None:
    hostile = replace(VOTING, names={A: "x/\x1b[2J/\u202e"})
    text = " ".join(sentences(used(B, 20), hostile))
    assert text.isprintable()
