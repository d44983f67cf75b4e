"""Group the documents of a topic into lines: what an election counts.

A *line* is a document and its declared compatible successors: documents of the topic that were published as changes to one of
the line (`base`), under the same name and with the same major version (`ProtocolUri.continues`). It is named by its first
document. A ballot or a report on one document of a line counts for the line, at the place of the document that the ballot ranks
best. `versions` chooses the document to speak.

Specification: `docs/specification/election.md`, section 3.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ..kinds import Publish
from ..protocol import parse_protocol_uri

Tiers: TypeAlias = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Lines:
    """Hold the lines of a topic in an epoch. The default: each document is a line, and active.

    `first`: document → the first one of its line; absent for that one itself.
    `successors`: line → the line that its publisher named as successor.
    `versions`: line → the version to speak; absent where it is the first one.
    `users`: line → document → the weight of the users whose version it is, of lines with several documents.
    `taken_back`: the lines whose documents were all taken back.
    """

    first: Mapping[str, str] = field(default_factory=dict)
    successors: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    taken_back: frozenset[str] = frozenset()

    def read(self, tiers: Tiers) -> Tiers:
        """Return a ballot over documents as one over lines, with the successors that inherit."""
        if not self.first and not self.successors:
            return tiers
        ranked: set[str] = set()
        readings: list[tuple[str, ...]] = []
        for tier in tiers:
            lines = {self.first.get(choice, choice) for choice in tier} - ranked
            ranked |= lines
            if lines:
                readings.append(tuple(sorted(lines)))
        return tuple(self._inherited(tier, ranked) for tier in readings)

    def version(self, line: str) -> str:
        """Return the version of a line to speak."""
        return self.versions.get(line, line)

    def _inherited(self, tier: tuple[str, ...], ranked: set[str]) -> tuple[str, ...]:
        heirs = {self.successors[line] for line in tier if line in self.successors} - ranked
        # An heir is ranked once, by the best of those that named it.
        ranked |= heirs
        return tuple(sorted({*tier, *heirs})) if heirs else tier


ALONE: Final = Lines()
"""Each document is a line of its own."""


def line_begun_by(published: Publish, publishers: Mapping[str, Container[str]], first: Mapping[str, str]) -> str:
    """Return the first document of the line of a document that was not in its topic before.

    `publishers`: document → the URIs that publish it in the topic so far. `first`: as in `Lines`.
    """
    document, base = published.document.sha256, published.base
    # Only a document of an earlier leaf has URIs here, so lines have no circles.
    if base is None or base.uri not in publishers.get(base.document, ()):
        return document
    is_compatible = parse_protocol_uri(published.uri).continues(parse_protocol_uri(base.uri))
    return first.get(base.document, base.document) if is_compatible else document
