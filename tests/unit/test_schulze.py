"""The Schulze method on hand-worked elections; their matrices are written out in tests/vectors/election/worked.md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from elections import count_of

from treaty_consensus.election.schulze import Ranking, Tie, beaten_by, margins, path_strengths, rank, undefeated

SPECIFICATION = Path(__file__).parents[2] / "tests" / "vectors" / "election" / "worked.md"


@dataclass(frozen=True)
class Election:
    """`ballots`: a number of voters, and the tiers they rank: `A>BC` ranks A over B and C, which are tied."""

    ballots: str
    choices: str
    votes: list[list[int]]
    strengths: list[list[int]]
    undefeated: str
    order: str

    def counted(self) -> list[list[int]]:
        votes = []
        for part in self.ballots.split(", "):
            number, order = part.split(" ")
            votes.append((tuple(tuple(tier) for tier in order.split(">")), int(number)))
        return count_of(votes, self.choices[:-1]).pairwise

    def names(self, numbers: tuple[int, ...]) -> str:
        return "".join(self.choices[number] for number in numbers)


# NONE, here N, is in each of them: a ballot that does not rank it has it just below what it ranks.
ELECTIONS = {
    "cycle of five": Election(
        "5 A>C>B>E>D, 5 A>D>E>C>B, 8 B>E>D>A>C, 3 C>A>B>E>D, 7 C>A>E>B>D, 2 C>B>A>D>E, 7 D>C>E>B>A, 8 E>B>A>D>C",
        "ABCDEN",
        [
            [0, 20, 26, 30, 22, 45],
            [25, 0, 16, 33, 18, 45],
            [19, 29, 0, 17, 24, 45],
            [15, 12, 28, 0, 14, 45],
            [23, 27, 21, 31, 0, 45],
            [0, 0, 0, 0, 0, 0],
        ],
        [
            [0, 11, 11, 15, 3, 45],
            [5, 0, 11, 21, 3, 45],
            [5, 13, 0, 13, 3, 45],
            [5, 11, 11, 0, 3, 45],
            [5, 11, 11, 17, 0, 45],
            [0, 0, 0, 0, 0, 0],
        ],
        "E",
        "EACBDN",
    ),
    "cycle of four": Election(
        "5 A>C>B>D, 2 A>C>D>B, 3 A>D>C>B, 4 B>A>C>D, 3 C>B>D>A, 3 C>D>B>A, 1 D>A>C>B, 5 D>B>A>C, 4 D>C>B>A",
        "ABCDN",
        [[0, 11, 20, 14, 30], [19, 0, 9, 12, 30], [10, 21, 0, 17, 30], [16, 18, 13, 0, 30], [0, 0, 0, 0, 0]],
        [[0, 10, 10, 4, 30], [8, 0, 8, 4, 30], [8, 12, 0, 4, 30], [6, 6, 6, 0, 30], [0, 0, 0, 0, 0]],
        "D",
        "DACBN",
    ),
    "unanimous link": Election(
        "3 A>B>D>E>C, 5 A>D>E>B>C, 1 A>D>E>C>B, 2 B>A>D>E>C, 2 B>D>E>C>A, 4 C>A>B>D>E, 6 C>B>A>D>E, 2 D>B>E>C>A, 5 D>E>C>A>B",
        "ABCDEN",
        [
            [0, 18, 11, 21, 21, 30],
            [12, 0, 14, 17, 19, 30],
            [19, 16, 0, 10, 10, 30],
            [9, 13, 20, 0, 30, 30],
            [9, 11, 20, 0, 0, 30],
            [0, 0, 0, 0, 0, 0],
        ],
        [
            [0, 6, 10, 12, 12, 30],
            [8, 0, 8, 8, 8, 30],
            [8, 6, 0, 8, 8, 30],
            [8, 6, 10, 0, 30, 30],
            [8, 6, 10, 8, 0, 30],
            [0, 0, 0, 0, 0, 0],
        ],
        "B",
        "BADECN",
    ),
    "two undefeated": Election(
        "3 A>B>C>D, 2 D>A>B>C, 2 D>B>C>A, 2 C>B>D>A",
        "ABCDN",
        [[0, 5, 5, 3, 9], [4, 0, 7, 5, 9], [4, 2, 0, 5, 9], [6, 4, 4, 0, 9], [0, 0, 0, 0, 0]],
        [[0, 1, 1, 1, 9], [1, 0, 5, 1, 9], [1, 1, 0, 1, 9], [3, 1, 1, 0, 9], [0, 0, 0, 0, 0]],
        "BD",
        "BCDAN",
    ),
    "margins, not winning votes": Election(
        "5 A, 4 BC, 2 A>B>C, 4 B>C>A, 2 C>A>B",
        "ABCN",
        [[0, 9, 7, 13], [8, 0, 6, 12], [10, 2, 0, 12], [4, 5, 5, 0]],
        [[0, 1, 1, 9], [3, 0, 4, 7], [3, 1, 0, 7], [0, 0, 0, 0]],
        "B",
        "BCAN",
    ),
}

elections = pytest.mark.parametrize("election", ELECTIONS.values(), ids=list(ELECTIONS))


@elections
def test_counts_ballots_pairwise(election: Election) -> None:
    assert election.counted() == election.votes


@elections
def test_finds_the_strongest_paths(election: Election) -> None:
    assert path_strengths(margins(election.votes)) == election.strengths


@elections
def test_ranks_the_choices(election: Election) -> None:
    strengths = path_strengths(margins(election.votes))
    assert election.names(undefeated(strengths, range(len(election.choices)))) == election.undefeated
    assert election.names(rank(election.votes).order) == election.order


@elections
def test_the_specification_shows_the_same_matrices(election: Election) -> None:
    def rows(matrix: list[list[int]]) -> str:
        head = "  ".join(["", *(f"{choice:>2}" for choice in election.choices)])
        return "\n".join(
            [head, *("  ".join([name, *(f"{n:>2}" for n in row)]) for name, row in zip(election.choices, matrix, strict=True))]
        )

    text = SPECIFICATION.read_text(encoding="utf-8")
    for text_of in (election.ballots, rows(election.votes), rows(election.strengths), f"order {' '.join(election.order)}"):
        assert text_of in text, text_of


def test_a_tie_goes_to_the_incumbent_then_to_the_earliest() -> None:
    votes = ELECTIONS["two undefeated"].votes
    assert rank(votes) == Ranking((1, 2, 3, 0, 4), (Tie(0, (1, 3)), Tie(1, (2, 3))))
    assert rank(votes, incumbent=3).order == (3, 0, 1, 2, 4)
    assert rank(votes, incumbent=3).ties == (Tie(0, (1, 3)), Tie(1, (0, 1)))
    assert rank(votes, incumbent=0).order == (1, 2, 3, 0, 4), "an incumbent that is defeated wins no tie"


def test_without_votes_the_order_is_that_of_publication() -> None:
    assert rank([[0, 0, 0]] * 3) == Ranking((0, 1, 2), (Tie(0, (0, 1, 2)), Tie(1, (1, 2))))
    assert rank([[0]]) == Ranking((0,), ())


def test_a_weak_condorcet_winner_ties_later_choices_alone() -> None:
    level = margins([[0, 5, 6], [5, 0, 6], [2, 2, 0]])
    assert beaten_by(level, 0) == []
    assert beaten_by(level, 1) == [0]
    assert beaten_by(level, 2) == [0, 1]
    assert beaten_by(margins([[0, 5], [6, 0]]), 0) == [1], "beaten by one vote"
