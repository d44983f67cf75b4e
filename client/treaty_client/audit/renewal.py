"""Say in plain sentences whether the use of an agent renews its votes: for `treaty vote --check`, and for the page of a ballot.

`docs/specification/election.md`, section 3, "Use renews a vote", is the rule. A registry's account of ballots and reports is read
here, without weights, so a sentence is advice to the owner of the votes. The sentences have no mark-up.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import StrEnum

from treaty_consensus.election.arithmetic import HALVINGS, ONE, conviction, decay
from treaty_consensus.kinds import NONE
from treaty_consensus.printable import escaped

from ..registries.replies import VoteInfo, VotingInfo
from .reasons import choice_name


class Renewal(StrEnum):
    """What the use of an agent does to its ballot in a topic."""

    RENEWED = "renewed"
    """It uses what it voted for."""
    YIELDS = "yields"
    """It began to use another line after it voted: the ballot is not counted, and the use is."""
    STANDS = "stands"
    """It used another line before it voted, and does so now. The ballot stands, and fades."""
    UNUSED = "unused"
    """No report counts, so nothing renews the ballot."""
    FADED = "faded"
    """The ballot is too old to count, and the use counts alone."""
    SILENT = "silent"
    """There is no ballot: only the use votes."""


def renewal(vote: VoteInfo, voting: VotingInfo) -> Renewal:
    """Return what the use of an agent does to its ballot."""
    use = vote.use
    if vote.cast is None or not vote.tiers:
        return Renewal.SILENT
    if not _strength(vote, voting):
        return Renewal.FADED
    if use is None or not voting.renews:
        return Renewal.UNUSED
    if set(use.hashes) & set(vote.first):
        return Renewal.RENEWED
    return Renewal.YIELDS if use.since > vote.cast else Renewal.STANDS


def left(vote: VoteInfo, voting: VotingInfo) -> int | None:
    """Return the per cent of its weight that a ballot has left at the end of the open epoch without use; None for none."""
    return None if vote.cast is None else 100 * _strength(vote, voting) // ONE


def sentences(vote: VoteInfo, voting: VotingInfo) -> Iterator[str]:
    """Yield the ballot, its use, what follows from both, and what the owner can do."""
    case = renewal(vote, voting)
    if vote.tiers and vote.cast is not None:
        ranking = " > ".join(" = ".join(_name(choice, voting) for choice in tier) for tier in vote.tiers)
        yield f"The ballot is {ranking}. It was cast in epoch {vote.cast}, and its ranking began in epoch {vote.since}."
    if vote.use is not None:
        yield (
            f"By its reports this agent speaks {_named(vote.use.hashes, voting)} with {_peers(vote.use.counterparties)}, since "
            f"epoch {vote.use.since}; the newest is of epoch {vote.use.newest}."
        )
    yield from _advice(case, vote, voting)


def _advice(case: Renewal, vote: VoteInfo, voting: VotingInfo) -> Iterator[str]:
    again = _command(vote.topic, vote.tiers or [], voting)
    used = _command(vote.topic, [[*vote.use.hashes], [NONE]], voting) if vote.use else ""
    fades = _fading(vote, voting)
    match case:
        case Renewal.RENEWED:
            yield "It uses what it voted for, so the vote is renewed in each epoch. There is nothing to do."
        case Renewal.YIELDS:
            yield "This use began after the vote, so the ballot yields: it is not counted, and the use is."
            yield f"To vote by its use: {used}. To keep the former vote: {again}."
        case Renewal.STANDS:
            yield f"It voted for something else than it used then and uses now. The ballot stands, but no use renews it. {fades}"
            yield f"To renew the vote, use what it voted for, or cast it again: {again}. To vote by its use: {used}."
        case Renewal.UNUSED:
            why = "No report of it counts here" if voting.renews else "Under the rule of this log no use renews a vote"
            yield f"{why}, so only a new ballot renews this one. {fades}"
            yield f"To renew the vote, cast it again: {again}."
        case Renewal.FADED:
            yield f"The ballot has faded to nothing{', and the use votes alone' if vote.use else ''}. Vote again: {again}."
        case Renewal.SILENT:
            yield (
                f"It has no ballot here, so its use votes for it. To vote: {used}."
                if used
                else "It has no ballot here, and no use."
            )


def _fading(vote: VoteInfo, voting: VotingInfo) -> str:
    if voting.electorate != "open" or vote.cast is None:
        return "In a development electorate ballots do not fade."
    horizon = voting.horizon_epochs
    return (
        f"It counts {left(vote, voting)} % of its weight, half of it {horizon} epochs after it was cast, and nothing from epoch "
        f"{vote.cast + HALVINGS * horizon} on."
    )


def _strength(vote: VoteInfo, voting: VotingInfo) -> int:
    """Return D(a) · ρ(b), in units of 1 / ONE."""
    if voting.electorate != "open" or vote.cast is None or vote.since is None or voting.horizon_epochs < 1:
        return ONE
    age, unchanged = max(voting.epoch - vote.cast, 0), max(voting.epoch - vote.since, 0)
    return decay(age, voting.horizon_epochs) * conviction(unchanged) // ONE


def _command(topic: str, tiers: list[list[str]], voting: VotingInfo) -> str:
    words = (",".join(choice if choice == NONE else voting.names.get(choice, choice) for choice in tier) for tier in tiers)
    return escaped(shlex.join(["treaty", "vote", topic, *words]))


def _name(choice: str, voting: VotingInfo) -> str:
    names = {document: "/".join(uri.split("/")[-2:]) for document, uri in voting.names.items()}
    return escaped("none" if choice == NONE else choice_name(choice, names))


def _named(documents: list[str], voting: VotingInfo) -> str:
    return ", ".join(_name(document, voting) for document in documents)


def _peers(number: int) -> str:
    return "1 peer" if number == 1 else f"{number} peers"
