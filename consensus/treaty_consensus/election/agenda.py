"""Select the topics that an epoch counts, and those that it decides.

*Counted* are the topics that can have a candidate: a document state is left there from an earlier epoch, or a published
document was reported by enough pairs. Ballots alone open no topic. Anyone can invent topic names, so a name must cost as much
as a candidate before it costs all readers a count. At most `MAX_TOPICS` topics are counted: half of the places go to those with
the most weight, the others to those that wait longest. So many topics of few delay a topic, and shut none out. The others stay as
they are until a later epoch.

*Decided* are the counted topics with a candidate or a former consensus in which something changed (`Outcome.is_due`). When
nothing changed anywhere, one topic is decided, so that epochs go on and ballots fade: the counted one with the most weight,
or else the one in which the eligible principals have most.

Specification: `docs/specification/election.md`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from ..kinds import Parameters
from .electorate import Electorate
from .evidence import Evidence
from .report import CountedReports

# Each decision is a leaf and a transcript of up to 4 MiB, so an epoch needs a bound that a registry can close.
MAX_TOPICS: Final = 4096


def counted_topics(open_topics: Iterable[str], weights: Mapping[str, int], waiting: Mapping[str, int] | None = None) -> list[str]:
    """Return the topics to count, sorted by name.

    `open_topics`: those that can have a candidate.
    `weights`: from `eligible_weights`.
    `waiting`: topic → the epoch since which it waits, for those that were not counted in the last epoch; None under the rule
    before, which counts the heaviest alone.
    """
    heaviest = sorted(set(open_topics), key=_heaviest_first(weights))
    if waiting is None:
        return sorted(heaviest[:MAX_TOPICS])
    half = MAX_TOPICS // 2
    # The sort is stable: of those that wait equally long the heavier come first.
    longest = sorted(heaviest[half:], key=lambda topic: waiting.get(topic, math.inf))
    return sorted(heaviest[:half] + longest[: MAX_TOPICS - half])


def stand_in(topics: Iterable[str], weights: Mapping[str, int]) -> list[str]:
    """Return the topic to decide when nothing changed in any topic; none where none is counted and none has a participant.

    `topics`: from `counted_topics`.
    `weights`: from `eligible_weights`.
    """
    return sorted(set(topics) or weights, key=_heaviest_first(weights))[:1]


def can_have_candidates(evidence: Evidence, counted: CountedReports, epoch: int, parameters: Parameters) -> set[str]:
    """Return the topics in which a published document has the pairs of a candidate at the end of `epoch`.

    `counted`: the reports that count.
    """
    oldest = epoch - parameters.horizon_epochs + 1
    lines: Mapping[str, Mapping[str, str]] = {} if parameters.is_v2 else evidence.lines
    return {
        topic
        for topic, tally in counted.tallies.items()
        if any(
            pairs >= parameters.candidate_pairs and document in evidence.published.get(topic, ())
            for document, pairs in tally.since(oldest).by_line(lines.get(topic, {})).agreed_pairs.items()
        )
    }


def eligible_weights(
    evidence: Evidence, counted: CountedReports, electorate: Electorate, epoch: int, parameters: Parameters
) -> dict[str, int]:
    """Return topic → the sum of the weights of the eligible principals that take part in it, at the end of `epoch`.

    They take part by a report that counts, or by a ballot that is neither withdrawn nor faded. Topics without an eligible
    participant are left out.

    `counted`: the reports that count.
    """
    eligible, directory = electorate.eligible, electorate.directory
    names = sorted(eligible)
    places = directory.places(names)
    participants: defaultdict[str, set[str]] = defaultdict(set)
    for topic, tally in counted.tallies.items():
        reporters = np.unique(tally.since(epoch - parameters.horizon_epochs + 1).reporters[1]).tolist()
        participants[topic] |= {tally.principals[place] for place in reporters} & eligible
    horizon = parameters.horizon_epochs if electorate.terms else None
    started = np.array([*(electorate.begun.get(name, -1) for name in names), -1], dtype=np.int64)
    for topic, ballots in evidence.ballots.items():
        if places[directory.owners(ballots.column("voter"))].max(initial=-1) < 0:
            continue  # a cheap test first: an invented topic costs one lookup
        owners = ballots.owners(places, epoch, horizon)
        # A ballot of an earlier tenure is no part in it.
        owners = np.unique(owners[ballots.column("cast") > started[owners]])
        participants[topic].update(names[place] for place in owners.tolist() if place >= 0)
    return {topic: sum(electorate.weights[name] for name in names) for topic, names in participants.items() if names}


def _heaviest_first(weights: Mapping[str, int]) -> Callable[[str], tuple[int, str]]:
    # The name breaks ties, so every replay selects the same topics.
    return lambda topic: (-weights.get(topic, 0), topic)
