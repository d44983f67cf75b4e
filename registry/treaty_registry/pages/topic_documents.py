"""The documents of a topic as its page shows them: a card for each, with the reasons for its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from treaty_client.audit import reasons, strength
from treaty_client.audit.decision import Candidate as Counted
from treaty_client.audit.decision import Nominee, Transcript
from treaty_consensus.kinds import NEGATIVE_STATES, NONE, Decision

from ..catalogue.agents import Named
from ..catalogue.resources import Candidate
from . import filters, topic_charts
from .renderer import digest

if TYPE_CHECKING:
    from markupsafe import Markup

    from .renderer import Renderer

MAX_PAIRS = 12
MAX_URIS = 3
MAX_BEATEN = 3


@dataclass(frozen=True)
class Book:
    """The names of a topic's documents, and the transcript of its newest decision if it is there.

    `choices`: document → its label and colour in charts.
    """

    names: Mapping[str, str]
    transcript: Transcript | None
    choices: Mapping[str, topic_charts.CountedChoice]


@dataclass(frozen=True)
class PairwiseDefeat:
    """A choice that beats another one: the shares of all votes that prefer each."""

    name: str
    over: str
    under: str


@dataclass(frozen=True)
class ReportedBy:
    """The pairs that reported a document without a state. `needed`: so many make it a candidate. `idle`: pairs with a did:key."""

    pairs: Sequence[tuple[str, ...]]
    total: int
    needed: int
    idle: int
    is_whole: bool


@dataclass(frozen=True)
class ShownDocument:
    """A document as the page shows it. `counted`: its numbers in the newest decision, if its transcript is there."""

    shown: Candidate
    book: Book
    place: int | None = None
    is_below_none: bool = False
    counted: Nominee | None = None
    reported: ReportedBy | None = None

    @property
    def name(self) -> str:
        """Return its name in the topic."""
        return self.book.names[self.shown.hash]

    @property
    def uris(self) -> Sequence[str]:
        """Return the first of its names in the registry."""
        return self.shown.uris[:MAX_URIS]

    @property
    def choice(self) -> topic_charts.CountedChoice | None:
        """Return its label and colour in charts."""
        return self.book.choices.get(self.shown.hash)

    @property
    def aim(self) -> str:
        """Return the next state that it can get."""
        return reasons.aim(self.counted) if self.counted else ""

    # The lists below are made when a card shows them, and most cards are kept.
    @cached_property
    def reasons(self) -> Sequence[str]:
        """Return the conditions that it lacks."""
        transcript = self.book.transcript
        return [*reasons.reasons(self.counted, transcript, self.book.names)] if self.counted and transcript else ()

    @cached_property
    def defeats(self) -> Sequence[PairwiseDefeat]:
        """Return the choices that more votes prefer to it, the clearest first."""
        return _beaten_by(self.shown.hash, self.book)

    @cached_property
    def strength(self) -> Sequence[str]:
        """Return the sentences on the votes for it, on the versions of its line, and on a warning."""
        entry, transcript = self.counted, self.book.transcript
        if not isinstance(entry, Counted) or transcript is None:
            return ()
        sentences = strength.versions(entry, self.book.names)
        return [*strength.strength(entry, transcript), *sentences, *strength.warning(entry)]

    @property
    def speaks(self) -> str | None:
        """Return the name of the version that its line speaks instead of it."""
        candidate = self.book.transcript.spoken.get(self.shown.hash) if self.book.transcript else None
        return self.book.names.get(candidate.hash) if candidate and candidate.hash != self.shown.hash else None

    @property
    def is_withdrawn(self) -> bool:
        """Return whether its publishers yanked or revoked it, so that agents refuse it."""
        return self.shown.status in NEGATIVE_STATES

    @property
    def title(self) -> str:
        """Return its title, or its name."""
        return self.shown.title or self.name

    @property
    def is_suspect(self) -> bool:
        """Return whether the decision warns of it."""
        return isinstance(self.counted, Counted) and bool(self.counted.suspect)


def names_of(candidates: Iterable[Candidate], others: Mapping[str, Named]) -> Mapping[str, str]:
    """Return document → its name for people."""
    uris = {document: named.uri for document, named in others.items()}
    uris |= {candidate.hash: candidate.uris[0] for candidate in candidates}
    return {document: filters.name(uri) for document, uri in uris.items()}


def document_of(candidate: Candidate, book: Book, pairs: reasons.ReportedPairs | None) -> ShownDocument:
    transcript = book.transcript
    reported = _reported(candidate.hash, pairs) if pairs else None
    if transcript is None:
        return ShownDocument(candidate, book, reported=reported)
    nominee: Nominee | None = next((entry for entry in transcript.candidates if entry.hash == candidate.hash), None)
    nominee = nominee or next((entry for entry in transcript.nominees if entry.hash == candidate.hash), None)
    order = transcript.order
    place = order.index(candidate.hash) + 1 if candidate.hash in order else None
    return ShownDocument(candidate, book, place, place is not None and place > order.index(NONE) + 1, nominee, reported)


def _reported(document: str, reports: reasons.ReportedPairs) -> ReportedBy:
    pairs = sorted(reports.by_document.get(document, ()))
    return ReportedBy(pairs[:MAX_PAIRS], len(pairs), reports.needed, reports.idle.get(document, 0), reports.is_whole)


def _beaten_by(document: str, book: Book) -> list[PairwiseDefeat]:
    """Return the choices that more votes prefer to a document than the other way round, the clearest first."""
    transcript = book.transcript
    if transcript is None or document not in (choices := reasons.choices_of(transcript)):
        return []
    votes = transcript.pairwise
    own = choices.index(document)
    defeats = []
    for other, choice in enumerate(choices):
        over, under = int(votes[other][own]), int(votes[own][other])
        if over > under:
            total = transcript.total
            defeat = PairwiseDefeat(reasons.choice_name(choice, book.names), *(reasons.share(v, total) for v in (over, under)))
            defeats.append((under - over, other, defeat))
    return [defeat for *_, defeat in sorted(defeats, key=lambda entry: entry[:2])]


def cards(renderer: Renderer, decision: Decision | None, book: Book) -> Callable[[ShownDocument, bool], Markup]:
    """Return the maker of the cards of candidates. A card is drawn once for a transcript, the names of its choices, and the
    candidate."""
    transcript = book.transcript
    state = digest((decision.transcript.sha256, book.names)) if decision and transcript else ""
    shared = {"transcript": transcript, "share": reasons.share, "meter": topic_charts.meter, "most_beaten": MAX_BEATEN}

    def card(entry: ShownDocument, is_open: bool) -> Markup:
        key = digest((state, entry.shown, entry.name, is_open))
        return renderer.part("candidate.html", key, lambda: {**shared, "entry": entry, "is_open": is_open})

    return card
