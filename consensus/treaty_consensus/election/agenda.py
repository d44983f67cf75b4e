"""The agenda: which topics an epoch decides.

A topic is open when somebody who is heard (`Electorate.heard`) reported or voted in it, by a report that counts or a ballot that
is neither withdrawn nor faded, or when the decision before left something there: the state of a document, an implied ballot.
Names are free, so whoever is not heard opens none; otherwise one domain that nobody knows could have every epoch decide a
million topics, for ever.

At most `MAX_TOPICS` are decided, so that every epoch can be closed: those in which the heard weigh most together, of equal ones
the first by name. What is left for a later epoch stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from ..kinds import Parameters
from .electorate import Electorate
from .evidence import Evidence
from .report import Counted

MAX_TOPICS: Final = 4096
"""Decisions of one epoch."""


def agenda(open_topics: Iterable[str], heard: dict[str, int]) -> list[str]:
    """The topics to decide, in their order: of those that are `open_topics` anyway, or in which somebody is `heard`."""
    ranked = sorted({*open_topics, *heard}, key=lambda topic: (-heard.get(topic, 0), topic))
    return sorted(ranked[:MAX_TOPICS])


def heard_in(evidence: Evidence, counted: Counted, electorate: Electorate, epoch: int, parameters: Parameters) -> dict[str, int]:
    """For each topic in which somebody is heard at the end of `epoch`: what they all weigh. `counted`: the reports that count."""
    heard, voices = electorate.heard, electorate.voices
    names = sorted(heard)
    places = voices.places(names)
    speakers: defaultdict[str, set[str]] = defaultdict(set)
    for topic, tally in counted.tallies.items():
        principals = {principal for document in tally.pairs for principal in tally.principals(document)}
        speakers[topic] |= principals & heard
    horizon = parameters.horizon_epochs if electorate.terms else None
    for topic, ballots in evidence.ballots.items():
        if places[voices.owners(ballots.column("voter"))].max(initial=-1) < 0:
            continue  # soon done with the topics that strangers invent
        owners = np.unique(ballots.owners(places, epoch, horizon))
        speakers[topic].update(names[place] for place in owners.tolist() if place >= 0)
    return {topic: sum(electorate.weights[name] for name in names) for topic, names in speakers.items() if names}
