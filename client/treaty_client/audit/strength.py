"""Say in plain sentences how strongly the electorate stands behind a candidate: for `treaty topic --explain`, and for the pages.

The share of all votes alone says little: five principals in a topic of their own are unanimous too. So the numbers of principals,
and the weight of the whole roll, stand beside it. The sentences have no mark-up. To accept a document is to
rank it over no consensus.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treaty_consensus.kinds import NONE

from .decision import Candidate, Transcript
from .reasons import Names, choice_name, choices_of, share

FEW = 10
"""The votes of a topic are few when they have less than this part of all weight."""

FEW_DECIDE = (
    "Few decide here: the votes have less than a tenth of all weight. The name of a topic says nothing about its voters, so look "
    "for a topic with a like name and more voters before you rely on it."
)


def is_few(transcript: Transcript) -> bool:
    """Return whether the votes of a decision have less than a tenth of all weight."""
    turnout = transcript.turnout
    return turnout is not None and FEW * int(turnout.votes[1]) < int(turnout.roll[1])


def turnout(transcript: Transcript) -> Iterator[str]:
    """Yield the sentences on the voters of a decision."""
    ballots = transcript.ballots
    if ballots.implied:
        yield (
            f"{_number(ballots.explicit, 'ballot')} and the use of {_number(ballots.implied, 'principal')} were counted: reports "
            "vote for a principal without a ballot, and with the part of its weight that its ballot has lost by age."
        )
    else:
        yield f"{_number(ballots.explicit, 'ballot')} {'was' if ballots.explicit == 1 else 'were'} counted."
    if transcript.turnout is None:
        return
    (roll, whole), (present, _), (voters, votes) = transcript.turnout.roll, transcript.turnout.topic, transcript.turnout.votes
    yield (
        f"Turnout: the votes of {voters} of {_number(roll, 'principal')} count here, with {share(votes, whole)} of all weight. "
        f"{present} of {roll} {'has' if present == 1 else 'have'} a weight in this topic."
    )
    if is_few(transcript):
        yield FEW_DECIDE


def strength(candidate: Candidate, transcript: Transcript) -> Iterator[str]:
    """Yield the sentences on the votes for a candidate."""
    total = transcript.total
    if candidate.voters is not None and transcript.turnout is not None:
        roll, whole = transcript.turnout.roll
        yield (
            f"{candidate.voters} of {_number(roll, 'principal')} {'accepts' if candidate.voters == 1 else 'accept'} it, with "
            f"{share(candidate.approval, whole)} of all weight."
        )
    over, under, neither = sides(candidate, transcript)
    yield (
        f"{share(over, total)} of the votes accept it, {share(under, total)} reject it, and {share(neither, total)} do neither."
    )
    # Under the rule before it is the same for all documents.
    whole = "" if candidate.quorum is None else ", a part of the votes that do not accept it"
    needed, support = share(transcript.quorum_of(candidate), total), counted(candidate, transcript)
    limited = (
        "No cluster of voters is over its limit: it has a support of"
        if support == over
        else "The limit for each cluster of voters leaves it a support of"
    )
    yield f"{limited} {share(support, total)}, and needs {needed} (its quorum{whole})."


def versions(candidate: Candidate, names: Names) -> Iterator[str]:
    """Yield the sentence on the versions of a candidate's line, where it has several."""
    users = sum(int(weight) for _, weight in candidate.versions)
    if candidate.versions:
        counts = ", ".join(
            f"{choice_name(document, names)} {share(weight, users)}{' (to speak)' if document == candidate.hash else ''}"
            for document, weight in candidate.versions
        )
        yield f"Its line has these versions, each with its share of the users: {counts}."


def warning(candidate: Candidate) -> Iterator[str]:
    """Yield the sentence on the warning of a candidate, if there is one."""
    if candidate.suspect:
        yield (
            f"It is suspect for {_number(candidate.suspect, 'epoch')}: most of the votes preferred none to it while it was the "
            "consensus, or as many pairs failed with it as make a candidate. This is a warning, and changes no state."
        )


def sides(candidate: Candidate, transcript: Transcript) -> tuple[int, int, int]:
    """Return the votes that rank a candidate over no consensus, those that do the opposite, and the others."""
    choices = choices_of(transcript)
    own, none = choices.index(candidate.hash), choices.index(NONE)
    over, under = int(transcript.pairwise[own][none]), int(transcript.pairwise[none][own])
    return over, under, max(int(transcript.total) - over - under, 0)


def counted(candidate: Candidate, transcript: Transcript) -> int:
    """Return the support of a candidate, or its votes if the limit for each cluster takes less than a thousandth of all votes."""
    # A support is a multiple of equal clusters, so it is a few units less also where no cluster is over the limit.
    over, support = sides(candidate, transcript)[0], int(candidate.support)
    return over if 1000 * (over - support) < int(transcript.total) else support


def numbers(candidate: Candidate, transcript: Transcript) -> dict[str, Any]:
    """Return the numbers of the sentences, as texts: shares in per cent, of all votes where no other whole is named."""
    total, turnout = transcript.total, transcript.turnout
    over, under, neither = sides(candidate, transcript)
    users = sum(int(weight) for _, weight in candidate.versions)
    return {
        "voters": candidate.voters,
        "roll": turnout.roll[0] if turnout else None,
        "of_all_weight": share(candidate.approval, turnout.roll[1]) if turnout else None,
        "accept": share(over, total),
        "reject": share(under, total),
        "neither": share(neither, total),
        "support": share(counted(candidate, transcript), total),
        "quorum": share(transcript.quorum_of(candidate), total),
        "versions": {document: share(weight, users) for document, weight in candidate.versions},
    }


def turnout_numbers(transcript: Transcript) -> dict[str, Any] | None:
    """Return the numbers of the sentences on the voters, or None where the transcript has none."""
    turnout = transcript.turnout
    if turnout is None:
        return None
    return {
        "roll": turnout.roll[0],
        "in_topic": turnout.topic[0],
        "voters": turnout.votes[0],
        "of_all_weight": share(turnout.votes[1], turnout.roll[1]),
        "is_few": is_few(transcript),
    }


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
