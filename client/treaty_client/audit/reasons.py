"""Say in plain sentences which conditions a document lacks: for `treaty topic --explain`, and for the pages of a registry.

The sentences have no mark-up. The caller escapes them for a terminal or a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from treaty_consensus.kinds import NONE
from treaty_consensus.printable import escaped, short

from .decision import Candidate, Missing, Nominee, Transcript

Names: TypeAlias = Mapping[str, str]
"""Document hash → name for people."""

_SHOWN_PAIRS = 6
_COUNTED = ("published", "pairs", "clusters", "field", "schulze-place", "provisional-epochs", "ahead-epochs")
"""Conditions on counts; all other conditions are on weight."""
_QUORUM = "has {has} of all votes behind it (with the limit for each cluster), and needs {needs}"
_SENTENCES = {
    "published": "is not published in this topic, or its publisher took it back",
    "pairs": "was reported by {has} of principals, and needs {needs}",
    "clusters": "was reported from {has}, and needs {needs}",
    "reporter-weight": "was reported by principals of {has} of all votes, and needs {needs}",
    "field": "is number {has} of those that could be candidates, and {needs} are",
    "schulze-place": "is number {has} in the order, and the first is {against}",
    "provisional-quorum": _QUORUM,
    "provisional-epochs": "has been provisional for {has}, and needs {needs}",
    "quorum": _QUORUM,
    "ahead-epochs": "has been ahead of the consensus {against} for {has}, and needs {needs}",
}
_UNITS = {"pairs": "pair", "clusters": "cluster", "provisional-epochs": "epoch", "ahead-epochs": "epoch"}
_COMPARISONS = {
    "majority-over-none": "",
    "ratio-over-none": "",
    "unbeaten": "",
    "ratio-over-incumbent": "the consensus ",
}
"""Conditions on two weights of the matrix, each with the words before the name of the other choice."""


@dataclass(frozen=True)
class ReportedPairs:
    """The pairs that reported the documents of a topic, in the epochs that count.

    `by_document`: document hash → pairs of DIDs with a domain. `idle`: document hash → number of pairs with a did:key, which
    never count. `needed`: pairs of principals that a candidate needs. `is_whole`: whether all reports of the log were read.
    """

    by_document: Mapping[str, frozenset[tuple[str, ...]]]
    idle: Mapping[str, int]
    needed: int
    is_whole: bool


def is_kept(entry: Nominee) -> bool:
    """Return whether the conditions of a document are those of a consensus that is to be kept."""
    return isinstance(entry, Candidate) and entry.state == "consensus"


def aim(entry: Nominee) -> str:
    """Return the goal for which a document lacks its missing conditions: "be the consensus"."""
    if is_kept(entry):
        return "stay the consensus"
    return "be the consensus" if isinstance(entry, Candidate) else "be a candidate"


def reasons(entry: Nominee, transcript: Transcript, names: Names) -> Iterator[str]:
    """Yield a sentence without its subject for each condition that a document lacks: "is number 2 in the order, and …"."""
    for missing in entry.missing:
        if _is_said_by_another(missing, entry.missing):
            continue
        votes = _votes(entry.hash, missing.against or NONE, transcript)
        if votes and missing.condition in _COMPARISONS:
            yield _comparison(missing, votes, transcript, names)
        elif votes and missing.condition == "schulze-place":
            over, under = (share(part, transcript.total) for part in votes)
            yield f"{_sentence(missing, transcript, names)}: {under} of all votes prefer that, {over} this"
        else:
            yield _sentence(missing, transcript, names)


def _is_said_by_another(missing: Missing, others: Sequence[Missing]) -> bool:
    """Return whether another condition that is missing needs more of the same."""
    # Under the rule before both quorums may be missing.
    larger = {"provisional-quorum": "quorum", "unbeaten": "ratio-over-incumbent"}.get(missing.condition)
    return any(other.condition == larger and other.against == missing.against for other in others)


def choice_name(choice: str, names: Names) -> str:
    """Return the name of a choice of a ballot: a document, or NONE."""
    return "no consensus" if choice == NONE else names.get(choice, short(choice))


def choices_of(transcript: Transcript) -> Sequence[str]:
    """Return the choices in the order of the rows and columns of the matrix."""
    return (*(candidate.hash for candidate in transcript.candidates), NONE)


def share(part: str | int, whole: str | int) -> str:
    """Return a part of all votes in per cent, rounded down to a tenth."""
    tenths = int(part) * 1000 // int(whole) if int(whole) else 0
    return f"{tenths // 10}.{tenths % 10} %"


def reported(document: str, name: str, reports: ReportedPairs) -> str:
    """Return the sentences on a document that is no candidate: its pairs, and the missing ones."""
    pairs = sorted(reports.by_document.get(document, ()))
    least = "" if reports.is_whole else "at least "
    listed = "; ".join(escaped(" with ".join(pair)) for pair in pairs[:_SHOWN_PAIRS])
    more = f"; and {len(pairs) - _SHOWN_PAIRS} more" if len(pairs) > _SHOWN_PAIRS else ""
    pairs_text = f"{least}{len(pairs)} {_pairs(len(pairs))}: {listed}{more}" if pairs else "no pair of agents"
    missing = reports.needed - len(pairs)
    fate = (
        f"{missing} more {_pairs(missing)} must report it before the epoch closes"
        if missing > 0
        else "that is enough, if these agents have weight when the epoch closes"
    )
    idle = reports.idle.get(document, 0)
    keyed = f" (Not counted: {idle} {_pairs(idle)} with a did:key.)" if idle else ""
    return f"{name} was reported by {pairs_text}. A candidate needs {reports.needed} pairs: {fate}.{keyed}"


def _sentence(missing: Missing, transcript: Transcript, names: Names) -> str:
    # A later version of the rule may name a condition that this version does not know.
    sentence = _SENTENCES.get(missing.condition)
    if sentence is None:
        return f"{missing.condition}: has {missing.has}, needs {missing.needs}"
    numbers = (missing.has, missing.needs)
    has, needs = numbers if missing.condition in _COUNTED else (share(number, transcript.total) for number in numbers)
    unit = _UNITS.get(missing.condition)
    if unit is not None:
        has = f"{has} {unit}" if has == "1" else f"{has} {unit}s"
    return sentence.format(has=has, needs=needs, against=choice_name(missing.against or "", names))


def _comparison(missing: Missing, votes: tuple[int, int], transcript: Transcript, names: Names) -> str:
    """Say how many votes prefer a document to another choice, and how many it needs, as a multiple of the opposite votes."""
    over, under = votes
    needs = int(missing.needs)
    if needs <= under:
        lacks = "as many"
    elif needs == under + 1:
        lacks = "more"
    else:
        # Weights are large integers, so the rounding of `needs` is far below this precision.
        lacks = f"{float(Fraction(needs, max(under, 1)).limit_denominator(100)):.4g} times as many"
    other = f"{_COMPARISONS[missing.condition]}{choice_name(missing.against or NONE, names)}"
    shares = (share(part, transcript.total) for part in (over, under))
    return "is preferred to {} by {} of all votes, and the other way round by {}: it needs {}".format(other, *shares, lacks)


def _votes(document: str, other: str, transcript: Transcript) -> tuple[int, int] | None:
    """Return the votes that prefer a document to another choice, and the opposite ones. None for one that is not counted."""
    choices = choices_of(transcript)
    if document not in choices or other not in choices:
        return None
    a, b = choices.index(document), choices.index(other)
    return int(transcript.pairwise[a][b]), int(transcript.pairwise[b][a])


def _pairs(number: int) -> str:
    return "pair" if number == 1 else "pairs"
