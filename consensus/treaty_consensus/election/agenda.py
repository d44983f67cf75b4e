"""Select the topics that an epoch decides.

A topic is open in two cases: an eligible principal (`Electorate.eligible`) has a report that counts there, or a ballot that
is neither withdrawn nor faded; or the previous decision left a document state or an implied ballot there. Anyone can invent
topic names. Without the condition on eligibility, one unknown domain could make every epoch decide a million topics.

At most `MAX_TOPICS` topics are decided, so that every epoch can be closed. Other topics stay as they are until a later epoch.
Specification: `docs/specification/election.md`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from ..kinds import Parameters
from .electorate import Electorate
from .evidence import Evidence
from .report import CountedReports

# Each decision is a leaf and a transcript of up to 4 MiB, so an epoch needs a bound that a registry can close.
MAX_TOPICS: Final = 4096


def agenda(open_topics: Iterable[str], weights: dict[str, int]) -> list[str]:
    """Return the topics to decide, sorted by name.

    `open_topics`: topics with a state left from earlier epochs.
    `weights`: from `eligible_weights`.
    """
    # The heaviest topics come first. The name breaks ties, so every replay selects the same topics.
    ranked = sorted({*open_topics, *weights}, key=lambda topic: (-weights.get(topic, 0), topic))
    return sorted(ranked[:MAX_TOPICS])


def eligible_weights(
    evidence: Evidence, counted: CountedReports, electorate: Electorate, epoch: int, parameters: Parameters
) -> dict[str, int]:
    """Return topic → the sum of the weights of the eligible principals that take part in it, at the end of `epoch`.

    Topics without an eligible participant are left out.

    `counted`: the reports that count.
    """
    eligible, directory = electorate.eligible, electorate.directory
    names = sorted(eligible)
    places = directory.places(names)
    participants: defaultdict[str, set[str]] = defaultdict(set)
    for topic, tally in counted.tallies.items():
        principals = {principal for document in tally.pairs for principal in tally.principals(document)}
        participants[topic] |= principals & eligible
    horizon = parameters.horizon_epochs if electorate.terms else None
    for topic, ballots in evidence.ballots.items():
        if places[directory.owners(ballots.column("voter"))].max(initial=-1) < 0:
            continue  # a cheap test first: an invented topic costs one lookup
        owners = np.unique(ballots.owners(places, epoch, horizon))
        participants[topic].update(names[place] for place in owners.tolist() if place >= 0)
    return {topic: sum(electorate.weights[name] for name in names) for topic, names in participants.items() if names}
